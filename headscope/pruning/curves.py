"""Runs over curves or named heads, of a whole model and of its stacks apart.

References
----------
Michel et al. 2019, arXiv:1905.10650: tables of single heads (each removed alone, and all of a layer
but one), and section 4 (encoder, decoder and cross-attention apart).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from headscope.analyses.classify.known_roles import places
from headscope.analyses.classify.result import HeadResult
from headscope.core.accumulator import Array
from headscope.core.errors import InputError
from headscope.core.roles import ROLES
from headscope.core.rounding import tied
from headscope.models.loaded import LoadedModel
from headscope.pruning.areas import area_weights, bootstrap_interval, draws_interval, inner_range
from headscope.pruning.measure import original_names
from headscope.pruning.methods import rank, without_roles
from headscope.pruning.options import MANUAL, PruneOptions, Repair
from headscope.pruning.ranking import EvenRanking, Ranking
from headscope.pruning.repair import Repaired
from headscope.pruning.result import (
    Area,
    AreaGap,
    Baseline,
    Curve,
    EvenPrice,
    HeadEffect,
    HeadScores,
    MaxDrop,
    Point,
    StackResult,
)
from headscope.pruning.setup import Inputs, Pruner, prepare
from headscope.pruning.steps import Steps, running_steps, units_at_once
from headscope.stats.statistics import adjust
from headscope.tasks.head_list import parse_heads
from headscope.tasks.units import Head, Units

Q = 0.05  # False discovery rate of the tables of single heads.


@dataclass(frozen=True)
class Version:
    """One pruned model of a curve, and the point that it was measured as."""

    method: str
    repair: Repair
    made: Repaired
    point: Point
    examples: Array | None = None  # the evaluation examples that the point speaks of; None for all


@dataclass(frozen=True)
class Swept:
    """A whole curve with everything that is known of how its values vary together."""

    method: str
    repair: str
    shares: tuple[float, ...]  # of heads removed, from 0 to 1
    means: tuple[float, ...]  # the metric at each
    values: Array  # (points, resamples of the examples or draws of random heads)
    random: bool


@dataclass(frozen=True)
class Outcome:
    """What a run measured; most as :class:`PruneResult` has it."""

    baseline: Baseline
    curves: tuple[Curve, ...]
    scores: tuple[HeadScores, ...]
    ablation: tuple[HeadEffect, ...]
    kept_alone: tuple[HeadEffect, ...]
    degenerate: str | None  # why the values mean nothing, if they do not
    versions: tuple[Version, ...]  # the candidates, should a model be kept
    swept: tuple[Swept, ...] = ()  # the curves that run from no head removed to all
    even: tuple[EvenPrice, ...] = ()
    max_drop: MaxDrop | None = None


def run_curves(inputs: Inputs, options: PruneOptions, steps: Steps) -> Outcome:
    """Remove more and more heads by every method, or those that were named."""
    pruner = prepare(inputs, options, steps)
    curves, versions = list[Curve](), list[Version]()
    scores, even = list[HeadScores](), list[EvenPrice]()
    rankings = pruner.rankings()
    for name in options.method_names:
        if name not in rankings:
            curves.append(random_curve(pruner))
            continue
        for kind in options.repair_kinds:
            points = []
            for count in pruner.counts:
                made = pruner.repaired(kind, rankings[name].remove(count))
                points.append(pruner.point(made))
                version = Version(name, kind, made, points[-1])
                if options.keeps and count:
                    versions.append(version)
                if 0 < count < len(pruner.units):
                    even += even_prices(pruner, rankings[name], version)
            curves.append(Curve(name, kind.value, tuple(points)))
        scores.append(scores_of(name, rankings[name], inputs.loaded, pruner.units))
    if options.manual:
        versions = _by_hand(pruner)
        curves = [Curve(MANUAL, v.repair.value, (v.point,)) for v in versions]
        if options.keep_roles:
            removed = len(versions[0].made.removed)
            curves.append(Curve("random", "none", (_random_point(pruner, removed),)))
    ablation, kept_alone = tables(pruner)
    return Outcome(
        baseline=pruner.measure.baseline(),
        curves=tuple(curves),
        scores=tuple(scores),
        ablation=ablation,
        kept_alone=kept_alone,
        degenerate=pruner.measure.degenerate(),
        versions=tuple(versions),
        swept=tuple(
            _swept(pruner, curve)
            for curve in curves
            if (curve.points[0].fraction, curve.points[-1].fraction) == (0.0, 1.0)
        ),
        even=tuple(even),
    )


def _swept(pruner: Pruner, curve: Curve) -> Swept:
    random, draws = curve.method == "random", pruner.options.draws
    # Where nothing or everything is removed, there is nothing to draw.
    rows = [
        np.full(draws, point.value)
        if random and not point.draws
        else pruner.measure.resamples(point)
        for point in curve.points
    ]
    shares = tuple(point.fraction for point in curve.points)
    means = tuple(point.value for point in curve.points)
    return Swept(curve.method, curve.repair, shares, means, np.stack(rows), random)


def random_curve(pruner: Pruner) -> Curve:
    """Measure as many random heads as the points of the other curves remove."""
    points = tuple(_random_point(pruner, count) for count in pruner.counts)
    return Curve("random", "none", points)


def _random_point(pruner: Pruner, count: int) -> Point:
    seed, made = pruner.options.seed, []
    for draw in range(seed, seed + pruner.options.draws):
        ranking = rank("random", dataclasses.replace(pruner.context, seed=draw))
        removed = pruner.evenly(ranking).remove(count)
        made.append((draw, pruner.repaired(Repair.none, removed)))
    return pruner.measure.random_point(made, partial(pruner.steps.did, "measured"))


def scores_of(name: str, ranking: Ranking, loaded: LoadedModel, units: Units) -> HeadScores:
    """Lay a ranking's values out as layers x heads."""
    grid: list[list[float]] = units.expand(ranking.values).tolist()
    heads = {head for members in units.members for head in members}
    rows = tuple(
        tuple(value if (layer, head) in heads else None for head, value in enumerate(row))
        for layer, row in enumerate(grid)
    )
    layers = tuple((site.stack, site.layer) for site in loaded.sites)
    return HeadScores(name, rows, ranking.passes, layers)


