"""A corpus: lines, sentences or pairs of texts, read again and again; a large one is never held.

First :class:`Corpus`, then how one is opened from each kind of file, and :func:`as_corpus`, which
takes whatever a caller has.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from headscope.core.errors import CorpusError
from headscope.core.files import sha256_of, sha256_of_file
from headscope.data.files import TREEBANKS, read_prose
from headscope.data.sentences import Edge, Sentence, has_word, sentence_of
from headscope.data.tables import (
    SENTENCES,
    TABLES,
    TRANSLATIONS,
    notes_on,
    read_records,
    refuse_table,
)
from headscope.data.treebanks import note_of_multiword, read_treebank

SAMPLE = Path(__file__).with_name("sample.conllu")
#: Number of sentences of the sample that people wrote and annotated; a grammar made the others.
ANNOTATED = 68
#: Universal Dependencies names its files LANGUAGE_TREEBANK-ud-SPLIT.conllu.
_UD_NAME = re.compile(r"([a-z]{2,3})_[a-z0-9]+-ud-")
Pair = tuple[str, str]  # A source and its target.
Spans = tuple[tuple[int, int], ...]  # Where words begin and end in a text.
WINDOW = 2048  # Sentences that one process reads and sorts by length together.
#: A treebank of at most so many sentences is read once and held, about 3 kB each.
HELD = 4096


class LabelledTexts(NamedTuple):
    """A source and its target, with the words of both and a user's labelled pairs of them."""

    source: str
    target: str
    source_words: Spans
    target_words: Spans
    pairs: tuple[Edge, ...]  # (word of the target, word of the source, label), words by number
    half: int  # 0 or 1: the half of the corpus; examples that share a text lie in one half
    #: A control: the pairs of the last example before it that has as many words on both sides and
    #: other texts; empty where there is none
    swapped: tuple[Edge, ...]


@dataclass(frozen=True)
class Corpus:
    """Lines of text or sentences, where they come from, and what is known about them.

    Iterating yields sentences: a line is split into its words, a sentence of a treebank brings its
    tree. A corpus of sources and targets has :attr:`pairs`, which starts a pass over both; its
    sentences are the sources that have a word.
    """

    name: str  # The path as given, or ``built-in sample (mostly generated)``
    sha256: str  # Of the file's bytes; of a corpus in memory, of its rows
    n_sentences: int  # What one pass yields, at least 1 unless there are pairs
    #: Starts a new pass over lines (each has a word) or sentences
    read: Callable[[], Iterator[str | Sentence]]
    has_trees: bool = False  # Whether sentences carry gold dependency trees
    language: str | None = None  # ISO code, where the corpus states it
    note: str = ""  # A warning about any count on this corpus; mostly empty
    notes: tuple[str, ...] = ()  # Sentences that say which columns of a table are not read
    #: The file of a table: for a model that reads sources and targets its rows may be such pairs
    table: Path | None = None
    pairs: Callable[[], Iterator[Pair]] | None = None  # Starts a new pass over (source, target)
    n_pairs: int = 0
    labels: tuple[str, ...] = ()  # The labels that a user gives to pairs of words
    characters: bool = False  # Whether every character of a sentence is a word of its own
    #: Starts a new pass over sources and targets with a user's labelled pairs of their words
    labelled: Callable[[], Iterator[LabelledTexts]] | None = None

    def __iter__(self) -> Iterator[Sentence]:
        rows = self.read()
        return (sentence_of(row) if isinstance(row, str) else row for row in rows)

    def lines(self) -> Iterator[str]:
        """Start a pass over the text of each line or sentence."""
        return (row if isinstance(row, str) else row.text for row in self.read())

    def first(self, limit: int | None) -> Corpus:
        """Return the first rows alone; all of them without a limit."""
        if limit is None or limit >= self.n_rows:
            return self
        pairs = self.pairs
        if pairs is not None:
            return corpus_of_pairs(self.name, self.sha256, lambda: islice(pairs(), limit))
        return dataclasses.replace(
            self, n_sentences=limit, read=lambda: islice(self.read(), limit), table=None
        )

    @property
    def n_rows(self) -> int:
        """Pairs where there are pairs, else sentences."""
        return self.n_pairs or self.n_sentences

    @property
    def sources(self) -> Corpus:
        """The sentences alone, without the targets of pairs."""
        return dataclasses.replace(self, pairs=None, n_pairs=0, labels=(), labelled=None)

    def labels_of(self, stack: str) -> tuple[str, ...]:
        """Return the labels that the heads of a stack are scored for.

        Pairs within one text are scored in the encoder, pairs of target and source in
        cross-attention (``cross``).
        """
        scored_stack = "cross" if self.n_pairs else "encoder"
        return self.labels if stack == scored_stack else ()


def open_treebank(path: str | Path) -> Corpus:
    """Open a CoNLL-U file; the whole file is checked before anything runs.

    The language is taken from the file's name where that follows Universal Dependencies
    (``en_ewt-ud-test.conllu``).
    """
    path = Path(path)
    stated = _UD_NAME.match(path.name)
    sentences = read_treebank(path)
    held = list(islice(sentences, HELD + 1))
    n_sentences, note = note_of_multiword(chain(held, sentences))  # reads and checks all of it
    _refuse_none(path, n_sentences)
    if n_sentences > HELD:
        held.clear()
    return Corpus(
        name=str(path),
        sha256=sha256_of_file(path),
        n_sentences=n_sentences,
        read=lambda: iter(held) if held else read_treebank(path),
        has_trees=True,
        language=stated[1] if stated else None,
        note=note,
    )


