"""Sentences, their words and where these stand in a text; reading the lines of a file."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import Generic, NamedTuple, TextIO, TypeVar

import regex

from headscope.core.errors import CorpusError

#: What may stand inside a word: joiners, spaces of no width, marks of direction, and hyphens that
#: show only where a line ends.
_INSIDE = r"[\u00ad\u061c\u200b-\u200f\u2060\ufeff]"
_LETTERS = r"[\p{L}\p{M}\p{N}]+"
_LETTERS_AND_LINES = r"[\p{L}\p{M}\p{N}_]+"  # "snake_case" is one word
#: An emoji may have a shade of skin, a form (U+FE0F), or be joined of several.
_SYMBOL = r"[\p{P}\p{S}][\p{M}\U0001f3fb-\U0001f3ff]*"
_WORD = regex.compile(
    rf"{_LETTERS_AND_LINES}(?:{_INSIDE}+{_LETTERS_AND_LINES})*"
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
Edge = tuple[int, int, str]  # Two words of a sentence, and how they belong together.
Span = tuple[int, int]  # Where something begins and ends in a text.
ROOT = -1  # Head of the word that a sentence hangs from.
NO_HEAD = -2  # Head of a word whose head was left out.


class Written(NamedTuple):
    """A text, and where the words of a sentence stand in it."""

    text: str
    spans: tuple[Span, ...]  # Of each word, in order; words of one written word have the same
    #: Whether the words were looked for in plain text, so that where they begin is a guess
    guessed: bool = False


@dataclass(frozen=True)
class Sentence:
    """Words and, in a treebank, their heads, or pairs of them that a user has labelled."""

    words: tuple[str, ...]  # In order, punctuation marks included; none is empty
    #: For each word the zero-based index of its head, or :data:`ROOT` or :data:`NO_HEAD`
    heads: tuple[int, ...] | None = None
    #: For each word the relation to its head, without subtype (``nsubj:pass`` is ``nsubj``)
    relations: tuple[str, ...] | None = None
    #: Labelled pairs of words, (from, to, label), each once; None where there are no such pairs
    pairs: tuple[Edge, ...] | None = field(default=None, repr=False)
    #: The text as it was written; None of words that are joined by one space
    written: Written | None = field(default=None, compare=False, repr=False)

    @property
    def edges(self) -> tuple[Edge, ...] | None:
        """The pairs, or (word, its head, relation) of a tree; None of plain text."""
        if self.pairs is not None or self.heads is None or self.relations is None:
            return self.pairs
        named = enumerate(zip(self.heads, self.relations, strict=True))
        return tuple((word, head, name) for word, (head, name) in named if head >= 0)

    @property
    def text(self) -> str:
        """The text that a model reads."""
        return " ".join(self.words) if self.written is None else self.written.text

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where each word stands in :attr:`text`."""
        if self.written is not None:
            return self.written.spans
        lengths = [len(word) for word in self.words]
        stops = accumulate(lengths, lambda stop, length: stop + 1 + length)
        return tuple((stop - n, stop) for stop, n in zip(stops, lengths, strict=True))

    @property
    def guessed(self) -> bool:
        """Whether it is plain text, of which nobody has said where words begin and end."""
        return self.written is not None and self.written.guessed

    @property
    def unspaced(self) -> bool:
        """Whether it is plain text in a script that puts no space between words."""
        return self.guessed and _UNSPACED.search(self.text) is not None

    def keep(self, words: Sequence[int]) -> Sentence:
        """Return the sentence with some of its words alone, and the edges between these."""
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
        """Return plain text with its words joined: a word for each (first, behind the last)."""
        assert self.written is not None
        spans = self.written.spans
        joined = tuple((spans[first][0], spans[behind - 1][1]) for first, behind in groups)
        words = tuple(self.text[begin:stop] for begin, stop in joined)
        return Sentence(words, written=self.written._replace(spans=joined))


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
        with_other_text = [pair for pair in latest if pair[0] != text]
        self._latest[size] = [(text, item), *with_other_text[:1]]
        return with_other_text[0][1] if with_other_text else None


def is_punctuation(word: str) -> bool:
    """Whether a word has only punctuation marks and symbols (Unicode categories P and S).

    Marks upon them and joiners between them (M and Cf), as emoji have them, do not count.
    """
    categories = [unicodedata.category(char) for char in word]
    seen = [category for category in categories if category[0] != "M" and category != "Cf"]
    return bool(seen) and all(category[0] in "PS" for category in seen)


def punctuation_spans(text: str) -> list[bool]:
    """Whether each character of plain text belongs to a word that is punctuation."""
    marks = [False] * len(text)
    for word in _WORD.finditer(text):
        if is_punctuation(word[0]):
            marks[word.start() : word.end()] = [True] * len(word[0])
    return marks


# --- reading files ---

