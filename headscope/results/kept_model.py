"""The pruned model that ``headscope prune`` keeps, and the folders it is written to, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Candidate", "FailedArtefact", "KeptModel", "SavedModel"]


@dataclass(frozen=True)
class Candidate:
    """A model that may be kept."""

    method: str  # How it was made.
    repair: str
    value: float  # The metric that it earns on the *calibration* data


@dataclass(frozen=True)
class KeptModel:
    """The one pruned model that is saved and timed."""

    method: str  # Never a control such as random heads.
    repair: str
    fraction: float  # Share of the model's heads that it lost
    #: The task's metric: a point of the curve of that method and repair, so with ``max_drop`` on
    #: the confirming half of the evaluation data, else on all of them.
    value: float
    #: All that might have been kept; the first of the best on the calibration data is. Empty where
    #: there was one only, which nothing had to be measured for.
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class SavedModel:
    """A model that was written: where, which heads it lost, and what it is worth."""

    folder: str  # Where it was written
    form: str  # ``compact``: heads removed for real; ``dense``: zeros where they were
    method: str  # How it was made.
    repair: str
    heads_removed: tuple[tuple[Any, ...], ...]  # (layer, head): Sorted, zero-based
    fraction: float | None = None  # None in results of earlier versions, as the next three
    value: float | None = None  # What the curve says that the model is worth
    #: What the folder is worth, loaded again from disk, on the same data. A rank correlation or a
    #: rate may differ a little from ``value``: outputs that differ by rounding can swap a tie.
    measured: float | None = None
    #: What opens it besides headscope: ``import headscope`` before transformers,
    #: ``trust_remote_code`` or ``transformers`` alone.
    opens: str | None = None
    #: Largest difference of any output to the measured model's, on all evaluation data.
    max_difference: float | None = None


@dataclass(frozen=True)
class FailedArtefact:
    """Something that was asked for beside the numbers and could not be made."""

    #: What asked for it: ``save``, ``save_dense``, ``export`` or ``benchmark``; ``card`` for the
    #: speed that cards of a run without a benchmark name.
    option: str
    folder: str | None  # Where it should have been written; nothing of it is there
    reason: str  # One sentence
