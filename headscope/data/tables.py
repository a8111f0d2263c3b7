"""Tables of texts with labels, scores or targets, read by their header; errors say which line.

``.csv`` has commas (or semicolons or tabs, where its header says so) and quotes; ``.jsonl``,
``.ndjson`` and ``.json`` have an object a line, or one array of objects; ``.tsv`` and anything else
have tabs, and quotes are part of the text. Every row has the width of the first.

:func:`read_records` is what readers call, each with the columns that it wants (:class:`.Columns`):
``names`` are what headers may call each column, ``order`` says which column is which in a table
without a header, by the table's width; ``needed`` are those that no row may lack. A record is a
row as a dictionary: its cells by the reader's names of columns.

Behind it stands how rows of cells are read and which column is which; at the end, what is said
about a table.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
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
    TEXT_COLUMNS,
    Columns,
    Record,
    are_labels,
    is_number,
    looks_like_header,
    row_of,
)
from headscope.data.files import read_filled, read_lines
from headscope.data.json_rows import JSON, json_objects, json_records

TABLES = (".csv", ".tsv", *JSON)  # Endings of files that are read as tables.
_Cells = tuple[int, list[str]]  # One row: the line where it ends, and its cells.

csv.field_size_limit(2**31 - 1)  # A cell may hold a whole document; the default is 131,072.

#: Sentences without labels; of translations the sources. Columns that ``order`` calls "" hold
#: labels, which are not read.
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
_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)+"')  # A cell in quotes with quotes in it: "a ""b"" c"
_SEPARATOR_LINE = re.compile("sep=.", re.IGNORECASE)  # What spreadsheets put above a table
_SEMICOLONS = re.compile(r"\S;\S")
_FEW = 4  # Fewest rows in which values that repeat are noticed
_N_SAMPLE = 100  # Rows below the first that show whether it is a header.
_SEPARATORS = {";": "semicolons", ",": "commas", "\t": "tabs"}  # As messages call them


def read_records(path: Path, columns: Columns) -> Iterator[Record]:
    """Yield the rows of a file: the line of each, and its cells by column.

    The file's ending says how it is written. A header is recognised by its names. Without one the
    columns are those of ``columns.order``, and a first row that reads like a header of unknown
    names is refused.
    """
    is_json = path.suffix.lower() in JSON
    records = json_records(path, columns) if is_json else _cell_records(path, columns)
    for line, cells in records:
        for column in columns.needed:
            if not cells.get(column, "").strip() and column not in columns.may_be_empty:
                raise CorpusError(
                    f"{path}, line {line}: no {column}; give every row "
                    f"{' and '.join(columns.needed)}."
                )
        yield line, cells


def number_in(path: Path, line: int, column: str, text: str) -> float:
    """Read a cell that has to hold a finite number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isfinite(number):
        return number
    hint = ""
    if line == 1 and path.suffix.lower() not in JSON:
        hint = f" If line 1 is a header, call this column {column}."
    elif "," in text:
        hint = " Write decimals with a point."
    raise CorpusError(f"{path}, line {line}: the {column} {text.strip()!r} is not a number.{hint}")


# --- rows of cells ---


def _cell_records(path: Path, columns: Columns) -> Iterator[Record]:
    """Yield the rows of a table of cells by column."""
    separator = _separator(path, columns)
    rows = _same_width(path, columns, _split(path, separator))
    first_row = next(rows, None)
    if first_row is None:
        return

    # Find the columns, by a header or by their places.
    sample = list(islice(rows, _N_SAMPLE))
    sample_cells = [cells for _, cells in sample]
    line, first_cells = first_row
    if columns.is_header(first_cells, sample_cells):
        index_of = columns.find(f"{path}, line {line}", first_cells)
        data_rows = chain(sample, rows)
    else:
        _refuse_json(path)
        _refuse_quoted(path, columns, first_cells)
        index_of = _columns_by_place(path, columns, first_row, sample_cells)
        data_rows = chain([first_row], sample, rows)

    # Take their cells from every row.
    for line, cells in data_rows:
        yield line, {column: cells[i] for column, i in index_of.items() if i < len(cells)}


