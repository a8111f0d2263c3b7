"""Sentences and their words; reading the lines of a file, with errors that say which line."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TextIO

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
