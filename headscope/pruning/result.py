"""Pruned models on a curve: what was removed and what is left of the metric, as values.

A :class:`Curve` is made of :class:`Point`, each the model without some heads; :class:`PruneResult`,
at the end, is what a run returns. An ``Estimate`` is a value with its 95% interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from headscope.analyses.classify.result import HeadRoles
from headscope.core.heads import address_name, layer_name
from headscope.session.measured import Measured
from headscope.stats.compared import Setting
from headscope.stats.effects import estimated_columns
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    import pandas


def way(method: str, repair: str) -> str:
    """Name a method with its repair: ``fisher + scale``; ``surgeon`` if it is method and repair."""
    if method == "surgeon" and repair == "none":
        return "surgeon without repair"
    if repair in ("none", method):
        return method
    return f"{method} + {repair}"


@dataclass(frozen=True)
class Draw:
    """One random set of heads and what the model is worth without it."""

    seed: int  # Seed of the draw
    heads_removed: tuple[tuple[Any, ...], ...]  # Named as those of a point
    value: float  # The task's metric


@dataclass(frozen=True)
class Point:
    """The model without some heads."""

    fraction: float  # Share of the model's heads that is removed
    #: (layer, head), or (stack, layer, head) of a model that has a decoder; for ``random`` those of
    #: its first draw.
    heads_removed: tuple[tuple[Any, ...], ...]
    #: The task's metric with its 95% interval over examples; for ``random`` the mean over draws,
    #: with the lowest and the highest draw.
    value: Estimate
    #: Value minus the unpruned model's on the same examples, with its paired interval and two-sided
    #: p-value; None for ``random``. The interval is unknown, and p is 1, where there are too few
    #: examples, and where no head is removed: there the difference is 0 by definition.
    difference: Estimate | None = None
    p_value: float | None = None
    metrics: dict[str, float] | None = None  # Every metric of the task
    #: Kept heads with each role; None where the model was not classified.
    roles_left: dict[str, int] | None = None
    #: ``retrieval``: the queries whose first ten documents, in whatever order, are not the unpruned
    #: model's, by their names in the file; None for other tasks, and for ``random``.
    changed: tuple[str, ...] | None = None
    draws: tuple[Draw, ...] = ()  # Empty unless ``random``
    spread: float | None = None  # Standard deviation of the values of ``draws``


@dataclass(frozen=True)
class Curve:
    """One method with one repair."""

    method: str  # As on the command line; ``manual`` for heads that were named
    repair: str  # ``none`` where nothing was repaired
    points: tuple[Point, ...]  # From few heads removed to many

    @property
    def name(self) -> str:
        """Method and repair: ``fisher + scale``."""
        return way(self.method, self.repair)


@dataclass(frozen=True)
class TestedCount:
    """One model that was tested."""

    heads: int  # Heads that it lost
    lost: float  # What it loses of the metric
    most_lost: float | None  # The upper end of the 95% interval of that loss; None: unknown
    allowed: bool  # Whether that end is at most what may be lost


@dataclass(frozen=True)
class CandidateDistance:
    """One method with one repair, compared with others before anything is tested."""

    method: str  # How the heads were chosen
    repair: str  # What was done to the others
    heads: int  # Heads that it lost: about half
    #: Mean squared distance of its outputs to the unpruned model's, on the calibration data;
    #: labels are not used.
    distance: float


@dataclass(frozen=True)
class MaxDrop:
    """A number of heads, not the largest, that costs at most ``wanted``.

    A sequence of numbers, settled on the calibration data, is tested up to the first refusal. The
    model that was confirmed is the last point of the curve of ``method`` and ``repair``.
    """

    wanted: float  # The most that may be lost, in the metric's unit
    count: int  # Heads that were removed: the number that was confirmed
    method: str  # How they were chosen
    repair: str  # What was done to the others
    looks: tuple[TestedCount, ...] = ()  # Every model that was tested, in order
    #: The numbers of heads in the order in which they were to be tested, settled beforehand.
    sequence: tuple[int, ...] = ()
    #: The methods with repairs that were compared beforehand, one of which was tested; empty where
    #: there was one only.
    near: tuple[CandidateDistance, ...] = ()
    #: Examples that were not tested on, since heads were chosen on a sentence of theirs.
    left_out: int = 0

    @property
    def refusals(self) -> tuple[TestedCount, ...]:
        """Every number that was refused: the one that ended the sequence, if any."""
        return tuple(test for test in self.looks if not test.allowed)


@dataclass(frozen=True)
class DataInfo:
    """The data that were read."""

    name: str  # The file as it was named, or the part of the built-in sample
    sha256: str  # Of the file's bytes
    task: str  # The task that the examples served
    examples: int  # Examples that were used
    skipped: int  # Examples left out because they are longer than the model allows
    labels: bool | None = None  # Whether the methods used labels; None for evaluation data
    #: ``60 of 1,379 examples, chosen at random (seed 0)``; empty where all were read
    drawn: str = ""
    #: Of calibration data: examples left out as they share a sentence with the evaluation data
    dropped: int = 0


@dataclass(frozen=True)
class Baseline:
    """The unpruned model."""

    value: Estimate  # The task's metric with its 95% interval over examples
    metrics: dict[str, float]  # Every metric of the task


@dataclass(frozen=True)
class HeadScores:
    """The score that a method gives each head."""

    method: str  # As on the command line
    #: (n_layers, n_heads), higher is rather kept; None where a layer has no such head. Where the
    #: heads of all stacks are ranked together, the layers of the encoder come first, then those of
    #: the decoder and of cross-attention.
    values: tuple[tuple[float | None, ...], ...]
    layers: tuple[tuple[Any, ...], ...]  # (stack, layer) of each row

    @property
    def names(self) -> tuple[str, ...]:
        """``L3``, or ``cross:L3`` outside the encoder, for each row."""
        return tuple(layer_name(layer, stack) for stack, layer in self.layers)


@dataclass(frozen=True)
class StackResult:
    """One stack of an encoder-decoder model, pruned alone while the others keep their heads."""

    stack: str  # ``encoder``, ``decoder`` or ``cross``
    n_heads: int  # Heads that can be removed
    #: As :class:`PruneResult` has them, but fractions are shares of this stack's heads.
    curves: tuple[Curve, ...]
    scores: tuple[HeadScores, ...] = ()


@dataclass(frozen=True)
class Area:
    """The area under a curve of one stack: the metric's mean over shares of its heads removed."""

    stack: str  # The stack whose curve it is
    method: str  # Method and repair of the curve
    repair: str
    #: In the metric's unit, by the trapezoidal rule from the first to the last head removed, over
    #: the shares that the curves of all stacks have in common, with its 95% interval: bootstrap
    #: over examples; for ``random`` Student's t over draws. The points where the stack has all its
    #: heads and none do not count: without any cross-attention a decoder is cut off from the
    #: source.
    inner: Estimate


