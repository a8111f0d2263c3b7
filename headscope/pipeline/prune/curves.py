"""One run: rank, repair, measure, tabulate. Options go in as a value, what was found comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from headscope.errors import InputError
from headscope.measures.accumulator import Array
from headscope.models.loaded import LoadedModel
from headscope.pipeline.known_roles import KnownRoles
from headscope.pipeline.progress import Progress, silent
from headscope.pipeline.prune.calibrating import make_given, units_of
from headscope.pipeline.prune.choosing import by_hand, count_for, random_rankings, scores_of
from headscope.pipeline.prune.measuring import Measurer
from headscope.pipeline.prune.options import MANUAL, PruneOptions
from headscope.pipeline.prune.repairing import Repair, Repaired, repair
from headscope.pipeline.prune.single_heads import ablation_table, kept_alone_table
from headscope.pipeline.prune.sources import Sources
from headscope.pipeline.prune.steps import Steps, plan
from headscope.pipeline.tasks import Task
from headscope.pruning.method import Given, Ranking
from headscope.pruning.methods import rank
from headscope.pruning.units import Units
from headscope.results.points import Curve, Point
from headscope.results.prune import Baseline, HeadEffect, HeadScores
from headscope.results.validate import ValidationSummary


@dataclass(frozen=True)
class Inputs:
    """What was opened for a run: the model, both sets of data, what its heads do.

    Attributes
    ----------
    loaded : LoadedModel
        The full model, with the task head that the task needs.
    sources : Sources
        Both sets of examples as they were read.
    evaluation, calibration : Task
        The same for this model; no calibration where nothing is chosen.
    roles : KnownRoles
        Empty where nobody asked.
    validation : ValidationSummary
        Whether our attention is the full model's.
    """

    loaded: LoadedModel
    sources: Sources
    evaluation: Task
    calibration: Task | None
    roles: KnownRoles
    validation: ValidationSummary

    @property
    def units(self) -> Units:
        """What can be removed on its own."""
        return units_of(self.loaded)


@dataclass(frozen=True)
class Version:
    """One pruned model of a curve, and the point that it was measured as."""

    method: str
    repair: Repair
    made: Repaired
    point: Point


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
    """

    baseline: Baseline
    curves: tuple[Curve, ...]
    scores: tuple[HeadScores, ...]
    ablation: tuple[HeadEffect, ...]
    kept_alone: tuple[HeadEffect, ...]
    degenerate: str | None
    versions: tuple[Version, ...]
    swept: tuple[Swept, ...] = ()


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


def run(inputs: Inputs, options: PruneOptions, progress: Progress) -> Outcome:
    """Do what the options say, on what was opened.

    Raises
    ------
    InputError
        If the one model that is to be kept would lose no head, or all of them.
    """
    parts = _prepare(inputs, options, progress)
    made = _by_hand(parts) if options.manual else _chosen(parts)
    ablation, kept_alone = _tables(parts)
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
    )


def _whole(curve: Curve) -> bool:
    """Whether a curve runs from no head removed to all of them."""
    return (curve.points[0].fraction, curve.points[-1].fraction) == (0.0, 1.0)


def _swept(parts: _Parts, curve: Curve) -> Swept:
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
class _Parts:
    """What every part of a run works with."""

    inputs: Inputs
    options: PruneOptions
    units: Units
    counts: tuple[int, ...]
    given: Given
    measure: Measurer
    steps: Steps

    def repaired(self, kind: Repair, removed: Sequence[int]) -> Repaired:
        """Remove units and repair what is left."""
        made = repair(kind, self.inputs.loaded, self.inputs.calibration, self.given, removed)
        self._did(kind.value, made)
        return made

    def point(self, made: Repaired) -> Point:
        """Measure one pruned model."""
        found = self.measure.point(made)
        self._did("measured", made)
        return found

    def _did(self, what: str, made: Repaired) -> None:
        """Note a step; where nothing or everything is removed, there is nothing to do."""
        if 0 < len(made.removed) < len(self.units):
            self.steps.did(what)


