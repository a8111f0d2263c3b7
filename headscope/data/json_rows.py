"""Rows of a table as JSON objects: one a line, or one array of them; errors say which line.

:func:`json_records` yields rows with the columns that a reader wants, :func:`json_objects` the
objects as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headscope.core.errors import CorpusError
from headscope.data.columns import TEXT_COLUMNS, Columns, Record
from headscope.data.files import read_filled, read_lines

JSON = (".jsonl", ".ndjson", ".json")  # Endings of files that hold JSON objects.
_BETWEEN_ITEMS = re.compile(r"\s*(?:,\s*|(?=\]))")  # A comma, or the bracket that closes the array


def json_records(path: Path, columns: Columns) -> Iterator[Record]:
    """Yield the objects of a file by column, with their lines; objects may differ in their keys."""
    # Objects with the same keys have the same columns: find these once, and note each one's key.
    key_by_column: dict[tuple[str, ...], dict[str, str]] = {}
    for line, item in json_objects(path):
        where = f"{path}, line {line}"
        keys = tuple(item)
        if keys not in key_by_column:
            indices = columns.find(where, keys)
            key_by_column[keys] = {column: keys[i] for column, i in indices.items()}
        cells = {}
        for column, key in key_by_column[keys].items():
            value = item[key]
            if value is None:
                continue
            if isinstance(value, list | dict):
                raise CorpusError(
                    f"{where}: {key!r} holds several values; give every object one "
                    f"{column}, a string or a number."
                )
            if isinstance(value, bool) and column in TEXT_COLUMNS:
                raise CorpusError(f"{where}: {key!r} is true or false; give it a text.")
            cells[column] = value if isinstance(value, str) else json.dumps(value)
        yield line, cells


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file, of one each line or of a single array, with their lines."""
    _, first_line = next(read_filled(path), (1, ""))
    is_array = first_line.lstrip().startswith("[")
    items = _items_of_array(path) if is_array else _items_of_lines(path)
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
        item, _ = _parsed(path, number, line, 0)
        yield number, item


def _items_of_array(path: Path) -> Iterator[tuple[int, Any]]:
    """Parse the items of an array that is the whole file, one after the other."""
    text = "\n".join(line for _, line in read_lines(path))
    behind_bracket = text.index("[") + 1
    n_spaces = len(text[behind_bracket:]) - len(text[behind_bracket:].lstrip())
    position = behind_bracket + n_spaces
    line = 1 + text.count("\n", 0, position)
    while not text.startswith("]", position):
        item, item_stop = _parsed(path, line, text, position)
        yield line, item
        gap = _BETWEEN_ITEMS.match(text, item_stop)
        if gap is None:
            line += text.count("\n", position, item_stop)
            raise CorpusError(
                f"{path}, line {line}: not valid JSON (no comma or bracket behind an object)."
            )
        line += text.count("\n", position, gap.end())
        position = gap.end()
    if text[position + 1 :].strip():
        raise CorpusError(f"{path}, line {line}: not valid JSON (text behind the array).")


def _parsed(path: Path, line: int, text: str, position: int) -> tuple[Any, int]:
    """Parse one JSON value; return it and where it ends.

    ``text`` is line number ``line``, which is one value; or a file with an array, of which the
    value at ``position`` is parsed, which is never 0.
    """
    is_file = position > 0
    try:
        if is_file:
            return json.JSONDecoder().raw_decode(text, position)
        return json.loads(text), len(text)
    except json.JSONDecodeError as error:
        line = error.lineno if is_file else line
        raise CorpusError(
            f"{path}, line {line}: not valid JSON ({error.msg}); give an object a line, or one "
            "array of objects."
        ) from None
    except (ValueError, RecursionError):
        raise CorpusError(
            f"{path}, line {line}: JSON with a number of thousands of digits, or nested a "
            "thousand deep; give plain cells."
        ) from None
