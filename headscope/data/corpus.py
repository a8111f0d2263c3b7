"""A corpus: sentences, or pairs of texts, read again and again without being held in memory."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headscope.core.errors import CorpusError
from headscope.core.files import sha256_of, sha256_of_file
from headscope.data.files import (
    SENTENCES,
    TABLES,
    TRANSLATIONS,
    TREEBANKS,
    Sentence,
    has_word,
    read_prose,
    read_records,
    read_treebank,
    split_words,
)

SAMPLE = Path(__file__).with_name("sample.conllu")
#: Sentences of the sample that people wrote and annotated; a seeded grammar made the others.
ANNOTATED = 68
#: Universal Dependencies names its files LANGUAGE_TREEBANK-ud-SPLIT.conllu.
_UD_NAME = re.compile(r"([a-z]{2,3})_[a-z0-9]+-ud-")


Pair = tuple[str, str]  # A source and its target.
#: Words of the source and of the target that belong together: (source, target, whether it is sure).
Links = tuple[tuple[int, int, bool], ...]
Spans = tuple[tuple[int, int], ...]  # Where words begin and end in a text.
WINDOW = 2048  # Sentences that are read and sorted by length together, by a single process.


class AlignedPair(NamedTuple):
    """A source and its target, with the words of both and how they are aligned."""

    source: str
    target: str
    words: tuple[Spans, Spans]  # Of the source, of the target
    links: Links
    half: int  # 0 or 1, as of sentences
    swapped: Links  # Of the last pair before it with as many words on both sides: a control


@dataclass(frozen=True)
class Corpus:
    """Sentences, where they come from, and what is known about them.

    Pairs of source and target are a corpus with two columns: iterating yields the sentences of the
    first column, the sources that have a word, and :attr:`pairs` starts a pass over both.
    """

    name: str  # The path as given, or that of the built-in sample
    sha256: str  # Of the file's bytes (of the words and trees, for sentences handed over in memory)
    n_sentences: int  # What one pass yields, at least 1 unless there are pairs
    has_trees: bool  # Whether sentences carry gold dependency trees
    language: str | None  # ISO code, where the corpus states it
    read: Callable[[], Iterator[Sentence]]  # Starts a new pass over the sentences
    note: str = ""  # What a reader of any count on this corpus should know; mostly empty
    #: The file, if its rows may be pairs of source and target for a model that reads such
    table: Path | None = None
    pairs: Callable[[], Iterator[Pair]] | None = None  # Starts a new pass over (source, target)
    n_pairs: int = 0
    labels: tuple[str, ...] = ()  # Of a user's own pairs of words, or of the links of alignments
    characters: bool = False  # Whether every character of a sentence is a word of its own
    #: Starts a new pass over the same pairs with their alignments, where there are some
    aligned: Callable[[], Iterator[AlignedPair]] | None = None

    def __iter__(self) -> Iterator[Sentence]:
        return self.read()

    @property
    def n_rows(self) -> int:
        """Pairs where there are pairs, else sentences."""
        return self.n_pairs or self.n_sentences

    @property
    def sources(self) -> Corpus:
        """The sentences alone."""
        return dataclasses.replace(self, pairs=None, n_pairs=0, labels=(), aligned=None)

    def labels_of(self, stack: str) -> tuple[str, ...]:
        """Return the labels that heads of a stack are scored for."""
        return self.labels if stack == ("cross" if self.n_pairs else "encoder") else ()


def open_treebank(path: str | Path) -> Corpus:
    """Open a CoNLL-U file; the whole file is checked before anything runs.

    The language is taken from the file's name where that follows Universal Dependencies
    (``en_ewt-ud-test.conllu``).
    """
    path = Path(path)
    stated = _UD_NAME.match(path.name)
    n, language = sum(1 for _ in read_treebank(path)), stated[1] if stated else None
    return _of_file(path, n, lambda: read_treebank(path), has_trees=True, language=language)


def open_text(path: str | Path) -> Corpus:
    """Open plain text: one sentence a line, lines without a word skipped, cut by split_words."""
    path = Path(path)
    n = sum(has_word(line) for _, line in read_prose(path))

    def read() -> Iterator[Sentence]:
        return (Sentence(words) for _, line in read_prose(path) if (words := split_words(line)))

    return _of_file(path, n, read, table=path if path.suffix.lower() in TABLES else None)


def _of_file(
    path: Path,
    n: int,
    read: Callable[[], Iterator[Sentence]],
    *,
    has_trees: bool = False,
    language: str | None = None,
    table: Path | None = None,
) -> Corpus:
    if n == 0:
        raise CorpusError(f"{path} holds no sentence; give a file with at least one.")
    digest = sha256_of_file(path)
    return Corpus(str(path), digest, n, has_trees, language, read, table=table)


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
    n_pairs = sum(1 for _ in pairs())
    n_sources = sum(has_word(source) for source, _ in pairs())
    if n_pairs == 0:
        raise CorpusError(f"{name} holds no pair; give a file with at least one.")

    def sources() -> Iterator[Sentence]:
        return (Sentence(words) for source, _ in pairs() if (words := split_words(source)))

    return Corpus(name, sha256, n_sources, False, None, sources, pairs=pairs, n_pairs=n_pairs)


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
        has_trees=True,
        language="en",
        read=lambda: iter(sentences),
        note=note,
    )


def as_corpus(corpus: Corpus | str | Path | Sequence[Sentence | str] | None) -> Corpus:
    """Take a corpus in any form: None (the sample), a path, or sentences in memory.

    A path that ends in ``.conllu`` is a treebank, any other is plain text.
    """
    if corpus is None:
        return sample_corpus()
    if isinstance(corpus, Corpus):
        return corpus
    if isinstance(corpus, str | Path):
        is_treebank = Path(corpus).suffix.lower() in TREEBANKS
        return open_treebank(corpus) if is_treebank else open_text(corpus)
    sentences = [Sentence(split_words(item)) if isinstance(item, str) else item for item in corpus]
    sentences = [sentence for sentence in sentences if sentence.words]
    if not sentences:
        raise CorpusError("The corpus holds no sentence; give at least one.")
    digest = sha256_of(repr(sentences))
    has_trees = all(sentence.heads is not None for sentence in sentences)
    if not has_trees:  # trees of some sentences alone would make a treebank of another size
        sentences = [Sentence(sentence.words) for sentence in sentences]
    return Corpus("in memory", digest, len(sentences), has_trees, None, lambda: iter(sentences))


@dataclass(frozen=True)
class PlainText:
    """Lines of text that can be read again and again without being held in memory."""

    name: str  # The path as given, or ``built-in sample``
    sha256: str  # Of the file's bytes
    n_lines: int  # Lines that are not blank
    read: Callable[[], Iterator[str]]  # Starts a new pass over those lines

    def __iter__(self) -> Iterator[str]:
        return self.read()

    def first(self, limit: int | None) -> PlainText:
        """Return the first lines alone; all of them without a limit."""
        if limit is None or limit >= self.n_lines:
            return self
        return dataclasses.replace(
            self, n_lines=limit, read=lambda: itertools.islice(self.read(), limit)
        )


def open_plain(path: str | Path | None) -> PlainText:
    """Open a UTF-8 text file, one sentence or paragraph a line; None opens the built-in sample.

    In a table the sentences are read, in translations the sources.
    """
    if path is None:
        return sample_plain()
    path = Path(path)

    def lines() -> Iterator[str]:
        return (line for _, line in read_prose(path))

    if path.suffix.lower() in TABLES:
        rows = [cells for _, cells in read_records(path, SENTENCES)]
        both = [text for row in rows for text in (row["sentence"], row.get("sentence2", ""))]
        lines = functools.partial(iter, [text for text in both if text.strip()])
    if (n_lines := sum(1 for _ in lines())) == 0:
        raise CorpusError(f"{path} holds no text; give a file with at least one line.")
    return PlainText(str(path), sha256_of_file(path), n_lines, lines)


def as_plain(text: PlainText | str | Path | Sequence[str] | None) -> PlainText:
    """Take a text in any form: None (the sample), a path, or lines in memory."""
    if isinstance(text, PlainText):
        return text
    if text is None or isinstance(text, str | Path):
        return open_plain(text)
    lines = [line for line in text if line.strip()]
    if not lines:
        raise CorpusError("The text holds no line that is not blank; give at least one.")
    return PlainText("in memory", sha256_of(repr(lines)), len(lines), lambda: iter(lines))


def sample_plain() -> PlainText:
    """Open the sentences of the built-in sample treebank, words joined by spaces."""
    return plain_of(sample_corpus())


def plain_of(corpus: Corpus) -> PlainText:
    """Read a corpus as plain text, one sentence a line, words joined by spaces."""
    return PlainText(
        corpus.name, corpus.sha256, corpus.n_sentences, lambda: (item.text for item in corpus)
    )
