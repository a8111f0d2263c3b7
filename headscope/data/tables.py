"""Tables of texts with labels, scores or targets, read by their header; errors say which line."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headscope.core.errors import CorpusError
from headscope.data.files import read_filled, read_lines

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
