"""A run's text: cut into batches of whole lines, shared among processes, and described.

Lines are read in windows of :data:`~headscope.data.corpus.WINDOW` lines. Within a window they are
sorted by length and cut into batches of about as many tokens (``buckets``), so that a batch has
little padding. An *item* is a line as token ids, or None for a line that is too long.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from headscope.core.errors import CorpusError, InputError
from headscope.core.processes import current, share
from headscope.data.batches import BATCH_TOKENS, Item, buckets
from headscope.data.corpus import WINDOW, Corpus, open_pairs, sample_corpus
from headscope.data.pieces import encode_lines
from headscope.models.run.loaded import LoadedModel

Raw = TypeVar("Raw")  # A sentence or pair as it was read.


def line_batches(
    loaded: LoadedModel, text: Corpus, limit: int | None = None
) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield (lines seen so far, token ids of the next batch); lines that are too long are left out.

    At most ``limit`` lines are read.
    """
    lines = itertools.islice(text.lines(), limit)
    return counted_batches(encode_lines(loaded, lines))


def counted_batches(encoded: Iterable[Item | None]) -> Iterator[tuple[int, list[Item]]]:
    """Yield (items seen so far, next batch); None, a skipped line, is counted and in no batch."""
    n_seen = 0
    stream = iter(encoded)
    while window := list(itertools.islice(stream, WINDOW)):
        n_seen += window.count(None)
        for batch in buckets(window, BATCH_TOKENS):
            n_seen += len(batch)
            yield n_seen, batch


def process_batches(
    rows: Iterable[Raw], n: int, encode: Callable[[list[Raw], bool], Iterable[Item | None]]
) -> Iterator[tuple[float, list[Item]]]:
    """Yield (rows done by then, next batch) of this process's share of a corpus of ``n`` rows.

    All processes together have the batches that one alone would go through. Windows of rows are
    dealt out in rounds, one to each process, which alone encodes it. The windows of a last round
    that are too few for all processes are encoded by all of them, and their batches are dealt out:
    of 7 windows and 3 processes, the process of rank 0 has windows 0 and 3, and every third batch
    of window 6.

    ``encode`` is called with the rows of a window, and whether the window is the first. A batch
    with a tenth of a window's tokens counts as a tenth of its rows, since short rows come first.
    """
    stream = iter(rows)
    n_done = 0.0
    n_windows = math.ceil(n / WINDOW)
    group = current()
    n_in_full_rounds = n_windows - n_windows % group.size
    for number in range(n_windows):
        window = list(itertools.islice(stream, WINDOW))
        in_full_round = number < n_in_full_rounds
        if in_full_round and number % group.size != group.rank:
            continue  # another process has it
        encoded = list(encode(window, number == 0))
        n_tokens = sum(len(item) for item in encoded if item is not None)
        # Of half the usual size: they run side by side, and share the processor's cache.
        batches: Iterable[list[Item]] = buckets(encoded, BATCH_TOKENS // 2)
        if not in_full_round:
            batches = share(batches)
        for batch in batches:
            n_done += len(window) * sum(map(len, batch)) / n_tokens
            yield n_done, batch


def corpus_for(loaded: LoadedModel, corpus: Corpus) -> Corpus:
    """Return the corpus as the model reads it: an encoder-decoder model takes a table as pairs."""
    if loaded.encoder_decoder and corpus.table is not None:
        return open_pairs(corpus.table)
    if corpus.n_pairs and not loaded.encoder_decoder:
        raise InputError(
            f"{loaded.name} ({loaded.family}) is no encoder-decoder model, so it cannot read pairs "
            "of source and target; give sentences."
        )
    return corpus


def check_measured(text: Corpus, lines: int) -> None:
    """Raise if every line of a text had to be skipped."""
    if lines == 0:
        raise CorpusError(
            f"No line of {text.name} fits into the model's limit; break the text into sentences, "
            "one a line."
        )


def text_description(text: Corpus, limit: int | None, lines: int) -> dict[str, Any]:
    """Describe what was read of a text; refuse one of which every line was skipped.

    ``limit`` is the number of lines that were asked for, ``lines`` that of the lines measured.
    """
    check_measured(text, lines)
    n_read = text.n_sentences if limit is None else min(limit, text.n_sentences)
    skipped = n_read - lines
    return {"name": text.name, "sha256": text.sha256, "lines": lines, "skipped": skipped}


#: Tokens of a sentence that fits a picture of its pattern.
SHORTEST = 8
LONGEST = 16


def short_sentences(loaded: LoadedModel, count: int) -> list[tuple[str, list[int]]]:
    """Choose sentences of the built-in sample that fit a picture, then the shortest others.

    Returns each with its token ids.
    """

    def rank(sentence: tuple[str, list[int]]) -> int:
        """Return 0 for all sentences that fit, which so stay in the order of the sample."""
        _, ids = sentence
        fits = SHORTEST <= len(ids) <= LONGEST
        return 0 if fits else len(ids)

    texts = list(sample_corpus().lines())
    encoded = encode_lines(loaded, texts)
    read = [(text, ids) for text, ids in zip(texts, encoded, strict=True) if ids is not None]
    return sorted(read, key=rank)[:count]
