"""What ``headscope prune`` chose and measured, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headscope.results.speed import SpeedResult
from headscope.results.validation import ValidationSummary

if TYPE_CHECKING:
    import pandas

__all__ = [
    "Baseline",
    "Candidate",
    "Curve",
    "DataInfo",
    "Draw",
    "HeadEffect",
    "HeadRoles",
    "HeadScores",
    "KeptModel",
    "Point",
    "PruneResult",
    "SavedModel",
]


@dataclass(frozen=True)
class DataInfo:
    """What was read: ``examples`` were used, ``skipped`` are longer than the model allows.

    ``labels`` says whether the methods used labels; None for evaluation data.
    """

    name: str
    sha256: str
    task: str
    examples: int
    skipped: int
    labels: bool | None = None


@dataclass(frozen=True)
class Baseline:
    """The unpruned model: its value with a 95% interval, and every metric of the task."""

    value: float
    ci: tuple[float, ...]
    metrics: dict[str, float]


@dataclass(frozen=True)
class Draw:
    """One random set of heads and what the model is worth without it."""

    seed: int
    heads_removed: tuple[tuple[int, ...], ...]
    value: float


@dataclass(frozen=True)
class Point:
    """The model without some heads.

    Attributes
    ----------
    fraction : float
        Share of the model's heads that is removed.
    heads_removed : tuple of (layer, head)
        For ``random``: of its first draw.
    value : float
        The task's metric; for ``random`` the mean over draws.
    ci : tuple of two floats
        95% bootstrap interval over examples; for ``random`` the lowest and highest draw.
    difference, difference_ci, p_value
        Value minus the unpruned model's on the same examples, with its paired bootstrap interval
        and two-sided p-value; None for ``random``.
    metrics : dict
        Every metric of the task.
    roles_left : dict of str to int
        Kept heads with each role; None where the model was not classified.
    draws : tuple of Draw
        Empty unless ``random``.
    spread : float or None
        Standard deviation over draws.
    """

    fraction: float
    heads_removed: tuple[tuple[int, ...], ...]
    value: float
    ci: tuple[float, ...]
    difference: float | None = None
    difference_ci: tuple[float, ...] | None = None
    p_value: float | None = None
    metrics: dict[str, float] | None = None
    roles_left: dict[str, int] | None = None
    draws: tuple[Draw, ...] = ()
    spread: float | None = None


@dataclass(frozen=True)
class Curve:
    """One method with one repair, from few heads removed to many."""

    method: str
    repair: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class HeadScores:
    """What a method thinks of each head.

    Attributes
    ----------
    method : str
    values : tuple of rows
        (n_layers, n_heads), higher is rather kept; None where a layer has no such head.
    passes : dict
        ``forward`` and ``backward`` passes over the calibration data.
    """

    method: str
    values: tuple[tuple[float | None, ...], ...]
    passes: dict[str, int]


@dataclass(frozen=True)
class HeadEffect:
    """What one head does to the model: without it, or with it alone left in its layer.

    In ALBERT the head goes from (or stays in) every layer. ``difference`` is value minus the
    unpruned model's; ``p_adjusted`` is Benjamini-Hochberg over the rows of one table.
    """

    layer: int
    head: int
    value: float
    ci: tuple[float, ...]
    difference: float
    difference_ci: tuple[float, ...]
    p_value: float
    p_adjusted: float
    significant: bool


@dataclass(frozen=True)
class HeadRoles:
    """The roles of one head on the corpus that ``classify`` read."""

    layer: int
    head: int
    primary: str
    roles: tuple[str, ...]


@dataclass(frozen=True)
class Candidate:
    """A model that may be kept, and the metric that it earns on the *calibration* data."""

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
        The task's metric on the evaluation data: a point of the curve of that method and repair.
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
    form : str
        ``compact``: heads removed for real; ``dense``: zeros where they were.
    method, repair : str
    heads_removed : tuple of (layer, head)
    fraction : float or None
        None in results of earlier versions, as the next two.
    value : float or None
        What the curve says that the model is worth.
    measured : float or None
        What the folder is worth, loaded again from disk, on the same data.
    """

    folder: str
    form: str
    method: str
    repair: str
    heads_removed: tuple[tuple[int, ...], ...]
    fraction: float | None = None
    value: float | None = None
    measured: float | None = None


@dataclass(frozen=True)
class PruneResult:
    """Heads chosen, removed and measured again.

    Attributes
    ----------
    schema : int
    provenance : dict
    validation : ValidationSummary
    task, metric : str
    higher_is_better : bool
    baseline : Baseline
    data, calibration : DataInfo
        What the curves are measured on, and what heads are chosen on.
    n_heads : int
        Heads that can be removed.
    shared_layers : bool
        Whether one decision holds for several layers (ALBERT).
    curves : tuple of Curve
    scores : tuple of HeadScores
    ablation : tuple of HeadEffect
        Each head removed alone; empty unless asked for.
    kept_alone : tuple of HeadEffect
        All heads of one layer removed but its best on the calibration data; empty unless asked for.
    roles : tuple of HeadRoles
        Empty where the model was not classified.
    roles_from : str or None
        The corpus of that classification.
    warnings : tuple of str
    kept : KeptModel or None
        The model that ``--save``, ``--save-dense`` and ``--benchmark`` speak of.
    saved : tuple of SavedModel
    speed : SpeedResult or None
        Full against pruned, of ``--benchmark``.
    """

    schema: int
    provenance: dict[str, Any]
    validation: ValidationSummary
    task: str
    metric: str
    higher_is_better: bool
    baseline: Baseline
    data: DataInfo
    calibration: DataInfo | None
    n_heads: int
    shared_layers: bool
    curves: tuple[Curve, ...]
    scores: tuple[HeadScores, ...] = ()
    ablation: tuple[HeadEffect, ...] = ()
    kept_alone: tuple[HeadEffect, ...] = ()
    roles: tuple[HeadRoles, ...] = ()
    roles_from: str | None = None
    warnings: tuple[str, ...] = ()
    kept: KeptModel | None = None
    saved: tuple[SavedModel, ...] = ()
    speed: SpeedResult | None = None

    def curve(self, method: str, repair: str = "none") -> Curve:
        """Return the curve of a method with a repair.

        Raises
        ------
        KeyError
            If it was not measured.
        """
        for curve in self.curves:
            if (curve.method, curve.repair) == (method, repair):
                return curve
        raise KeyError(f"{method} with repair {repair} was not measured")

    def to_frame(self) -> pandas.DataFrame:
        """One row per method, repair and fraction (pandas)."""
        import pandas as pd

        return pd.DataFrame([_flat(c, p) for c in self.curves for p in c.points])


def _flat(curve: Curve, point: Point) -> dict[str, Any]:
    low, high = point.difference_ci or (None, None)
    return {
        "method": curve.method,
        "repair": curve.repair,
        "fraction": point.fraction,
        "heads": len(point.heads_removed),
        "value": point.value,
        "low": point.ci[0],
        "high": point.ci[1],
        "difference": point.difference,
        "difference_low": low,
        "difference_high": high,
        "p_value": point.p_value,
        "spread": point.spread,
        "removed": " ".join(f"L{layer}H{head}" for layer, head in point.heads_removed),
    }
