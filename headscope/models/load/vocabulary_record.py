"""Which rows of the original vocabulary a model still has: remembered, written and read again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headscope.core.errors import CheckpointError
from headscope.core.saved_config import MANIFEST
from headscope.models.load.checkpoint import read_json
from headscope.models.surgery.vocabulary import ROW_IDS, ROWS_BEFORE

#: Key of ``headscope.json``.
VOCABULARY = "vocabulary"
_MOST_ROWS = 1 << 24  # More than any vocabulary has.


def vocabulary_record(model: Any) -> dict[str, Any] | None:
    """Return what ``headscope.json`` says of a base model's vocabulary; None if it is whole.

    ``kept`` lists runs of original ids, in the order of the rows.
    """
    state = vars(model.get_input_embeddings())
    if ROW_IDS not in state:
        return None
    return {"rows": state[ROWS_BEFORE], "kept": as_ranges(state[ROW_IDS])}


def recall_rows(model: Any, folder: Path) -> None:
    """Let a base model that was read from a folder remember which rows its vocabulary lost."""
    path = folder / MANIFEST
    data = read_json(path) if path.is_file() else None
    record = data.get(VOCABULARY) if isinstance(data, dict) else None
    if record is None:
        return
    table = model.get_input_embeddings()
    try:
        before, ids = int(record["rows"]), from_ranges(record["kept"])
    except (AttributeError, KeyError, TypeError, ValueError):
        before, ids = 0, ()
    n = table.num_embeddings
    if len(ids) != n or len(set(ids)) != n or min(ids) < 0 or max(ids) >= before:
        raise CheckpointError(
            f"{path} does not list the {n:,} rows of the vocabulary that the weights have; the two "
            "do not belong together."
        )
    vars(table)[ROW_IDS], vars(table)[ROWS_BEFORE] = ids, before


def as_ranges(ids: Iterable[int]) -> str:
    """Write numbers as runs, in their order: 3, 4, 5, 9 as ``3-5,9``."""
    runs: list[list[int]] = []
    for number in ids:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


def from_ranges(text: str) -> tuple[int, ...]:
    """Read what :func:`as_ranges` wrote; ValueError if it is none of that."""
    found: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        end = int(last or first) + 1
        if end - int(first) > _MOST_ROWS:
            raise ValueError("no run of a vocabulary's rows")
        found += range(int(first), end)
    return tuple(found)
