"""Pairs of source and target: a corpus for models that read the one and write the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headscope.core.errors import CorpusError
from headscope.core.files import sha256_of, sha256_of_file
from headscope.data.corpus import Corpus
from headscope.data.examples import TRANSLATIONS, Examples
from headscope.data.records import read_records
from headscope.data.sentence import Sentence, split_words

#: A source and its target.
Pair = tuple[str, str]


@dataclass(frozen=True)
class PairCorpus:
    """Pairs that can be read again and again without being held in memory.

    Attributes
    ----------
    name : str
        The path as given, or ``in memory``.
    sha256 : str
        Of the file's bytes, or of the pairs.
    n_pairs : int
        What one pass yields, at least 1.
    n_sources : int
        Pairs whose source has a word.
    read : callable
        Starts a new pass over the pairs.
    """

    name: str
    sha256: str
    n_pairs: int
    n_sources: int
    read: Callable[[], Iterator[Pair]]

    def __iter__(self) -> Iterator[Pair]:
        return self.read()

    @property
    def sources(self) -> Corpus:
        """The sources alone, as sentences without trees."""
        return Corpus(self.name, self.sha256, self.n_sources, False, None, self._sources)

    def _sources(self) -> Iterator[Sentence]:
        return (Sentence(words) for source, _ in self if (words := split_words(source)))


def open_pairs(path: str | Path) -> PairCorpus:
    """Open a table of pairs: columns source and target; the whole file is checked.

    Without a header line, a row of two columns is a source and its target.

    Raises
    ------
    CorpusError
        With its line, for a row that has no source or no target.
    """
    path = Path(path)
    return _made(str(path), sha256_of_file(path), lambda: _read(path))


def pairs_in_memory(items: object) -> PairCorpus | None:
    """Take (source, target) tuples, or a table that was read; None for anything else.

    Raises
    ------
    CorpusError
        For a pair whose source or target is blank.
    """
    if isinstance(items, Examples) and items.second is not None:
        both = tuple(zip(items.first, items.second, strict=True))
        return _made(items.name, items.sha256, lambda: iter(both))
    if not isinstance(items, list | tuple) or not items or not all(map(_is_pair, items)):
        return None
    pairs = [(source.strip(), target.strip()) for source, target in items]
    if "" in (text for pair in pairs for text in pair):
        place = next(i for i, pair in enumerate(pairs) if "" in pair)
        raise CorpusError(f"Pair {place} (counted from 0) has no source or no target; give both.")
    return _made("in memory", sha256_of(repr(pairs)), lambda: iter(pairs))


def _is_pair(item: object) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and all(isinstance(x, str) for x in item)


def _read(path: Path) -> Iterator[Pair]:
    for _, cells in read_records(path, TRANSLATIONS):
        yield cells["source"].strip(), cells["target"].strip()


def _made(name: str, sha256: str, read: Callable[[], Iterator[Pair]]) -> PairCorpus:
    n_pairs = n_sources = 0
    for source, _ in read():
        n_pairs += 1
        n_sources += bool(split_words(source))
    if n_pairs == 0:
        raise CorpusError(f"{name} holds no pair; give a file with at least one.")
    return PairCorpus(name, sha256, n_pairs, n_sources, read)