def _refuse_quoted(path: Path, columns: Columns, cells: Sequence[str]) -> None:
    """Refuse a header in quotes where quotes are part of the text."""
    if path.suffix.lower() != ".csv" and columns.name_in([cell.strip('"') for cell in cells]):
        raise CorpusError(
            f"{path}, line 1: the names stand in quotes, which are part of the text in this kind "
            "of file; name it .csv (tabs may stay), or save it without quotes."
        )


def _refuse_json(path: Path) -> None:
    """Refuse a file that begins with a JSON object, though its ending is none of JSON's."""
    line = next((line for _, line in read_filled(path)), "").strip()
    if not line.startswith("{") or not line.endswith("}"):
        return
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return
    raise CorpusError(f"{path}, line 1: this is JSON, not a sentence; name it .jsonl.")


def _separator(path: Path, columns: Columns) -> str:
    """Return what separates the cells of a file.

    Of CSV it is the separator that splits the header into most known names, else the comma.
    """
    is_csv = path.suffix.lower() == ".csv"
    usual = "," if is_csv else "\t"
    line = next((line for _, line in read_filled(path)), "")
    if is_csv and _SEPARATOR_LINE.fullmatch(line):
        raise CorpusError(f"{path}, line 1: this says what separates cells; take the line out.")

    def n_names(separator: str) -> int:
        """Count the known names of columns in the first line, split at this separator."""
        try:
            cells = next(csv.reader([line], delimiter=separator), [])
        except csv.Error:
            return 0
        return len([cell for cell in cells if columns.name_in([cell])])

    # Another separator than the usual one is believed only if it is the one that gives known names.
    best = max(_SEPARATORS, key=n_names)
    fewest = 1 if is_csv else 2  # a line of plain text may be one name by chance
    if n_names(usual) > 0 or n_names(best) < fewest:
        return usual
    if not is_csv:
        raise CorpusError(
            f"{path}, line 1: the header has {_SEPARATORS[best]} between its names; name the file "
            ".csv, or put tabs between the cells."
        )
    return best


def _same_width(path: Path, columns: Columns, rows: Iterator[_Cells]) -> Iterator[_Cells]:
    """Yield rows; refuse one that is wider or narrower than the first."""
    width = None
    for line, cells in rows:
        # Some readers take rows of a text alone beside rows with all cells.
        is_text_alone = columns.text_alone and len(cells) == 1
        if is_text_alone:
            yield line, cells
            continue
        width = len(cells) if width is None else width
        if len(cells) != width:
            mend = "give every row as many"
            if path.suffix.lower() == ".csv":
                mend = "quote cells with commas, and save lines of text as .txt"
            raise CorpusError(
                f"{path}, line {line}: {_counted(len(cells))} where the first row has {width}; "
                f"{mend}."
            )
        yield line, cells


def _counted(n: int) -> str:
    """Write a number of columns."""
    return f"{n} column" if n == 1 else f"{n} columns"


def _columns_by_place(
    path: Path, columns: Columns, first_row: _Cells, sample: Sequence[Sequence[str]]
) -> dict[str, int]:
    """Return the index of each column in a table without a header; refuse what is not clear.

    ``sample`` are the cells of rows below the first.
    """
    line, cells = first_row
    where = f"{path}, line {line}"
    if columns.text_alone:  # rows may differ in their width
        sample = [row for row in sample if len(row) == len(cells)]
    if looks_like_header(cells, sample):
        raise CorpusError(
            f"{where}: this reads like a header, and none of its names is known "
            f"({row_of(cells)}); {columns.naming()}."
        )
    order = columns.order.get(len(cells))
    if order is None:
        raise CorpusError(
            f"{where}: {_counted(len(cells))} where {' or '.join(map(str, columns.order))} are "
            f"expected ({', '.join(columns.needed)}), and no header; {columns.naming()} in one."
        )
    for i, values in enumerate(zip(cells, *sample, strict=True)):
        doubt = _doubt(path, order, i, values)
        if doubt:
            raise CorpusError(
                f"{where}: without a header column {i + 1} {doubt}; {columns.naming()} in one."
            )
    if columns.text_alone:  # rows below may have all cells, where the first has one
        order = columns.order[max(columns.order)]
    return {column: i for i, column in enumerate(order) if column}


