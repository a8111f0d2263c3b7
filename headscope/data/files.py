"""Sentences and their words; reading lines, tables and treebanks, with errors that say which line.

CoNLL-U is read strictly: a tree that is not one is refused. Words are the rows with integer ids;
multiword ranges (``3-4``) and empty nodes (``5.1``) are passed over.

References
----------
https://universaldependencies.org/format.html
"""

from __future__ import annotations

import csv
import json
import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

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


TABLES = (".csv", ".tsv", ".jsonl")  # Endings of files that are read as tables.
Record = tuple[int, dict[str, str]]  # One row: its line number (from 1) and its cells by column.


@dataclass(frozen=True)
class Columns:
    """What columns may be called, and their order in a file without a header."""

    #: For each column, in lower case, the names that a header may give it; the first is ours
    names: dict[str, tuple[str, ...]]
    #: For each number of cells in a row, which columns they are when there is no header
    order: dict[int, tuple[str, ...]]
    needed: tuple[str, ...]  # Columns that every row must have

    def find(self, cell: str) -> str | None:
        """Return the column that a header cell names, if it names one."""
        wanted = cell.strip().lower()
        return next((column for column, names in self.names.items() if wanted in names), None)


#: What columns with the first and the second sentence of a row may be called.
FIRST = ("sentence", "sentence1", "text", "text1", "premise", "question", "question1")
SECOND = ("sentence2", "text2", "hypothesis", "question2")
#: Sentences without labels; of translations the sources.
SENTENCES = Columns(
    names={"sentence": (*FIRST, "source"), "sentence2": SECOND},
    order={1: ("sentence",), 2: ("sentence", ""), 3: ("sentence", "sentence2", "")},
    needed=("sentence",),
)
#: Pairs of source and target.
TRANSLATIONS = Columns(
    names={"source": ("source",), "target": ("target",)},
    order={2: ("source", "target")},
    needed=("source", "target"),
)


def read_records(path: Path, columns: Columns) -> Iterator[Record]:
    """Yield the rows of a file; its suffix says how it is written.

    ``.csv`` (quotes as usual), ``.tsv`` and anything else (tabs; quotes are part of the text), or
    ``.jsonl`` (one object a line). A header is recognised by its column names.
    """
    kind = path.suffix.lower()
    rows = _json_rows(path, columns) if kind == ".jsonl" else _cell_rows(path, columns)
    for line, cells in rows:
        for column in columns.needed:
            if not cells.get(column, "").strip():
                raise CorpusError(
                    f"{path}, line {line}: no {column}; give every row "
                    f"{' and '.join(columns.needed)}."
                )
        yield line, cells


def number_in(path: Path, line: int, column: str, text: str) -> float:
    """Read a cell that has to hold a finite number."""
    with suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    may_be_header = line == 1 and path.suffix.lower() != ".jsonl"
    hint = f" If line 1 is a header, call this column {column}." * may_be_header
    raise CorpusError(f"{path}, line {line}: the {column} {text.strip()!r} is not a number.{hint}")


def _cell_rows(path: Path, columns: Columns) -> Iterator[Record]:
    header: list[str | None] | None = None
    for i, (line, cells) in enumerate(_split(path)):
        if i == 0 and (header := _header(path, cells, columns)) is not None:
            continue
        if header is not None:
            named = zip(header, cells, strict=False)  # a short row is found by its gaps
            yield line, {column: cell for column, cell in named if column is not None}
            continue
        order = columns.order.get(len(cells))
        if order is None:
            raise CorpusError(
                f"{path}, line {line}: {len(cells)} column{'s' * (len(cells) != 1)} where "
                f"{' or '.join(map(str, columns.order))} are expected "
                f"({', '.join(columns.needed)}); a header line can name them."
            )
        yield line, dict(zip(order, cells, strict=True))


def _header(path: Path, cells: Sequence[str], columns: Columns) -> list[str | None] | None:
    """Return the column of each cell of a header; None if the row is not a header."""
    names = [columns.find(cell) for cell in cells]
    if not any(names):
        return None
    for column in columns.needed:
        if column not in names:
            raise CorpusError(
                f"{path}, line 1: the header has no column {column} (it has "
                f"{', '.join(cell.strip() or 'an empty one' for cell in cells)}); name the columns "
                f"{', '.join(columns.needed)}."
            )
    # A name given twice counts once, where it first stands.
    return [column if column not in names[:i] else None for i, column in enumerate(names)]