TREEBANKS = (".conllu", ".conll", ".conllup")  # Endings of treebanks.
#: First bytes of files that hold no text: what they are, and what to do with them.
_NO_TEXT = (
    (b"\x1f\x8b", "compressed (gzip)", "unpack it first (gunzip)"),
    (b"BZh9", "compressed (bzip2)", "unpack it first (bunzip2)"),
    (b"\xfd7zXZ\x00", "compressed (xz)", "unpack it first (unxz)"),
    (b"\x28\xb5\x2f\xfd", "compressed (zstd)", "unpack it first (unzstd)"),
    (b"PK\x03\x04", "a spreadsheet or a zip archive", "save the sheet as CSV, or unpack it"),
    (b"\xd0\xcf\x11\xe0", "a document of an office program", "save it as CSV or plain text"),
    (b"PAR1\x15", "a Parquet table", "save its rows as JSON lines (.jsonl)"),
    (b"ARROW1\x00", "an Arrow table", "save its rows as JSON lines (.jsonl)"),
    (b"%PDF-", "a PDF", "save its text"),
    (b"SQLite format 3\x00", "a database", "save the table as CSV"),
)
#: Marks of an encoding at the beginning of a file; those of UTF-32 begin like those of UTF-16.
_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_UTF8 = "utf-8-sig"
_UNDECODED = re.compile("[\ud800-\udfff]")  # Bytes that are not UTF-8, once they are escaped
_CHUNK = 1 << 16  # Bytes or characters that are looked at together


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a file.

    It is UTF-8, or what its byte order mark says. Lines end in LF or CRLF, and in CR where the file
    has no LF; no other character ends a line.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CorpusError(f"{path} is not a file on disk and cannot be read twice; save it first.")
    try:
        with path.open("rb") as file:
            head = file.read(_CHUNK)
    except FileNotFoundError:
        raise CorpusError(f"There is no file {path}; check the path.") from None
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror}); give a text file.") from None
    _refuse_no_text(path, head)
    encoding = next((name for mark, name in _MARKS if head.startswith(mark)), _UTF8)
    number = 0
    try:
        with _opened(path, encoding, _line_end(path, encoding)) as file:
            for number, line in enumerate(file, start=1):
                if not line.isascii() and _UNDECODED.search(line):
                    raise CorpusError(
                        f"{path}, line {number}: not UTF-8; convert the file (iconv -t UTF-8)."
                    )
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError:
        raise CorpusError(
            f"{path} begins as {encoding.upper()}, but what follows line {number} is not; convert "
            "the file to UTF-8."
        ) from None


def _refuse_no_text(path: Path, head: bytes) -> None:
    """Refuse archives, spreadsheets and the like by their first bytes."""
    for mark, kind, mend in _NO_TEXT:
        if head.startswith(mark):
            raise CorpusError(f"{path} is {kind}, not text; {mend}.")
    marked = any(head.startswith(mark) for mark, _ in _MARKS)
    if not marked and 4 * head.count(0) >= len(head) > 1:
        raise CorpusError(
            f"{path} is not UTF-8: a quarter of its bytes or more are zero, as in UTF-16 without a "
            "byte order mark; convert the file (iconv -f UTF-16LE -t UTF-8)."
        )


def _opened(path: Path, encoding: str, line_end: str) -> TextIO:
    """Open a text; bytes that are not UTF-8 become characters that can be found in their line."""
    errors = "surrogateescape" if encoding == _UTF8 else "strict"
    return path.open(encoding=encoding, errors=errors, newline=line_end)


def _line_end(path: Path, encoding: str) -> str:
    """Return what ends a file's lines: LF (or CRLF), or CR where there is no LF at all."""
    has_returns = False
    with _opened(path, encoding, "") as file:
        while chunk := file.read(_CHUNK):
            if "\n" in chunk:
                return "\n"
            has_returns = has_returns or "\r" in chunk
    return "\r" if has_returns else "\n"


def read_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text that are not blank; refuse the columns of a treebank."""
    n_tree_rows = 0
    for number, line in read_filled(path):
        if _is_tree_row(line):
            n_tree_rows += 1
        if n_tree_rows == 2:
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


def _is_tree_row(line: str) -> bool:
    """Whether a line has the ten columns of CoNLL-U, with numbers of a word and of its head."""
    cells = line.split("\t")
    if len(cells) != 10 or not cells[0].isdecimal():
        return False
    return cells[6].isdecimal() or cells[6] == "_"


def read_filled(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what :func:`read_lines` yields, without blank lines."""
    return (numbered for numbered in read_lines(path) if numbered[1].strip())


def read_blocks(path: Path) -> Iterator[list[tuple[int, str]]]:
    """Yield the lines between blank lines together, as :func:`read_lines` yields them."""
    for blank, block in groupby(read_lines(path), key=lambda numbered: not numbered[1].strip()):
        if not blank:
            yield list(block)
