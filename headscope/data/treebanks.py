"""Treebanks in CoNLL-U, read strictly: a tree that is not one is refused, with its line.

Words are the rows with integer ids; multiword ranges (``3-4``) and empty nodes (``5.1``) are passed
over.

References
----------
https://universaldependencies.org/format.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headscope.core.errors import CorpusError
from headscope.data.files import Sentence, read_blocks


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