@dataclass(frozen=True)
class AreaGap:
    """How much larger the area of one stack is than that of another."""

    stack: str  # ``inner`` is the area of this one ...
    other: str  # ... minus the area of this one.
    method: str  # Method and repair of both curves
    repair: str
    #: In the metric's unit, with its 95% interval, paired: the same resampled examples for both;
    #: for ``random`` Student's t over draws.
    inner: Estimate

    @property
    def is_apart(self) -> bool:
        """Whether the interval of the difference excludes 0."""
        if self.inner.interval is None:
            return False
        low, high = self.inner.interval
        return low > 0 or high < 0


@dataclass(frozen=True)
class Candidate:
    """A pruned model that may be saved."""

    method: str  # How its heads were chosen
    repair: str  # What was done to the others
    value: float  # The metric that it earns on the *calibration* data


@dataclass(frozen=True)
class KeptModel:
    """The one pruned model that is saved and timed."""

    method: str  # Never a control such as random heads.
    repair: str
    fraction: float  # Share of the model's heads that it lost
    value: float  # The task's metric: a point of the curve of that method and repair
    #: All that might have been kept; the first of the best on the calibration data is. Empty where
    #: there was one only, which nothing had to be measured for.
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class SavedModel:
    """The model that is kept, as it was written and opened again."""

    folder: str  # Where it was written
    heads_removed: tuple[tuple[Any, ...], ...]  # Named as those of a point, sorted, zero-based
    #: What the folder is worth, loaded again from disk, on the same data. A rank correlation or a
    #: rate may differ a little from the curve's: outputs that differ by rounding can swap a tie.
    measured: float
    #: What opens it besides headscope: transformers after ``headscope.register()``,
    #: ``trust_remote_code`` or ``transformers`` alone.
    opens: str
    #: Largest difference of any output to the measured model's, on all evaluation data.
    max_difference: float
    code: str = ""  # Python that opens the folder
    megabytes: float | None = None  # Of all its files (1e6 bytes)


