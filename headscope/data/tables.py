"""Tables of texts with labels, scores or targets, read by their header; errors say which line.

``.csv`` has commas (or semicolons or tabs, where its header says so) and quotes; ``.jsonl``,
``.ndjson`` and ``.json`` have an object a line, or one array of objects; ``.tsv`` and anything else
have tabs, and quotes are part of the text. Every row has the width of the first.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from headscope.core.errors import CorpusError
from headscope.data.columns import (
    LABELS,
    PAIRS,
    SCORES,
    SINGLE,
    SOURCES,
    Columns,
    are_labels,
    is_number,
    listed,
    looks_like_header,
)
from headscope.data.files import read_filled, read_lines

JSON = (".jsonl", ".ndjson", ".json")  # Endings of files that hold JSON objects.
TABLES = (".csv", ".tsv", *JSON)  # Endings of files that are read as tables.
Record = tuple[int, dict[str, str]]  # One row: its line number (from 1) and its cells by column.
_Cells = tuple[int, list[str]]  # One row: the line where it ends, and its cells.

csv.field_size_limit(2**31 - 1)  # A cell may hold a whole document; the default is 131,072.

#: Sentences without labels; of translations the sources.
SENTENCES = Columns(
    names={},
    order={1: ("sentence",), 2: ("sentence", ""), 3: ("sentence", "sentence2", "")},
    needed=("sentence",),
    text_columns=("sentence", "sentence2"),
    tables=(*SINGLE, *PAIRS, *SOURCES),
    passed_over=(*LABELS, *SCORES),
)
#: Pairs of source and target.
TRANSLATIONS = Columns(
    names={"source": ("source",), "target": ("target",)},
    order={2: ("source", "target")},
    needed=("source", "target"),
)
_TEXT_COLUMNS = (
    "sentence",
    "sentence1",
    "sentence2",
    "text",
    "source",
    "target",
    "query",
    "document",
)
_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)+"')  # A cell in quotes with quotes in it, as CSV has them
_SEPARATOR_LINE = re.compile("sep=.", re.IGNORECASE)  # What spreadsheets put above a table
_COMMA = re.compile(r"\s*(?:,\s*|(?=\]))")
_SEMICOLONS = re.compile(r"\S;\S")
_FEW = 4  # Rows from which on values that repeat are noticed
_SEEN = 100  # Rows below the first that show whether it is a header.
_SEPARATED = {";": "semicolons", ",": "commas", "\t": "tabs"}


def read_records(path: Path, columns: Columns) -> Iterator[Record]:
    """Yield the rows of a file; its ending says how it is written.

    A header is recognised by its names. Without one the columns are those of ``columns.order``, and
    what reads like a header of unknown names is refused.
    """
    rows = _json_rows(path, columns) if path.suffix.lower() in JSON else _cell_rows(path, columns)
    for line, cells in rows:
        for column in columns.needed:
            if not cells.get(column, "").strip() and column not in columns.may_be_empty:
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
    hint = ""
    if line == 1 and path.suffix.lower() not in JSON:
        hint = f" If line 1 is a header, call this column {column}."
    elif "," in text:
        hint = " Write decimals with a point."
    raise CorpusError(f"{path}, line {line}: the {column} {text.strip()!r} is not a number.{hint}")


# --- rows of cells ---


def _cell_rows(path: Path, columns: Columns) -> Iterator[Record]:
    """Yield the rows of a table of cells by column."""
    separator = _separator(path, columns)
    rows = _same_width(path, columns, _split(path, separator))
    first = next(rows, None)
    if first is None:
        return
    seen = list(islice(rows, _SEEN))
    others = [cells for _, cells in seen]
    line, cells = first
    rows = chain(seen, rows)
    if columns.is_header(cells, others):
        places = columns.find(f"{path}, line {line}", cells)
    else:
        _refuse_json(path)
        _refuse_quoted(path, columns, cells)
        places = _unnamed(path, columns, first, others)
        rows = chain([first], rows)
    for line, cells in rows:
        yield line, {column: cells[i] for column, i in places.items() if i < len(cells)}


def _refuse_quoted(path: Path, columns: Columns, cells: Sequence[str]) -> None:
    """Refuse a header in quotes where quotes are part of the text."""
    if path.suffix.lower() != ".csv" and columns.name_in([cell.strip('"') for cell in cells]):
        raise CorpusError(
            f"{path}, line 1: the names stand in quotes, which are part of the text in this kind "
            "of file; name it .csv (tabs may stay), or save it without quotes."
        )


def _refuse_json(path: Path) -> None:
    """Refuse a file of another ending that begins with a JSON object."""
    line = next((line for _, line in read_filled(path)), "").strip()
    if line.startswith("{") and line.endswith("}"):
        with suppress(ValueError, RecursionError):
            json.loads(line)
            raise CorpusError(f"{path}, line 1: this is JSON, not a sentence; name it .jsonl.")


def header_of(path: Path, columns: Columns) -> tuple[str, ...] | None:
    """Return the names of a table's columns, of JSON the first object's; None without a header."""
    if path.suffix.lower() in JSON:
        _, item = next(_json_objects(path), (0, {}))
        return tuple(item) if columns.name_in(tuple(item)) else None
    rows = islice(_split(path, _separator(path, columns)), _SEEN + 1)
    first, *others = [cells for _, cells in rows] or [[]]
    return tuple(first) if columns.is_header(first, others) else None


def notes_on(path: Path, columns: Columns) -> tuple[str, ...]:
    """Say which columns of a table hold texts and are not read, and which cells stand in quotes.

    The first rows are looked at; the table has been read without an error.
    """
    names = header_of(path, columns)
    notes: list[str] = []
    if path.suffix.lower() in JSON:
        items = islice(_json_objects(path), _SEEN)
        rows: list[list[Any]] = [[item.get(name) for name in names or ()] for _, item in items]
    else:
        split = _split(path, _separator(path, columns))
        rows = [list(cells) for _, cells in islice(split, int(names is not None), _SEEN)]
    if names is not None:
        read = columns.find(str(path), names).values()
        unread = [
            repr(name.strip())
            for i, name in enumerate(names)
            if i not in read and not columns.passes_over(name) and _are_texts([r[i] for r in rows])
        ]
        if unread:
            notes.append(f"{path}: columns that hold text are not read: {', '.join(unread)}.")
    if path.suffix.lower() not in (*JSON, ".csv"):
        cells = chain.from_iterable(rows)
        quoted = next((cell for cell in cells if _QUOTED.fullmatch(cell)), None)
        if quoted is not None:
            notes.append(
                f"{path}: quotes are part of the text, also where cells are written as in CSV "
                f"({quoted[:40]}); name the file .csv if they only enclose cells."
            )
    return tuple(notes)


def refuse_table(path: Path) -> None:
    """Refuse a file of plain text that begins as a table: with a header, or a JSON object."""
    _refuse_json(path)
    line = next((line for _, line in read_filled(path)), "")
    for separator, kind in _SEPARATED.items():
        cells = line.split(separator)
        if len(cells) > 1 and all(SENTENCES.name_in([cell]) for cell in cells):
            raise CorpusError(
                f"{path}, line 1: this is the header of a table ({kind} between its names), not a "
                "sentence; name the file .csv or .tsv."
            )


def _are_texts(values: Sequence[Any]) -> bool:
    """Whether values are texts of three words or more on average."""
    counts = [len(value.split()) for value in values if isinstance(value, str)]
    return bool(counts) and sum(counts) >= 3 * len(counts)


def _separator(path: Path, columns: Columns) -> str:
    """Return what separates the cells of a file: of CSV the one by which the header has names."""
    is_csv = path.suffix.lower() == ".csv"
    usual = "," if is_csv else "\t"
    line = next((line for _, line in read_filled(path)), "")
    if is_csv and _SEPARATOR_LINE.fullmatch(line):
        raise CorpusError(f"{path}, line 1: this says what separates cells; take the line out.")

    def names(separator: str) -> int:
        try:
            cells = next(csv.reader([line], delimiter=separator), [])
        except csv.Error:
            return 0
        return len([cell for cell in cells if columns.name_in([cell])])

    best = max(_SEPARATED, key=names)
    if names(usual) > 0 or names(best) < (1 if is_csv else 2):
        return usual
    if not is_csv:
        raise CorpusError(
            f"{path}, line 1: the header has {_SEPARATED[best]} between its names; name the file "
            ".csv, or put tabs between the cells."
        )
    return best


def _same_width(path: Path, columns: Columns, rows: Iterator[_Cells]) -> Iterator[_Cells]:
    """Yield rows; refuse one that is wider or narrower than the first."""
    width = None
    for line, cells in rows:
        alone = columns.text_alone and len(cells) == 1
        width = len(cells) if width is None and not alone else width
        if len(cells) != width and not alone:
            mend = "give every row as many"
            if path.suffix.lower() == ".csv":
                mend = "quote cells with commas, and save lines of text as .txt"
            raise CorpusError(
                f"{path}, line {line}: {_counted(len(cells))} where the first row has {width}; "
                f"{mend}."
            )
        yield line, cells


def _counted(n: int) -> str:
    return f"{n} column" if n == 1 else f"{n} columns"


def _unnamed(
    path: Path, columns: Columns, first: _Cells, others: Sequence[Sequence[str]]
) -> dict[str, int]:
    """Return which cell is which column in a table without a header; refuse what is not clear."""
    line, cells = first
    where = f"{path}, line {line}"
    if columns.text_alone:
        others = [row for row in others if len(row) == len(cells)]
    if looks_like_header(cells, others):
        raise CorpusError(
            f"{where}: this reads like a header, and none of its names is known "
            f"({listed(cells)}); {columns.naming()}."
        )
    order = columns.order.get(len(cells))
    if order is None:
        raise CorpusError(
            f"{where}: {_counted(len(cells))} where {' or '.join(map(str, columns.order))} are "
            f"expected ({', '.join(columns.needed)}), and no header; {columns.naming()} in one."
        )
    for number, values in enumerate(zip(cells, *others, strict=True), start=1):
        problem = _problem(path, order, number - 1, values)
        if problem:
            raise CorpusError(
                f"{where}: without a header column {number} {problem}; {columns.naming()} in one."
            )
    if columns.text_alone:
        order = columns.order[max(columns.order)]
    return {column: i for i, column in enumerate(order) if column}


def _problem(path: Path, order: Sequence[str], i: int, values: Sequence[str]) -> str:
    """Say what makes it doubtful that a column without a name is what its place says."""
    column = order[i]
    is_csv = path.suffix.lower() == ".csv"
    if column in _TEXT_COLUMNS and len(order) > 1 and all(map(is_number, values)):
        return "would be text, and holds numbers alone"
    if column == "sentence2" and len(values) >= _FEW and are_labels(values):
        return "would be the second text, and holds a few values that repeat"
    if column == "" and not are_labels(values) and (is_csv or len(order) > 2):
        return "would be a label that is not read, and holds text"
    if is_csv and len(order) == 1 and all(map(_SEMICOLONS.search, values)):
        return "has semicolons in every row, which may separate cells"
    return ""


def _split(path: Path, separator: str) -> Iterator[_Cells]:
    """Yield (line number, cells) of the rows that are not blank."""
    if path.suffix.lower() != ".csv":
        yield from ((number, line.split("\t")) for number, line in read_filled(path))
        return
    # A quoted cell may hold line breaks; the number is that of the line where its row ends.
    lines = (line + "\n" for _, line in read_lines(path))
    reader = csv.reader(lines, strict=True, delimiter=separator)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise CorpusError(
            f"{path}, line {reader.line_num}: not valid CSV ({error}); quote cells that hold "
            "commas or quotes, or save the file as TSV."
        ) from None


# --- JSON ---


def _json_rows(path: Path, columns: Columns) -> Iterator[Record]:
    """Yield the objects of a file by column; objects may differ in their keys."""
    found: dict[tuple[str, ...], dict[str, int]] = {}
    for line, item in _json_objects(path):
        where = f"{path}, line {line}"
        names = tuple(item)
        if names not in found:
            found[names] = columns.find(where, names)
        cells = {}
        for column, i in found[names].items():
            value = item[names[i]]
            if value is None:
                continue
            if isinstance(value, list | dict):
                raise CorpusError(
                    f"{where}: {names[i]!r} holds several values; give every object one "
                    f"{column}, a string or a number."
                )
            if isinstance(value, bool) and column in _TEXT_COLUMNS:
                raise CorpusError(f"{where}: {names[i]!r} is true or false; give it a text.")
            cells[column] = value if isinstance(value, str) else json.dumps(value)
        yield line, cells


def _json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file, of one each line or of a single array, with their lines."""
    line, text = next(read_filled(path), (1, ""))
    items = _items_of_array(path) if text.lstrip().startswith("[") else _items_of_lines(path)
    for line, item in items:
        if not isinstance(item, dict):
            raise CorpusError(f"{path}, line {line}: not a JSON object such as {{...}}.")
        if isinstance(item.get("data"), list):
            raise CorpusError(
                f"{path} is no table: its rows lie within 'data', as in the JSON of SQuAD, which "
                "serves the task question-answering; give an object a line."
            )
        yield line, item


