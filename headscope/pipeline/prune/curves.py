"""One run: rank, repair, measure, tabulate. Options go in as a value, what was found comes out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from headscope.measures.accumulator import Array
from headscope.pipeline.prune.choosing import by_hand, random_rankings, scores_of
from headscope.pipeline.prune.even import even_price
from headscope.pipeline.prune.options import MANUAL, PruneOptions
from headscope.pipeline.prune.repairing import Repair, Repaired
from headscope.pipeline.prune.setting_up import Inputs, Parts, prepare
from headscope.pipeline.prune.single_heads import ablation_table, kept_alone_table
from headscope.pipeline.prune.steps import Steps
from headscope.pruning.even import EvenRanking
from headscope.pruning.method import Ranking
from headscope.results.even import EvenPrice
from headscope.results.max_drop import MaxDrop
from headscope.results.points import Curve, Point
from headscope.results.prune import Baseline, HeadEffect, HeadScores

__all__ = [
    "Inputs",
    "Outcome",
    "Swept",
    "Version",
    "random_curve",
    "run",
    "tables",
]


@dataclass(frozen=True)
class Version:
    """One pruned model of a curve, and the point that it was measured as.

    ``places`` are those of the evaluation examples that the point speaks of; None for all.
    """

    method: str
    repair: Repair
    made: Repaired
    point: Point
    places: Array | None = None

    @property
    def name(self) -> tuple[str, Repair]:
        """Method and repair."""
        return self.method, self.repair


@dataclass(frozen=True)
class Outcome:
    """What a run found.

    Attributes
    ----------
    baseline : Baseline
        The unpruned model.
    curves, scores, ablation, kept_alone : tuple
        As :class:`headscope.results.PruneResult` has them.
    degenerate : str or None
        Why the values mean nothing, if they do not.
    versions : tuple of Version
        The candidates, should a model be kept.
    swept : tuple of Swept
        The curves that run from no head removed to all.
    even : tuple of EvenPrice
        What layers of equally many heads cost.
    max_drop : MaxDrop or None
        How the number of heads was found.
    """

    baseline: Baseline
    curves: tuple[Curve, ...]
    scores: tuple[HeadScores, ...]
    ablation: tuple[HeadEffect, ...]
    kept_alone: tuple[HeadEffect, ...]
    degenerate: str | None
    versions: tuple[Version, ...]
    swept: tuple[Swept, ...] = ()
    even: tuple[EvenPrice, ...] = ()
    max_drop: MaxDrop | None = None


@dataclass(frozen=True)
class Swept:
    """A whole curve with everything that is known of how its values vary together.

    Attributes
    ----------
    method, repair : str
        Whose curve it is.
    shares : tuple of float
        Shares of heads removed, from 0 to 1.
    means : tuple of float
        The metric at each.
    values : array, (points, resamples or draws)
        The metric on each resample of the examples, or of each draw of random heads.
    random : bool
        Whether heads were drawn at random.
    """

    method: str
    repair: str
    shares: tuple[float, ...]
    means: tuple[float, ...]
    values: Array
    random: bool

    @property
    def name(self) -> tuple[str, str]:
        """Method and repair."""
        return self.method, self.repair


def run(inputs: Inputs, options: PruneOptions, steps: Steps) -> Outcome:
    """Do what the options say, on what was opened.

    Raises
    ------
    InputError
        If the one model that is to be kept would lose no head, or all of them.
    """
    parts = prepare(inputs, options, steps)
    made = _by_hand(parts) if options.manual else _chosen(parts)
    ablation, kept_alone = tables(parts)
    return Outcome(
        baseline=parts.measure.baseline(),
        curves=tuple(curve for found in made for curve in found.curves),
        scores=tuple(found.scores for found in made if found.scores is not None),
        ablation=ablation,
        kept_alone=kept_alone,
        degenerate=parts.measure.degenerate(),
        versions=tuple(version for found in made for version in found.versions),
        swept=tuple(
            _swept(parts, curve) for found in made for curve in found.curves if _whole(curve)
        ),
        even=tuple(price for found in made for price in found.even),
    )


def _whole(curve: Curve) -> bool:
    """Whether a curve runs from no head removed to all of them."""
    return (curve.points[0].fraction, curve.points[-1].fraction) == (0.0, 1.0)


def _swept(parts: Parts, curve: Curve) -> Swept:
    random = curve.method == "random"
    draws = parts.options.draws
    # Where nothing or everything is removed, there is nothing to draw.
    rows = [
        np.full(draws, point.value)
        if random and not point.draws
        else parts.measure.resamples(point)
        for point in curve.points
    ]
    shares = tuple(point.fraction for point in curve.points)
    means = tuple(point.value for point in curve.points)
    return Swept(curve.method, curve.repair, shares, means, np.stack(rows), random)


@dataclass(frozen=True)
class _Found:
    """What one method gave."""

    curves: tuple[Curve, ...]
    versions: tuple[Version, ...] = ()
    scores: HeadScores | None = None
    even: tuple[EvenPrice, ...] = ()


# --- curves -------------------------------------------------------------------------------------


def _chosen(parts: Parts) -> list[_Found]:
    """Rank every head by each method, then remove more and more of them."""
    names = parts.options.method_names
    # All rankings first: a method that cannot be run is refused before the long part.
    rankings = {name: parts.ranked(name) for name in names if name != "random"}
    return [
        _method_curves(parts, name, rankings[name])
        if name in rankings
        else _Found((random_curve(parts),))
        for name in names
    ]


def _method_curves(parts: Parts, name: str, ranking: Ranking) -> _Found:
    curves, versions, even = [], list[Version](), list[EvenPrice]()
    for kind in parts.options.repair_kinds:
        points = []
        for count in parts.counts:
            made = parts.repaired(kind, ranking.remove(count))
            points.append(parts.point(made))
            version = Version(name, kind, made, points[-1])
            if parts.options.keeps and count:
                versions.append(version)
            if isinstance(ranking, EvenRanking) and 0 < count < len(parts.units):
                even.append(even_price(parts, ranking, version.name, made, points[-1]))
        curves.append(Curve(name, kind.value, tuple(points)))
    scores = scores_of(name, ranking, parts.inputs.loaded, parts.units)
    return _Found(tuple(curves), tuple(versions), scores, tuple(even))


def random_curve(parts: Parts) -> Curve:
    """Measure as many random heads as the points of the other curves remove."""
    points = tuple(_random_point(parts, count) for count in parts.counts)
    return Curve("random", "none", points)


def _random_point(parts: Parts, count: int) -> Point:
    draws = random_rankings(parts.given, parts.options.draws)
    sets = [(seed, parts.evenly(ranking).remove(count)) for seed, ranking in draws]
    made = [(seed, parts.repaired(Repair.none, removed)) for seed, removed in sets]
    return parts.measure.random_point(made, partial(parts.steps.did, "measured"))


def _by_hand(parts: Parts) -> list[_Found]:
    """One curve of one point for each repair, and as many heads at random beside it."""
    inputs, options = parts.inputs, parts.options
    removed = by_hand(
        inputs.loaded, parts.units, options.heads, inputs.roles.by_place, options.keep_roles or ()
    )
    made = [(kind, parts.repaired(kind, removed)) for kind in options.repair_kinds]
    found = []
    for kind, model in made:
        point = parts.point(model)
        curve = Curve(MANUAL, kind.value, (point,))
        found.append(_Found((curve,), (Version(MANUAL, kind, model, point),)))
    if options.keep_roles:
        found.append(_Found((Curve("random", "none", (_random_point(parts, len(removed)),)),)))
    return found


# --- tables -------------------------------------------------------------------------------------


def tables(parts: Parts) -> tuple[tuple[HeadEffect, ...], tuple[HeadEffect, ...]]:
    """Make the tables of single heads, where they are wanted."""
    if not parts.options.tables:
        return (), ()
    did = parts.steps.did
    alone = ablation_table(parts.units, parts.measure, partial(did, "alone"))
    kept = kept_alone_table(
        parts.inputs.loaded,
        parts.given,
        parts.measure,
        parts.inputs.findings,
        partial(did, "kept alone"),
    )
    return alone, kept
