"""One sentence: its words, how plain text is cut into words, and its gold tree if there is one."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import regex

_WORD = regex.compile(r"[\p{L}\p{M}\p{N}_]+(?:['\u2019][\p{L}\p{M}\p{N}]+)*|[\p{P}\p{S}]")


@dataclass(frozen=True)
class Sentence:
    """Words and, in a treebank, their heads."""

    words: tuple[str, ...]  # In order, punctuation marks included; none is empty
    #: For each word the zero-based index of its head, -1 for the root
    heads: tuple[int, ...] | None = None
    #: For each word the relation to its head, without subtype (``nsubj:pass`` is ``nsubj``)
    relations: tuple[str, ...] | None = None

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