def _split(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of the rows that are not blank."""
    if path.suffix.lower() != ".csv":
        yield from ((number, line.split("\t")) for number, line in read_filled(path))
        return
    # A quoted cell may hold line breaks; the number is that of the line where its row ends.
    reader = csv.reader((line + "\n" for _, line in read_lines(path)), strict=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise CorpusError(
            f"{path}, line {reader.line_num}: not valid CSV ({error}); quote cells that hold "
            "commas or quotes, or save the file as TSV."
        ) from None


def _json_rows(path: Path, columns: Columns) -> Iterator[Record]:
    for number, line in read_filled(path):
        try:
            item = json.loads(line)
        except json.JSONDecodeError as error:
            raise CorpusError(f"{path}, line {number}: not valid JSON ({error.msg}).") from None
        except (ValueError, RecursionError):
            raise CorpusError(
                f"{path}, line {number}: JSON with a number of thousands of digits, or nested a "
                "thousand deep; give plain cells."
            ) from None
        if not isinstance(item, dict):
            raise CorpusError(f"{path}, line {number}: not a JSON object such as {{...}}.")
        named = ((columns.find(key), value) for key, value in item.items())
        cells: dict[str, str] = {}
        for column, value in named:
            if column is not None and value is not None:
                cells.setdefault(column, value if isinstance(value, str) else json.dumps(value))
        yield number, cells


class TreeRow(NamedTuple):
    """A word of a treebank."""

    line: int
    form: str
    tag: str  # Its universal part of speech
    head: str
    relation: str


def treebank_rows(path: Path) -> Iterator[list[TreeRow]]:
    """Yield the words of each sentence of a CoNLL-U file; whether they are a tree is not asked."""
    begun = False
    for block in read_blocks(path):
        rows: list[TreeRow] = []
        for number, line in block:
            if line.startswith("#"):
                continue
            if not begun and "\t" not in line:
                raise CorpusError(
                    f"{path}, line {number}: no columns that tabs split, so this is no treebank in "
                    "CoNLL-U; give plain text as text, or mend the treebank."
                )
            begun = True
            row = _read_row(path, number, line, expected=len(rows) + 1)
            if row is not None:
                rows.append(row)
        if rows:
            yield rows


_ROW_ID = re.compile(r"([1-9][0-9]*)|[1-9][0-9]*-[1-9][0-9]*|[0-9]+\.[1-9][0-9]*")
_HEAD = re.compile(r"[0-9]+")


def _mend(path: Path, line: int, what: str) -> CorpusError:
    return CorpusError(f"{path}, line {line}: {what}; mend the treebank there.")


def _read_row(path: Path, number: int, line: str, *, expected: int) -> TreeRow | None:
    """Read one row; None for multiword ranges and empty nodes."""
    cells = line.split("\t")
    if len(cells) != 10:
        what = f"{len(cells)} columns instead of 10 (they are split by tabs)"
        raise _mend(path, number, what)
    row_id = _ROW_ID.fullmatch(cells[0])
    if row_id is None:
        raise _mend(path, number, f"{cells[0]!r} is not a row id (such as 3, 3-4 or 3.1)")
    if row_id[1] is None:
        return None
    if row_id[1] != str(expected):
        raise _mend(path, number, f"row id {row_id[1]} where {expected} should follow")
    if not cells[1].strip():
        raise _mend(path, number, "the word's form is empty")
    return TreeRow(number, cells[1], cells[3], cells[6], cells[7].partition(":")[0])


def read_treebank(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a CoNLL-U file with their trees."""
    for rows in treebank_rows(path):
        heads, n, roots = list[int](), len(rows), 0
        for row_id, row in enumerate(rows, start=1):
            if not _HEAD.fullmatch(row.head):
                raise _mend(path, row.line, f"the head {row.head!r} is not a number")
            if len(row.head) > 9 or (head := int(row.head)) > n:
                raise _mend(path, row.line, f"head {row.head} is out of range 0..{n}")
            if head == row_id:
                raise _mend(path, row.line, f"word {row_id} is its own head")
            roots += head == 0
            if roots > 1:
                raise _mend(path, row.line, "a second root; a sentence has exactly one")
            heads.append(head - 1)
        # Following the heads upwards from every word must end at the root.
        safe: set[int] = {-1}
        for word in range(n):
            trail: list[int] = []
            while word not in safe:
                if word in trail:
                    words = " -> ".join(str(w + 1) for w in [*trail[trail.index(word) :], word])
                    raise _mend(path, rows[word].line, f"the heads run in a cycle: {words}")
                trail.append(word)
                word = heads[word]
            safe.update(trail)
        relations = tuple(row.relation for row in rows)
        yield Sentence(tuple(row.form for row in rows), tuple(heads), relations)