def open_text(path: str | Path) -> Corpus:
    """Open plain text: one sentence or paragraph a line; lines without a word are skipped.

    In a table the sentences are read, in translations the sources.
    """
    path = Path(path)
    if path.suffix.lower() not in TABLES:
        refuse_table(path)
        return _opened(path, lambda: (line for _, line in read_prose(path) if has_word(line)))

    def read() -> Iterator[str]:
        for _, row in read_records(path, SENTENCES):
            yield from filter(has_word, (row["sentence"], row.get("sentence2", "")))

    corpus = _opened(path, read)
    return dataclasses.replace(corpus, table=path, notes=notes_on(path, SENTENCES))


def _opened(path: Path, read: Callable[[], Iterator[str | Sentence]]) -> Corpus:
    """Read a file once, which checks it, and count what it holds."""
    n_sentences = sum(1 for _ in read())
    _refuse_none(path, n_sentences)
    return Corpus(name=str(path), sha256=sha256_of_file(path), n_sentences=n_sentences, read=read)


def _refuse_none(path: Path, n_sentences: int) -> None:
    if n_sentences == 0:
        raise CorpusError(f"{path} holds no sentence; give a file with at least one.")


def open_pairs(path: str | Path) -> Corpus:
    """Open a table of pairs: columns source and target; the whole file is checked.

    Without a header line, a row of two columns is a source and its target.
    """
    path = Path(path)

    def read() -> Iterator[Pair]:
        for _, cells in read_records(path, TRANSLATIONS):
            yield cells["source"].strip(), cells["target"].strip()

    return corpus_of_pairs(str(path), sha256_of_file(path), read)


def corpus_of_pairs(name: str, sha256: str, pairs: Callable[[], Iterator[Pair]]) -> Corpus:
    """Count what one pass over pairs yields, and make a corpus of them."""
    source_has_word = [has_word(source) for source, _ in pairs()]
    if not source_has_word:
        raise CorpusError(f"{name} holds no pair; give a file with at least one.")

    def sources() -> Iterator[str]:
        return (source for source, _ in pairs() if has_word(source))

    return Corpus(
        name=name,
        sha256=sha256,
        n_sentences=sum(source_has_word),
        read=sources,
        pairs=pairs,
        n_pairs=len(source_has_word),
    )


@functools.cache
def sample_corpus() -> Corpus:
    """Open the built-in English sample treebank, written for headscope; it is read once."""
    sentences = tuple(read_treebank(SAMPLE))
    note = (
        f"{len(sentences) - ANNOTATED} of the {len(sentences)} sentences of the built-in sample "
        "come from a grammar; counts on real text differ."
    )
    return Corpus(
        name="built-in sample (mostly generated)",
        sha256=sha256_of_file(SAMPLE),
        n_sentences=len(sentences),
        read=lambda: iter(sentences),
        has_trees=True,
        language="en",
        note=note,
    )


#: A corpus in any form that a caller may have it in.
AnyCorpus = Corpus | str | Path | Sequence[Sentence | str | Pair] | None


def as_corpus(corpus: AnyCorpus) -> Corpus:
    """Take a corpus in any form: None (the sample), a path; lines, sentences or pairs in memory.

    A path that ends in ``.conllu`` is a treebank, any other is plain text or a table. Whether a
    table is read as sentences or as pairs depends on the model: ``session/texts.py`` decides it.
    """
    if corpus is None:
        return sample_corpus()
    if isinstance(corpus, Corpus):
        return corpus
    if isinstance(corpus, str | Path):
        is_treebank = Path(corpus).suffix.lower() in TREEBANKS
        return open_treebank(corpus) if is_treebank else open_text(corpus)
    rows = list(corpus)
    if rows and isinstance(rows[0], tuple):
        pairs = [_checked_pair(i, row) for i, row in enumerate(rows)]
        return corpus_of_pairs("in memory", sha256_of(repr(pairs)), lambda: iter(pairs))
    return _corpus_in_memory(rows)


def _corpus_in_memory(rows: Sequence[object]) -> Corpus:
    """Make a corpus of lines and sentences; those without a word are left out."""
    lines_and_sentences: list[str | Sentence] = []
    for row in rows:
        if not isinstance(row, str | Sentence):
            raise CorpusError("The corpus in memory has rows that are no text; leave them out.")
        is_filled = has_word(row) if isinstance(row, str) else bool(row.words)
        if is_filled:
            lines_and_sentences.append(row)
    if not lines_and_sentences:
        raise CorpusError("The corpus holds no sentence; give at least one.")
    if all(isinstance(row, str) for row in lines_and_sentences):
        return Corpus(
            name="in memory",
            sha256=sha256_of(repr(lines_and_sentences)),
            n_sentences=len(lines_and_sentences),
            read=lambda: iter(lines_and_sentences),
        )
    sentences = [sentence_of(row) if isinstance(row, str) else row for row in lines_and_sentences]
    digest = sha256_of(repr(sentences))
    has_trees = all(sentence.heads is not None for sentence in sentences)
    if not has_trees:  # trees of some sentences alone would make a treebank of another size
        sentences = [Sentence(sentence.words, written=sentence.written) for sentence in sentences]
    return Corpus(
        name="in memory",
        sha256=digest,
        n_sentences=len(sentences),
        read=lambda: iter(sentences),
        has_trees=has_trees,
    )


def _checked_pair(i: int, pair: object) -> Pair:
    texts = [str(text).strip() for text in pair] if isinstance(pair, tuple | list) else []
    if len(texts) != 2 or not all(texts):
        raise CorpusError(f"Pair {i + 1} in memory is not a source and a target; give both texts.")
    return texts[0], texts[1]


def as_plain(text: AnyCorpus) -> Corpus:
    """Take a text as :func:`as_corpus` does; a path is one of plain text or of a table."""
    return open_text(text) if isinstance(text, str | Path) else as_corpus(text)
