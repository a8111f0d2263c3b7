"""Prompts with the tokens that may follow each: ``The capital of France is``, Paris, London.

A table names its columns ``prompt``, ``target`` and, where two tokens are compared, ``against``.
Spaces around a token belong to it: `` Paris`` behind a word is another token than ``Paris``.
"""

from __future__ import annotations

from pathlib import Path

from headscope.core.errors import CorpusError
from headscope.core.files import sha256_of_file
from headscope.data.columns import Columns
from headscope.data.examples import Examples, check_size, read_texts
from headscope.data.tables import TABLES, header_of, notes_on, read_records

_PROMPTS = Columns(
    names={
        "prompt": ("prompt", "text", "sentence", "question", "clean"),
        "target": ("target", "answer", "correct"),
        "against": ("against", "foil", "wrong", "incorrect", "distractor"),
    },
    order={},
    needed=("prompt", "target"),
)
#: Plain names by which a table is one of prompts, and not of texts with labels.
_TOKENS = Columns(
    names={column: _PROMPTS.names[column] for column in ("target", "against")},
    order={},
    needed=(),
)


def read_prompts(path: str | Path) -> Examples:
    """Read prompts, their targets (``labels``) and what these are compared with (``against``).

    Of a file without a column of targets only the texts are read, as
    :func:`~headscope.data.examples.read_texts` does.
    """
    path = Path(path)
    names = header_of(path, _TOKENS) if path.suffix.lower() in TABLES else None
    if names is None:
        return read_texts(path)
    rows = list(read_records(path, _PROMPTS))
    check_size(path, len(rows))
    against = None
    if any("against" in cells for _, cells in rows):
        empty = [line for line, cells in rows if not cells.get("against")]
        if empty:
            raise CorpusError(
                f"{path}, line {empty[0]}: no against; give every row the token that its target "
                "is compared with, or leave the column out."
            )
        against = tuple(cells["against"] for _, cells in rows)
    return Examples(
        name=str(path),
        sha256=sha256_of_file(path),
        first=tuple(cells["prompt"] for _, cells in rows),
        labels=tuple(cells["target"] for _, cells in rows),
        against=against,
        lines=tuple(line for line, _ in rows),
        apart=True,
        notes=notes_on(path, _PROMPTS),
    )