def _doubt(path: Path, order: Sequence[str], i: int, values: Sequence[str]) -> str:
    """Say why column ``i``, which has no name, may not be the one that its place says.

    ``order`` are the columns by their places, ``values`` the cells of this one. Empty where nothing
    speaks against it.
    """
    column = order[i]
    is_csv = path.suffix.lower() == ".csv"
    if column in TEXT_COLUMNS and len(order) > 1 and all(map(is_number, values)):
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


# --- what a table has, and what of it is not read ---


def header_of(path: Path, columns: Columns) -> tuple[str, ...] | None:
    """Return the names of a table's columns, of JSON the first object's; None without a header."""
    if path.suffix.lower() in JSON:
        _, first_object = next(json_objects(path), (0, {}))
        return tuple(first_object) if columns.name_in(tuple(first_object)) else None
    rows = islice(_split(path, _separator(path, columns)), _N_SAMPLE + 1)
    all_cells = [cells for _, cells in rows]
    if not all_cells:
        return None
    first_cells, *sample = all_cells
    return tuple(first_cells) if columns.is_header(first_cells, sample) else None


def notes_on(path: Path, columns: Columns) -> tuple[str, ...]:
    """Say which columns of a table hold texts and are not read, and which cells stand in quotes.

    The first rows are looked at; the table has been read without an error.
    """
    header = header_of(path, columns)
    rows = _sample_rows(path, columns, header)
    notes: list[str] = []
    if header is not None:
        columns_read = columns.find(str(path), header).values()
        unread = _unread_texts(columns_read, columns, header, rows)
        if unread:
            notes.append(f"{path}: columns that hold text are not read: {', '.join(unread)}.")
    if path.suffix.lower() not in (*JSON, ".csv"):
        quoted = next((cell for cell in chain(*rows) if _QUOTED.fullmatch(cell)), None)
        if quoted is not None:
            notes.append(
                f"{path}: quotes are part of the text, also where cells are written as in CSV "
                f"({quoted[:40]}); name the file .csv if they only enclose cells."
            )
    return tuple(notes)


def _sample_rows(path: Path, columns: Columns, header: tuple[str, ...] | None) -> list[list[Any]]:
    """Return the first rows below a header; of JSON the values of the header's names."""
    if path.suffix.lower() in JSON:
        objects = islice(json_objects(path), _N_SAMPLE)
        return [[item.get(name) for name in header or ()] for _, item in objects]
    first_row = 0 if header is None else 1
    rows = islice(_split(path, _separator(path, columns)), first_row, _N_SAMPLE)
    return [list(cells) for _, cells in rows]


def _unread_texts(
    columns_read: Collection[int],
    columns: Columns,
    header: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> list[str]:
    """Return the quoted names of columns that hold texts, and that nobody reads."""
    unread = []
    for i, name in enumerate(header):
        if i in columns_read or columns.passes_over(name):
            continue
        if _are_texts([row[i] for row in rows]):
            unread.append(repr(name.strip()))
    return unread


def refuse_table(path: Path) -> None:
    """Refuse a file of plain text that begins as a table: with a header, or a JSON object."""
    _refuse_json(path)
    line = next((line for _, line in read_filled(path)), "")
    for separator, kind in _SEPARATORS.items():
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