# --- named heads ----------------------------------------------------------------------------------


def _by_hand(pruner: Pruner) -> list[Version]:
    """Make and measure the model without the named heads, with each repair."""
    inputs, options = pruner.inputs, pruner.options
    roles, keep = inputs.roles.by_place, options.keep_roles or ()
    removed = units_by_hand(inputs.loaded, pruner.units, options.heads, roles, keep)
    made = [(kind, pruner.repaired(kind, removed)) for kind in options.repair_kinds]
    return [Version(MANUAL, kind, model, pruner.point(model)) for kind, model in made]


def units_by_hand(
    loaded: LoadedModel,
    units: Units,
    heads: str | None,
    roles: Mapping[Head, HeadResult],
    keep: Sequence[str],
) -> tuple[int, ...]:
    """Return the units that are removed by name, or because they have no role that is kept.

    ``heads`` are such as ``L0H1,L3H*``; without them those stay that have a role of ``keep``.
    """
    if heads is not None:
        names = parse_heads(heads, {(s.stack, s.layer): s.head_ids for s in loaded.sites})
        place_of = places(loaded)
        removed = {units.unit(place_of[name]) for name in names}
        what = f"heads {heads}"
    else:
        known = [role.key for role in ROLES]
        for name in keep:
            if name not in known:
                raise InputError(f"There is no role {name!r}; choose {', '.join(known)}.")
        if not roles:
            raise InputError("keep_roles needs to know what the heads do; roles must not be False.")
        removed = set(without_roles(units, roles, set(keep)))
        what = f"keep_roles {','.join(keep)}"
    if len(removed) == len(units):
        raise InputError(
            f"{what} would remove every head of {loaded.name}; at least one must stay."
        )
    if not removed:
        raise InputError(f"{what} removes nothing: every head has one of these roles.")
    return tuple(sorted(removed))


# --- layers that lose equally many heads ----------------------------------------------------------


def even_prices(pruner: Pruner, ranking: Ranking, version: Version) -> tuple[EvenPrice, ...]:
    """Measure the model that may take as many heads from any layer, beside the even ``version``."""
    if not isinstance(ranking, EvenRanking):
        return ()
    made, point = version.made, version.point
    count = len(made.removed)
    free = ranking.free.remove(count)
    # The same heads: the same model, repaired the same way.
    other = point
    if free != made.removed:
        other = pruner.point(pruner.repaired(version.repair, free))
    price = EvenPrice(
        method=version.method,
        repair=version.repair.value,
        per_layer=count // units_at_once(pruner.units, pruner.options),
        heads=len(point.heads_removed),
        value=point.value,
        uneven=other.value,
        difference=point.value - other.value,
        ci=None if other is point else pruner.measure.change(other, point).ci,
    )
    return (price,)


# --- tables of single heads -----------------------------------------------------------------------


def tables(pruner: Pruner) -> tuple[tuple[HeadEffect, ...], tuple[HeadEffect, ...]]:
    """Make the tables of single heads, where they are wanted."""
    if not pruner.options.tables:
        return (), ()
    units, measure, loaded = pruner.units, pruner.measure, pruner.inputs.loaded
    alone = []
    for unit in range(len(units)):
        alone.append(measure.point(Repaired.bare(units, [unit]), all_metrics=False))
        pruner.steps.did("alone")
    kept, names = [], []
    for layer in sorted(set(units.layers.tolist())):
        of_layer = (units.layers == layer).nonzero().flatten().tolist()
        qualities = []
        for unit in of_layer:
            gates = units.expand(units.gates([other for other in of_layer if other != unit]))
            what = ["kept alone", list(loaded.stacks), unit]
            quality = partial(pruner.context.calibration.quality, gates)
            qualities.append(pruner.inputs.findings.number(what, quality))
            pruner.steps.did("kept alone")
        best = of_layer[int(tied(qualities).argmax())]  # on the calibration data
        others = Repaired.bare(units, [unit for unit in of_layer if unit != best])
        kept.append(measure.point(others, all_metrics=False))
        names.append(original_names(loaded, units.members[best])[0])
    return _effects([point.heads_removed[0] for point in alone], alone), _effects(names, kept)


