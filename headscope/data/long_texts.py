"""Texts that are longer than a model reads: what is said of them, and windows in their place.

Nothing is ever cut: a text that is too long is left out. Where that leaves out many, a reader is
told so; and a document can be read in *windows*, each of as many whole sentences as fit.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from headscope.core.errors import CorpusError
from headscope.core.files import sha256_of
from headscope.data.corpus import Corpus
from headscope.data.pieces import TextModel, tokenise

#: Share of a text's lines that may be left out without a word.
MOST_LEFT_OUT = 0.05
#: Where a sentence ends: behind its mark, and what closes a quotation or a bracket.
_SENTENCE_END = re.compile(
    r"(?<=[.!?\u2026\u061f\u0964\u06d4])[\"'\u201d\u2019)\]]*\s+|(?<=[\u3002\uff01\uff1f])"
)


def left_out_notes(
    n_left_out: int,
    n_texts: int,
    name: str,
    max_length: int,
    *,
    windows: bool = False,
    mask: str | None = None,
) -> tuple[str, ...]:
    """Warn that much of the data was left out; nothing where it is a twentieth or less.

    ``windows`` says that the command can read long texts in windows, and has not; ``mask`` is the
    token without which a text is left out too.
    """
    if n_left_out <= MOST_LEFT_OUT * n_texts:
        return ()
    why = f"most of them longer than the {max_length:,} tokens that are read at once"
    if mask is not None:
        why = f"without the mask {mask} or longer than the {max_length:,} tokens read at once"
    text = (
        f"{n_left_out:,} of {n_texts:,} texts of {name} were left out, {why}: all numbers are of "
        f"the other {n_texts - n_left_out:,}."
    )
    if windows:
        text += " With the option windows, long texts are read in windows of whole sentences."
    return (text,)


def in_windows(model: TextModel, corpus: Corpus) -> Corpus:
    """Return a text whose long lines are read in windows of whole sentences.

    A sentence that is too long by itself stays a line of its own. Raises CorpusError for trees and
    pairs, which belong to whole sentences.
    """
    if corpus.has_trees or corpus.n_pairs or corpus.labels:
        raise CorpusError(f"Windows are for plain text; {corpus.name} has trees or pairs.")

    def read() -> Iterator[str]:
        for line in corpus.lines():
            yield from windows_of(model, line)

    return dataclasses.replace(
        corpus,
        name=f"{corpus.name}, long lines in windows",
        sha256=sha256_of(f"{corpus.sha256} in windows of {model.max_length}"),
        n_sentences=sum(1 for _ in read()),
        read=read,
        table=None,
    )


def windows_of(model: TextModel, line: str) -> Iterator[str]:
    """Cut a line between sentences into as few windows as the model can read, one after another."""
    if _length(model, line) <= model.max_length:
        yield line
        return
    sentences = [sentence for sentence in _sentences(line) if sentence.strip()]
    first = 0
    while first < len(sentences):
        last = _last_that_fits(model, sentences, first)
        yield "".join(sentences[first:last]).strip()
        first = last


def _last_that_fits(model: TextModel, sentences: Sequence[str], first: int) -> int:
    """Return where a window ends that begins with a sentence: the index behind its last one.

    By bisection, since more sentences have more tokens.
    """
    fits = first + 1  # one sentence at least
    too_many = len(sentences) + 1
    step = 1
    while fits + step < too_many and _fits(model, sentences[first : fits + step]):
        fits += step
        step *= 2
    too_many = min(too_many, fits + step)
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if _fits(model, sentences[first:middle]):
            fits = middle
        else:
            too_many = middle
    return fits


def _fits(model: TextModel, sentences: Sequence[str]) -> bool:
    """Whether the model reads some sentences together."""
    return _length(model, "".join(sentences).strip()) <= model.max_length


def _length(model: TextModel, text: str) -> int:
    """Return the tokens of a text, special ones included."""
    (encoding,) = tokenise(model, [text], check=False)
    return len(encoding.ids)


def _sentences(line: str) -> Iterator[str]:
    """Cut a line behind every sentence; the parts together are the line."""
    start = 0
    for end in _SENTENCE_END.finditer(line):
        yield line[start : end.end()]
        start = end.end()
    yield line[start:]