def _items_of_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Parse every line that is not blank."""
    for number, line in read_filled(path):
        yield number, _parsed(path, number, line, 0)[0]


def _items_of_array(path: Path) -> Iterator[tuple[int, Any]]:
    """Parse the items of an array that is the whole file, one after the other."""
    text = "\n".join(line for _, line in read_lines(path))
    begin = text.index("[") + 1
    position = begin + len(text[begin:]) - len(text[begin:].lstrip())
    number = 1 + text.count("\n", 0, position)
    while not text.startswith("]", position):
        item, end = _parsed(path, number, text, position)
        yield number, item
        gap = _COMMA.match(text, end)
        if gap is None:
            number += text.count("\n", position, end)
            raise CorpusError(
                f"{path}, line {number}: not valid JSON (no comma or bracket behind an object)."
            )
        number += text.count("\n", position, gap.end())
        position = gap.end()
    if text[position + 1 :].strip():
        raise CorpusError(f"{path}, line {number}: not valid JSON (text behind the array).")


def _parsed(path: Path, line: int, text: str, position: int) -> tuple[Any, int]:
    """Parse one JSON value of a text; return it and where it ends."""
    try:
        if position:
            return json.JSONDecoder().raw_decode(text, position)
        return json.loads(text), len(text)
    except json.JSONDecodeError as error:
        line = error.lineno if position else line
        raise CorpusError(
            f"{path}, line {line}: not valid JSON ({error.msg}); give an object a line, or one "
            "array of objects."
        ) from None
    except (ValueError, RecursionError):
        raise CorpusError(
            f"{path}, line {line}: JSON with a number of thousands of digits, or nested a "
            "thousand deep; give plain cells."
        ) from None
