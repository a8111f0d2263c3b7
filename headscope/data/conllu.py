"""Reading CoNLL-U strictly: a tree that is not one is refused, with its line number.

The value grammar of ids and heads is the conllu package's; what makes a sentence a tree is checked
here. Words are the rows with integer ids: multiword ranges (``3-4``) and empty nodes (``5.1``) are
passed over.

References
----------
https://universaldependencies.org/format.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from conllu.exceptions import ParseException
from conllu.parser import parse_id_value, parse_int_value

from headscope.core.errors import CorpusError
from headscope.data.lines import read_lines
from headscope.data.sentence import Sentence

Value = TypeVar("Value")
_COLUMNS = 10
_ID, _FORM, _HEAD, _DEPREL = 0, 1, 6, 7


@dataclass(frozen=True)
class _Row:
    line: int
    form: str
    head: int
    relation: str


def read_treebank(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a CoNLL-U file.

    Raises
    ------
    CorpusError
        At the first row or tree that is not valid, naming file and line.
    """
    rows: list[_Row] = []
    begun = False
    for number, line in read_lines(path):
        if not line.strip():
            if rows:
                yield _sentence(path, rows)
            rows = []
        elif not line.startswith("#"):
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
        yield _sentence(path, rows)


def _read_row(path: Path, number: int, line: str, *, expected: int) -> _Row | None:
    """Read one row; None for multiword ranges and empty nodes."""
    cells = line.split("\t")
    if len(cells) != _COLUMNS:
        raise _error(
            path, number, f"{len(cells)} columns instead of {_COLUMNS} (they are split by tabs)"
        )
    row_id = _parsed(parse_id_value, cells[_ID])
    if row_id is None:
        raise _error(path, number, f"{cells[_ID]!r} is not a row id (such as 3, 3-4 or 3.1)")
    if isinstance(row_id, tuple):
        return None
    if row_id != expected:
        raise _error(path, number, f"row id {row_id} where {expected} should follow")
    if not cells[_FORM].strip():
        raise _error(path, number, "the word's form is empty")
    head = _parsed(parse_int_value, cells[_HEAD])
    if head is None:
        raise _error(path, number, f"the head {cells[_HEAD]!r} is not a number")
    return _Row(number, cells[_FORM], head, cells[_DEPREL].partition(":")[0])


def _parsed(parse: Callable[[str], Value], cell: str) -> Value | None:
    with suppress(ParseException):
        return parse(cell)
    return None


def _sentence(path: Path, rows: list[_Row]) -> Sentence:
    n = len(rows)
    for row_id, row in enumerate(rows, start=1):
        if not 0 <= row.head <= n:
            raise _error(path, row.line, f"head {row.head} is out of range 0..{n}")
        if row.head == row_id:
            raise _error(path, row.line, f"word {row_id} is its own head")
    roots = [row for row in rows if row.head == 0]
    if len(roots) > 1:
        raise _error(path, roots[1].line, "a second root; a sentence has exactly one")
    heads = tuple(row.head - 1 for row in rows)
    _check_acyclic(path, rows, heads)
    return Sentence(tuple(row.form for row in rows), heads, tuple(row.relation for row in rows))


def _check_acyclic(path: Path, rows: list[_Row], heads: tuple[int, ...]) -> None:
    """Follow the heads upwards from every word; each must end at the root."""
    safe: set[int] = {-1}
    for start in range(len(rows)):
        trail: list[int] = []
        word = start
        while word not in safe:
            if word in trail:
                words = " -> ".join(str(w + 1) for w in [*trail[trail.index(word) :], word])
                raise _error(path, rows[word].line, f"the heads run in a cycle: {words}")
            trail.append(word)
            word = heads[word]
        safe.update(trail)


def _error(path: Path, line: int, what: str) -> CorpusError:
    return CorpusError(f"{path}, line {line}: {what}; mend the treebank there.")