@dataclass(frozen=True)
class SpeedResult:
    """The model that is kept against the whole one, run in turns in torch."""

    speed: Estimate  # How many times as fast as the whole model it is, over pairs of runs
    ms: Estimate  # Milliseconds a text, at this run's pace of the machine
    batch_size: int  # Texts of each batch, with the evaluation texts' own lengths
    device: str
    threads: int
    parameters_full: int
    parameters_pruned: int


@dataclass(frozen=True, repr=False)
class PruneResult(Measured):
    """Heads chosen, removed and measured again."""

    task: Annotated[str, Setting()]  # What the model is measured by.
    metric: Annotated[str, Setting()]  # Name of the task's value.
    higher_is_better: bool  # False for a loss.
    baseline: Baseline  # The unpruned model.
    data: DataInfo  # What the curves are measured on.
    calibration: DataInfo | None  # What heads are chosen on; None where nothing is chosen.
    n_heads: int  # Heads that can be removed.
    shared_layers: bool  # Whether one decision holds for several layers (ALBERT).
    curves: tuple[Curve, ...]  # One for each method and repair, random heads among them.
    scores: tuple[HeadScores, ...] = ()  # One for each method that scores heads.
    roles: tuple[HeadRoles, ...] = ()  # Empty where no classification was asked for or needed.
    roles_from: str | None = None  # The corpus of that classification.
    warnings: tuple[str, ...] = ()  # Sentences about what a reader should not conclude.
    kept: KeptModel | None = None  # The model that is saved and timed; None without ``save``.
    saved: SavedModel | None = None  # The folder that it was written to.
    speed: SpeedResult | None = None  # Speed of the model that is kept.
    #: Where heads were removed: ``encoder``, ``decoder``, ``cross``, or ``all`` for the heads of
    #: all stacks together.
    stack: Annotated[str, Setting()] = "encoder"
    #: Each stack alone, where all were asked for; empty otherwise.
    stacks: tuple[StackResult, ...] = ()
    areas: tuple[Area, ...] = ()  # Areas under the curves of ``stacks``.
    gaps: tuple[AreaGap, ...] = ()  # Differences between the areas of each two stacks.
    #: How many heads can go for a bounded loss, and how that was found; None unless asked for.
    max_drop: MaxDrop | None = None

    @property
    def measured_examples(self) -> int:
        """Examples that baseline and curves are measured on: with ``max_drop`` those tested on."""
        if self.max_drop is None:
            return self.data.examples
        return self.data.examples - self.max_drop.left_out

    @property
    def sign(self) -> int:
        """What a difference of the metric is multiplied by so that more is better: 1 or -1."""
        return 1 if self.higher_is_better else -1

    def curve(self, method: str, repair: str = "none") -> Curve:
        """Return the curve of a method with a repair."""
        for curve in self.curves:
            if (curve.method, curve.repair) == (method, repair):
                return curve
        raise KeyError(f"{method} with repair {repair} was not measured")

    def to_frame(self) -> pandas.DataFrame:
        """Return one row per stack, method, repair and fraction (pandas).

        ``value`` is the task's metric; its other metrics are columns by their names, empty for
        random heads.
        """
        import pandas as pd

        other_metrics = [name for name in self.baseline.metrics if name != self.metric]
        curves = [(self.stack, curve) for curve in self.curves]
        for one_stack in self.stacks:
            curves += [(one_stack.stack, curve) for curve in one_stack.curves]
        rows = []
        for stack, curve in curves:
            for point in curve.points:
                metrics = point.metrics or {}
                row = {
                    "stack": stack,
                    "method": curve.method,
                    "repair": curve.repair,
                    "fraction": point.fraction,
                    "heads": len(point.heads_removed),
                    "value": point.value.value,
                    "low": point.value.low,
                    "high": point.value.high,
                    **estimated_columns("difference", point.difference),
                    "p_value": point.p_value,
                    "spread": point.spread,
                    **{name: metrics.get(name) for name in other_metrics},
                    "removed": " ".join(address_name(address) for address in point.heads_removed),
                }
                rows.append(row)
        return pd.DataFrame(rows)
