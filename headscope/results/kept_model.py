"""The pruned model that ``headscope prune`` keeps, and the folders it is written to, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Candidate", "FailedArtefact", "KeptModel", "SavedModel"]


@dataclass(frozen=True)
class Candidate:
    """A model that may be kept.

    Attributes
    ----------
    method, repair : str
        How it was made.
    value : float
        The metric that it earns on the *calibration* data.
    """

    method: str
    repair: str
    value: float


@dataclass(frozen=True)
class KeptModel:
    """The one pruned model that is saved and timed.

    Attributes
    ----------
    method, repair : str
        Never a control such as random heads.
    fraction : float
        Share of the model's heads that it lost.
    value : float
        The task's metric: a point of the curve of that method and repair, so with ``max_drop`` on
        the confirming half of the evaluation data, else on all of them.
    candidates : tuple of Candidate
        All that might have been kept; the first of the best on the calibration data is. Empty where
        there was one only, which nothing had to be measured for.
    """

    method: str
    repair: str
    fraction: float
    value: float
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class SavedModel:
    """A model that was written: where, which heads it lost, and what it is worth.

    Attributes
    ----------
    folder : str
        Where it was written.
    form : str
        ``compact``: heads removed for real; ``dense``: zeros where they were.
    method, repair : str
        How it was made.
    heads_removed : tuple of (layer, head) or (stack, layer, head)
        Sorted, zero-based.
    fraction : float or None
        None in results of earlier versions, as the next three.
    value : float or None
        What the curve says that the model is worth.
    measured : float or None
        What the folder is worth, loaded again from disk, on the same data. A rank correlation or a
        rate may differ a little from ``value``: outputs that differ by rounding can swap a tie.
    opens : str or None
        What opens it besides headscope: ``import headscope`` before transformers,
        ``trust_remote_code`` or ``transformers`` alone.
    max_difference : float or None
        Largest difference of any output to the measured model's, on all evaluation data.
    """

    folder: str
    form: str
    method: str
    repair: str
    heads_removed: tuple[tuple[Any, ...], ...]
    fraction: float | None = None
    value: float | None = None
    measured: float | None = None
    opens: str | None = None
    max_difference: float | None = None


@dataclass(frozen=True)
class FailedArtefact:
    """Something that was asked for beside the numbers and could not be made.

    Attributes
    ----------
    option : str
        What asked for it: ``save``, ``save_dense``, ``export`` or ``benchmark``; ``card`` for the
        speed that cards of a run without a benchmark name.
    folder : str or None
        Where it should have been written; nothing of it is there.
    reason : str
        One sentence.
    """

    option: str
    folder: str | None
    reason: str