@dataclass(frozen=True)
class _Found:
    """What one method gave."""

    curves: tuple[Curve, ...]
    versions: tuple[Version, ...] = ()
    scores: HeadScores | None = None


def _prepare(inputs: Inputs, options: PruneOptions, progress: Progress) -> _Parts:
    units = inputs.units
    n = len(units)
    counts = _counts(units, options)
    if options.keeps and not options.manual:
        _check_count(counts[-1], n)
    inner = [count for count in counts if 0 < count < n]
    roles = inputs.roles.by_place
    given = make_given(
        inputs.loaded,
        inputs.calibration or inputs.evaluation,
        roles=roles,
        use_labels=options.labels,
        budget=inner[0] if len(inner) == 1 else n // 2,
        largest=max(inner, default=n),
        seed=options.seed,
        progress=progress,
    )
    measure = Measurer(
        inputs.loaded, inputs.evaluation, units, seed=options.seed, roles=inputs.roles.by_place
    )
    steps = _steps(inputs, options, progress)
    return _Parts(inputs, options, units, counts, given, measure, steps)


def _counts(units: Units, options: PruneOptions) -> tuple[int, ...]:
    return tuple(sorted({count_for(share, units) for share in options.shares}))


def _steps(inputs: Inputs, options: PruneOptions, progress: Progress) -> Steps:
    units = inputs.units
    counts = _counts(units, options)
    return plan(options, inputs.evaluation, inputs.calibration, counts, len(units), progress)


def cost_of(inputs: Inputs, options: PruneOptions) -> float:
    """Say how many passes over the evaluation data :func:`run` will take, about."""
    return _steps(inputs, options, silent).total


def _check_count(count: int, n: int) -> None:
    """Refuse a fraction that leaves no pruned model to keep, before anything is measured."""
    if count == 0:
        raise InputError("The fraction is so small that no head is removed; give a larger one.")
    if count == n:
        raise InputError("The fraction is so large that no head is left; give a smaller one.")


# --- curves -------------------------------------------------------------------------------------


def _chosen(parts: _Parts) -> list[_Found]:
    """Rank every head by each method, then remove more and more of them."""
    names = parts.options.method_names
    # All rankings first: a method that cannot be run is refused before the long part.
    rankings = {name: _ranked(parts, name) for name in names if name != "random"}
    return [
        _random_curve(parts) if name == "random" else _method_curves(parts, name, rankings[name])
        for name in names
    ]


def _ranked(parts: _Parts, name: str) -> Ranking:
    found = rank(name, parts.given, normalise=parts.options.normalise)
    parts.steps.did(name)
    return found


def _method_curves(parts: _Parts, name: str, ranking: Ranking) -> _Found:
    curves, versions = [], list[Version]()
    for kind in parts.options.repair_kinds:
        points = []
        for count in parts.counts:
            made = parts.repaired(kind, ranking.remove(count))
            points.append(parts.point(made))
            if parts.options.keeps and count:
                versions.append(Version(name, kind, made, points[-1]))
        curves.append(Curve(name, kind.value, tuple(points)))
    scores = scores_of(name, ranking, parts.inputs.loaded, parts.units)
    return _Found(tuple(curves), tuple(versions), scores)


def _random_curve(parts: _Parts) -> _Found:
    points = tuple(_random_point(parts, count) for count in parts.counts)
    return _Found((Curve("random", "none", points),))


def _random_point(parts: _Parts, count: int) -> Point:
    draws = random_rankings(parts.given, parts.options.draws)
    made = [(seed, parts.repaired(Repair.none, r.remove(count))) for seed, r in draws]
    return parts.measure.random_point(made, partial(parts.steps.did, "measured"))


def _by_hand(parts: _Parts) -> list[_Found]:
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


def _tables(parts: _Parts) -> tuple[tuple[HeadEffect, ...], tuple[HeadEffect, ...]]:
    if not parts.options.tables:
        return (), ()
    did = parts.steps.did
    alone = ablation_table(parts.units, parts.measure, partial(did, "alone"))
    kept = kept_alone_table(
        parts.inputs.loaded, parts.given, parts.measure, partial(did, "kept alone")
    )
    return alone, kept
