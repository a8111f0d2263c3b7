"""A sentence: its words, where they stand in the text, and the tree or the pairs between them.

First :class:`Sentence` itself, then how plain text is split into words, and what a word is made of.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import regex

#: What may stand inside a word: joiners, spaces of no width, marks of direction, and hyphens that
#: show only where a line ends.
_INSIDE = r"[\u00ad\u061c\u200b-\u200f\u2060\ufeff]"
_LETTERS = r"[\p{L}\p{M}\p{N}]+"
_LETTERS_AND_UNDERSCORES = r"[\p{L}\p{M}\p{N}_]+"  # "snake_case" is one word
#: An emoji may have a shade of skin, a form (U+FE0F), or be joined of several.
_SYMBOL = r"[\p{P}\p{S}][\p{M}\U0001f3fb-\U0001f3ff]*"
_WORD = regex.compile(
    rf"{_LETTERS_AND_UNDERSCORES}(?:{_INSIDE}+{_LETTERS_AND_UNDERSCORES})*"
    rf"(?:['\u2019]{_INSIDE}*{_LETTERS}(?:{_INSIDE}+{_LETTERS})*)*"
    r"|[\U0001f1e6-\U0001f1ff]{2}"  # the two letters of a flag
    rf"|{_SYMBOL}(?:\u200d{_SYMBOL})*"
)
#: Scripts that are written without spaces between words: their line breaks need a dictionary (SA:
#: Thai, Lao, Khmer, Myanmar and others), or they are listed.
_UNSPACED = regex.compile(
    r"[\p{lb=SA}\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}\p{Tibetan}\p{Javanese}"
    r"\p{Balinese}\p{Sundanese}\p{Phags_Pa}]"
)
#: Two words of a sentence by their indices, and how they belong together: ``(1, 2, "nsubj")``.
Edge = tuple[int, int, str]
Span = tuple[int, int]  # Where something begins and ends in a text.
ROOT = -1  # Head of the word that a sentence hangs from.
NO_HEAD = -2  # Head of a word whose head was left out.


class Written(NamedTuple):
    """A text, and where the words of a sentence stand in it."""

    text: str
    #: The span of each word, in order; words that are written as one (``zum``, for ``zu dem``)
    #: share their span
    spans: tuple[Span, ...]
    #: Whether the words were looked for in plain text, so that where they begin is a guess
    guessed: bool = False


@dataclass(frozen=True)
class Sentence:
    """Words and, in a treebank, their heads; or pairs of words that a user has labelled.

    "the cat sat" has heads (1, 2, ROOT) and relations ("det", "nsubj", "root").
    """

    words: tuple[str, ...]  # In order, punctuation marks included; none is empty
    #: For each word the zero-based index of its head, or :data:`ROOT` or :data:`NO_HEAD`
    heads: tuple[int, ...] | None = None
    #: For each word the relation to its head, without subtype (``nsubj:pass`` is ``nsubj``)
    relations: tuple[str, ...] | None = None
    #: Labelled pairs of words, (from, to, label), each once; None where there are no such pairs
    pairs: tuple[Edge, ...] | None = field(default=None, repr=False)
    #: The text as it was written; None where the text is the words with one space between them
    written: Written | None = field(default=None, compare=False, repr=False)

    @property
    def edges(self) -> tuple[Edge, ...] | None:
        """A user's pairs, or (word, its head, relation) of a tree; None of plain text."""
        if self.pairs is not None:
            return self.pairs
        if self.heads is None or self.relations is None:
            return None
        heads_and_relations = enumerate(zip(self.heads, self.relations, strict=True))
        return tuple(
            (word, head, relation) for word, (head, relation) in heads_and_relations if head >= 0
        )

    @property
    def text(self) -> str:
        """The text that a model reads."""
        return " ".join(self.words) if self.written is None else self.written.text

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where each word stands in :attr:`text`."""
        if self.written is not None:
            return self.written.spans
        spans = []
        begin = 0
        for word in self.words:
            stop = begin + len(word)
            spans.append((begin, stop))
            begin = stop + 1  # one space
        return tuple(spans)

    @property
    def guessed(self) -> bool:
        """Whether it is plain text, of which nobody has said where words begin and end."""
        return self.written is not None and self.written.guessed

    @property
    def unspaced(self) -> bool:
        """Whether it is plain text in a script that puts no space between words."""
        return self.guessed and _UNSPACED.search(self.text) is not None

    def keep(self, words: Sequence[int]) -> Sentence:
        """Return the sentence with some of its words alone, and the edges between these.

        ``words`` are indices, and are counted anew: of words [1, 2] the edge (1, 2, "obj") becomes
        (0, 1, "obj"). A word whose head is left out has NO_HEAD.
        """
        new_index = {word: new for new, word in enumerate(words)}
        shorter = Sentence(tuple(self.words[word] for word in words))
        if self.heads is not None:
            new_heads = {ROOT: ROOT, **new_index}
            heads = tuple(new_heads.get(self.heads[word], NO_HEAD) for word in words)
            shorter = replace(shorter, heads=heads)
        if self.relations is not None:
            relations = tuple(self.relations[word] for word in words)
            shorter = replace(shorter, relations=relations)
        if self.pairs is not None:
            pairs = tuple(
                (new_index[word], new_index[other], label)
                for word, other, label in self.pairs
                if word in new_index and other in new_index
            )
            shorter = replace(shorter, pairs=pairs)
        spans = tuple(self.spans[word] for word in words)
        return replace(shorter, written=Written(self.text, spans, self.guessed))

    def join(self, groups: Sequence[tuple[int, int]]) -> Sentence:
        """Return plain text with some of its words joined, in groups (first, behind the last).

        The words of "well - known fact" in the groups (0, 3) and (3, 4) become "well - known" and
        "fact".
        """
        assert self.written is not None  # plain text is always written
        spans = self.written.spans
        joined_spans = []
        for first, behind_last in groups:
            begin, _ = spans[first]
            _, stop = spans[behind_last - 1]
            joined_spans.append((begin, stop))
        words = tuple(self.text[begin:stop] for begin, stop in joined_spans)
        return Sentence(words, written=self.written._replace(spans=tuple(joined_spans)))


def split_words(line: str) -> tuple[str, ...]:
    """Split plain text into words.

    A word is a run of letters and digits, inner apostrophes and joiners kept, or one punctuation
    mark or symbol (an emoji may be made of several).
    """
    return tuple(_WORD.findall(line))


def sentence_of(line: str) -> Sentence:
    """Find the words of a line of plain text, as :func:`split_words` does."""
    matches = list(_WORD.finditer(line))
    spans = tuple(match.span() for match in matches)
    words = tuple(match[0] for match in matches)
    return Sentence(words, written=Written(line, spans, guessed=True))


def has_word(line: str) -> bool:
    """Whether :func:`split_words` finds a word."""
    return _WORD.search(line) is not None


def text_key(text: str) -> str:
    """Return what tells texts apart: the text without spaces and in lower case."""
    return "".join(text.casefold().split())


def is_punctuation(word: str) -> bool:
    """Whether a word has only punctuation marks and symbols (Unicode categories P and S).

    Marks upon them and joiners between them (M and Cf), as emoji have them, do not count.
    """
    categories = [unicodedata.category(char) for char in word]
    counted = [category for category in categories if category[0] != "M" and category != "Cf"]
    return bool(counted) and all(category[0] in "PS" for category in counted)


def punctuation_spans(text: str) -> list[bool]:
    """Whether each character of plain text belongs to a word that is punctuation."""
    marks = [False] * len(text)
    for word in _WORD.finditer(text):
        if is_punctuation(word[0]):
            marks[word.start() : word.end()] = [True] * len(word[0])
    return marks