def _effects(names: Sequence[tuple[Any, ...]], points: Sequence[Point]) -> tuple[HeadEffect, ...]:
    """Put points into a table, p-values adjusted over all of them.

    A model that is the full one differs with p = 1.
    """
    p_values = np.array([1.0 if point.p_value is None else point.p_value for point in points])
    rows = zip(names, points, p_values.tolist(), adjust(p_values).tolist(), strict=True)
    effects = []
    for (*stack, layer, head), point, p_value, adjusted in rows:
        assert point.difference is not None  # only random draws have none
        effects.append(
            HeadEffect(
                layer,
                head,
                stack=stack[0] if stack else "encoder",
                value=point.value,
                ci=point.ci,
                difference=point.difference,
                difference_ci=point.difference_ci,
                p_value=p_value,
                p_adjusted=adjusted,
                significant=adjusted < Q,
            )
        )
    return tuple(effects)


# --- stacks apart ---------------------------------------------------------------------------------


class Apart(NamedTuple):
    """Every stack pruned alone; nothing where there is only one, or heads were named."""

    stacks: tuple[StackResult, ...] = ()
    areas: tuple[Area, ...] = ()
    gaps: tuple[AreaGap, ...] = ()


def _apart(loaded: LoadedModel, options: PruneOptions) -> tuple[str, ...]:
    """List the stacks that are pruned alone besides."""
    stacks = loaded.stacks
    joint_only = options.manual or options.max_drop is not None
    return () if len(stacks) < 2 or joint_only else stacks


def steps_of_runs(loaded: LoadedModel, options: PruneOptions) -> list[tuple[str, Counter[str]]]:
    """List the steps of the joint run and of those of each stack alone, in this order, by name."""
    alone = options.of_one_stack()
    return [
        ("", running_steps(loaded, options)),
        *((stack, running_steps(loaded.only(stack), alone)) for stack in _apart(loaded, options)),
    ]


def run_apart(inputs: Inputs, options: PruneOptions, steps: Steps) -> Apart:
    """Prune each stack of a model alone, and compare the areas under their curves."""
    results, swept = [], {}
    for stack in _apart(inputs.loaded, options):
        steps.begin()
        view = inputs.loaded.only(stack)
        row_of = {(site.stack, site.layer): site.row for site in view.sites}
        by_place = {}
        for (row, head), roles in inputs.roles.by_place.items():
            site = inputs.loaded.sites[row]
            if site.stack == stack:
                by_place[row_of[stack, site.layer], head] = roles
        known = dataclasses.replace(inputs.roles, by_place=by_place)
        alone = dataclasses.replace(inputs, loaded=view, roles=known)
        outcome = run_curves(alone, options.of_one_stack(), steps)
        n_heads = sum(site.n_heads for site in view.sites)
        results.append(
            StackResult(stack, n_heads, outcome.curves, scores=outcome.scores, even=outcome.even)
        )
        swept[stack] = outcome.swept
    return Apart(tuple(results), *areas_of(swept))


def areas_of(swept: dict[str, tuple[Swept, ...]]) -> tuple[tuple[Area, ...], tuple[AreaGap, ...]]:
    """Return the areas under the whole curves of every stack, and the gaps between stacks.

    Inner areas go from the first to the last head removed, over the shares that the curves of one
    method have in common in all stacks, so that they can be compared.
    """
    by_name: dict[tuple[str, str], dict[str, Swept]] = {}
    for stack, curves in swept.items():
        for curve in curves:
            by_name.setdefault((curve.method, curve.repair), {})[stack] = curve
    areas, gaps = [], []
    for (method, repair), curves_of in by_name.items():
        inner = inner_range(curve.shares for curve in curves_of.values())

        def area(
            curve: Swept, other: Swept | None = None, inner: tuple[float, float] | None = inner
        ) -> tuple[float, tuple[float, float], float | None, tuple[float, float] | None]:
            whole = _area(curve, other, None)
            return (*whole, *((None, None) if inner is None else _area(curve, other, inner)))

        areas += [Area(stack, method, repair, *area(curve)) for stack, curve in curves_of.items()]
        gaps += [
            AreaGap(stack, other, method, repair, *area(curves_of[stack], curves_of[other]))
            for stack, other in permutations(curves_of, 2)
        ]
    return tuple(areas), tuple(gaps)


def _area(
    curve: Swept, other: Swept | None, between: tuple[float, float] | None
) -> tuple[float, tuple[float, float]]:
    """Return the area under a curve, less that under another, with its interval."""
    weights = area_weights(curve.shares, between)
    value, values = float(weights @ np.asarray(curve.means)), weights @ curve.values
    if other is not None:
        weights = area_weights(other.shares, between)
        value -= float(weights @ np.asarray(other.means))
        values = values - weights @ other.values
    return value, (draws_interval if curve.random else bootstrap_interval)(values)
