"""Sentences and their words; reading the lines of a file, with errors that say which line."""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Generic, TypeVar

import regex

from headscope.core.errors import CorpusError

_WORD = regex.compile(r"[\p{L}\p{M}\p{N}_]+(?:['\u2019][\p{L}\p{M}\p{N}]+)*|[\p{P}\p{S}]")
Edge = tuple[int, int, str]  # Two words of a sentence, and how they belong together.


@dataclass(frozen=True)
class Sentence:
    """Words and, in a treebank, their heads, or pairs of them that a user has labelled."""

    words: tuple[str, ...]  # In order, punctuation marks included; none is empty
    #: For each word the zero-based index of its head, -1 for the root
    heads: tuple[int, ...] | None = None
    #: For each word the relation to its head, without subtype (``nsubj:pass`` is ``nsubj``)
    relations: tuple[str, ...] | None = None
    #: Labelled pairs of words, (from, to, label), each once; None where there are no such pairs
    pairs: tuple[Edge, ...] | None = field(default=None, repr=False)

    @property
    def edges(self) -> tuple[Edge, ...] | None:
        """The pairs, or (word, its head, relation) of a tree; None of plain text."""
        if self.pairs is not None or self.heads is None or self.relations is None:
            return self.pairs
        named = enumerate(zip(self.heads, self.relations, strict=True))
        return tuple((word, head, name) for word, (head, name) in named if head >= 0)

    @property
    def text(self) -> str:
        """The words joined by spaces."""
        return " ".join(self.words)


def split_words(line: str) -> tuple[str, ...]:
    """Split plain text into words.

    A word is a run of letters and digits, inner apostrophes kept, or one punctuation mark or
    symbol.
    """
    return tuple(_WORD.findall(line))


def has_word(line: str) -> bool:
    """Whether :func:`split_words` finds a word."""
    return _WORD.search(line) is not None


def text_key(text: str) -> str:
    """Return a text without spaces and in one case: corpora differ in these."""
    return "".join(text.casefold().split())


Item = TypeVar("Item")


class LastOther(Generic[Item]):
    """Finds for each item of a corpus the last one before it of its size, with another text."""

    def __init__(self) -> None:
        #: By size: the latest item with its text, and the latest before it with another text
        self._latest: dict[Hashable, list[tuple[Hashable, Item]]] = {}

    def before(self, item: Item, size: Hashable, text: Hashable) -> Item | None:
        """Return that other item, None if there is none, and remember this one."""
        latest = self._latest.get(size, [])
        others = [earlier for earlier in latest if earlier[0] != text]
        self._latest[size] = [(text, item), *others[:1]]
        return others[0][1] if others else None


def is_punctuation(word: str) -> bool:
    """Whether every character of a word is punctuation or a symbol (Unicode categories P, S)."""
    return bool(word) and all(unicodedata.category(char)[0] in "PS" for char in word)


def punctuation_spans(text: str) -> list[bool]:
    """Whether each character of plain text belongs to a word that is punctuation."""
    marks = [False] * len(text)
    for word in _WORD.finditer(text):
        if is_punctuation(word[0]):
            marks[word.start() : word.end()] = [True] * len(word[0])
    return marks


TREEBANKS = (".conllu", ".conll")  # Endings of treebanks.


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a UTF-8 file."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CorpusError(f"{path} is not a file on disk and cannot be read twice; save it first.")
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise CorpusError(f"There is no file {path}; check the path.") from None
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror}); give a text file.") from None
    with file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise CorpusError(
                    f"{path}, line {number}: not UTF-8; convert the file (iconv -t UTF-8)."
                ) from None
            yield number, line.rstrip("\r\n")


def read_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text that are not blank; refuse the columns of a treebank."""
    rows = 0
    for number, line in read_filled(path):
        cells = line.split("\t")  # A row of CoNLL-U has ten, the first of them a word's number.
        if len(cells) == 10 and cells[0].isdecimal():
            rows += cells[6].isdecimal() or cells[6] == "_"
        if rows == 2:
            mend = (
                "give it as treebank in place of text"
                if path.suffix.lower() in TREEBANKS
                else "name the file .conllu and give it as a treebank"
            )
            raise CorpusError(
                f"{path}, line {number}: this looks like CoNLL-U, columns of a treebank in place "
                f"of sentences; {mend}, or give one sentence a line."
            )
        yield number, line


def read_filled(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what :func:`read_lines` yields, without blank lines."""
    return (numbered for numbered in read_lines(path) if numbered[1].strip())


def read_blocks(path: Path) -> Iterator[list[tuple[int, str]]]:
    """Yield the lines between blank lines together, as :func:`read_lines` yields them."""
    for blank, block in groupby(read_lines(path), key=lambda numbered: not numbered[1].strip()):
        if not blank:
            yield list(block)
