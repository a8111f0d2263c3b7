"""Runs that prune along curves or remove named heads, in a whole model or one stack at a time.

References
----------
Michel et al. 2019, arXiv:1905.10650: tables of single heads (each removed alone, and all of a layer
but one), and section 4 (encoder, decoder and cross-attention apart).
"""

from __future__ import annotations

import dataclasses
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
from headscope.models.run.loaded import LoadedModel
from headscope.pruning.measure import original_names
from headscope.pruning.methods import rank
from headscope.pruning.options import MANUAL, PruneOptions, Repair
from headscope.pruning.ranking import Ranking
from headscope.pruning.repair import Repaired
from headscope.pruning.result import (
    Area,
    AreaGap,
    Baseline,
    Curve,
    HeadEffect,
    HeadScores,
    MaxDrop,
    Point,
    StackResult,
)
from headscope.pruning.setup import Inputs, Pruner, prepare
from headscope.stats.statistics import adjust, standard_error, t_half_width
from headscope.tasks.calibration import HeadByHead
from headscope.tasks.units import Head, Units, parse_heads

Q = 0.05  # False discovery rate of the tables of single heads.
Interval = tuple[float, float]


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
    """A curve from no head removed to all, and how its values vary together."""

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
    max_drop: MaxDrop | None = None


def run_curves(inputs: Inputs, options: PruneOptions) -> Outcome:
    """Remove more and more heads by every method, or those that were named."""
    pruner = prepare(inputs, options)
    units, loaded = pruner.units, inputs.loaded
    curves, versions = list[Curve](), list[Version]()
    rankings = pruner.rankings()
    ways = [(name, kind) for name in rankings for kind in options.repair_kinds]
    ways += [("random", Repair.none)] if "random" in options.method_names else []
    for i, (name, kind) in enumerate(ways):
        points = []
        for j, count in enumerate(pruner.counts):
            options.tell(
                "removing heads", i * len(pruner.counts) + j, len(ways) * len(pruner.counts)
            )
            if name == "random":
                points.append(random_point(pruner, count))
                continue
            made = pruner.repaired(kind, rankings[name].remove(count))
            points.append(pruner.measure.point(made))
            if count:
                versions.append(Version(name, kind, made, points[-1]))
        curves.append(Curve(name, kind.value, tuple(points)))
    if options.manual:
        roles, keep = inputs.roles.by_place, options.keep_roles or ()
        removed = units_by_hand(loaded, units, options.heads, roles, keep)
        repaired = [(kind, pruner.repaired(kind, removed)) for kind in options.repair_kinds]
        versions = [
            Version(MANUAL, kind, made, pruner.measure.point(made)) for kind, made in repaired
        ]
        curves = [Curve(MANUAL, version.repair.value, (version.point,)) for version in versions]
        if options.keep_roles:
            curves.append(Curve("random", "none", (random_point(pruner, len(removed)),)))
    ablation, kept_alone = tables(pruner)
    swept = []
    for curve in curves:
        shares = tuple(point.fraction for point in curve.points)
        if (shares[0], shares[-1]) != (0.0, 1.0):
            continue
        random = curve.method == "random"
        values = [
            # Where nothing or everything is removed, there is nothing to draw.
            np.full(options.draws, point.value)
            if random and not point.draws
            else pruner.measure.resamples(point)
            for point in curve.points
        ]
        means = tuple(point.value for point in curve.points)
        swept.append(Swept(curve.method, curve.repair, shares, means, np.stack(values), random))
    return Outcome(
        baseline=pruner.measure.baseline(),
        curves=tuple(curves),
        scores=tuple(scores_of(*item, loaded, units) for item in rankings.items()),
        ablation=ablation,
        kept_alone=kept_alone,
        degenerate=pruner.measure.degenerate(),
        versions=tuple(versions),
        swept=tuple(swept),
    )


def random_point(pruner: Pruner, count: int) -> Point:
    """Measure the model without ``count`` units, drawn at random several times."""
    seed, made = pruner.options.seed, []
    for draw in range(seed, seed + pruner.options.draws):
        ranking = rank("random", dataclasses.replace(pruner.context, seed=draw))
        made.append((draw, pruner.repaired(Repair.none, ranking.remove(count))))
    return pruner.measure.random_point(made)


def scores_of(name: str, ranking: Ranking, loaded: LoadedModel, units: Units) -> HeadScores:
    """Lay a ranking's values out as layers x heads; None where a layer has fewer heads."""
    grid: list[list[float | None]] = units.expand(ranking.values).tolist()
    for site, row in zip(loaded.sites, grid, strict=True):
        row[site.n_heads :] = [None] * (len(row) - site.n_heads)
    layers = tuple((site.stack, site.layer) for site in loaded.sites)
    return HeadScores(name, tuple(map(tuple, grid)), ranking.passes, layers)


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
        what = f"heads {heads}"
        names = parse_heads(heads, {(s.stack, s.layer): s.head_ids for s in loaded.sites})
        place_of = places(loaded)
        removed = {units.unit(place_of[name]) for name in names}
    else:
        what = f"keep_roles {','.join(keep)}"
        role_names = [role.key for role in ROLES]
        for name in keep:
            if name not in role_names:
                raise InputError(f"There is no role {name!r}; choose {', '.join(role_names)}.")
        if not roles:
            raise InputError("keep_roles needs to know what the heads do; roles must not be False.")
        kept = {head for head, result in roles.items() if set(keep) & set(result.roles)}
        removed = {unit for unit, members in enumerate(units.members) if kept.isdisjoint(members)}
    if len(removed) == len(units):
        raise InputError(
            f"{what} would remove every head of {loaded.name}; at least one must stay."
        )
    if not removed:
        raise InputError(f"{what} removes nothing: every head has one of these roles.")
    return tuple(sorted(removed))


# --- tables of single heads -----------------------------------------------------------------------


def tables(pruner: Pruner) -> tuple[tuple[HeadEffect, ...], tuple[HeadEffect, ...]]:
    """Measure the model without each head, and with the best head of each layer alone."""
    if not pruner.options.tables:
        return (), ()
    units, measure, loaded = pruner.units, pruner.measure, pruner.inputs.loaded
    by_layer = {
        layer: (units.layers == layer).nonzero().flatten().tolist()
        for layer in sorted(set(units.layers.tolist()))
    }
    task, chosen_on = pruner.inputs.evaluation, pruner.context.calibration
    evaluation, calibration = HeadByHead(task, loaded), HeadByHead(chosen_on.task, loaded)
    point = partial(measure.point, all_metrics=False, run=evaluation.outputs)
    without = list[Point]()
    tell, n = pruner.options.tell, len(units)
    for layer, of_layer in by_layer.items():
        evaluation.start_at(layer)
        for unit in of_layer:
            tell("single heads", len(without), n)
            without.append(point(Repaired.bare(units, [unit])))
    kept, names = list[Point](), list[tuple[Any, ...]]()
    for layer, of_layer in by_layer.items():
        qualities = []
        calibration.start_at(layer)
        for unit in of_layer:
            tell("heads left alone", len(names), len(by_layer))
            gates = units.expand(units.gates([other for other in of_layer if other != unit]))
            qualities.append(chosen_on.quality(gates, lambda xi: calibration.outputs(gates=xi)))
        best = of_layer[int(tied(qualities).argmax())]  # on the calibration data
        others = Repaired.bare(units, [unit for unit in of_layer if unit != best])
        kept.append(measure.point(others, all_metrics=False))
        names.append(original_names(loaded, units.members[best])[0])
    return _effects([point.heads_removed[0] for point in without], without), _effects(names, kept)


def _effects(names: Sequence[tuple[Any, ...]], points: Sequence[Point]) -> tuple[HeadEffect, ...]:
    """Put points into a table, p-values adjusted over all of them; p = 1 for the full model."""
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


class StacksApart(NamedTuple):
    """Every stack pruned alone; nothing where there is only one, or heads were named."""

    stacks: tuple[StackResult, ...] = ()
    areas: tuple[Area, ...] = ()
    gaps: tuple[AreaGap, ...] = ()


def run_stacks_apart(inputs: Inputs, options: PruneOptions) -> StacksApart:
    """Prune each stack of a model alone, and compare the areas under their curves."""
    results, swept = [], {}
    stacks = inputs.loaded.stacks
    if len(stacks) < 2 or options.manual or options.max_drop is not None:
        return StacksApart()
    for stack in stacks:
        view = inputs.loaded.only(stack)
        row_of = {(site.stack, site.layer): site.row for site in view.sites}
        by_place = {}
        for (row, head), roles in inputs.roles.by_place.items():
            site = inputs.loaded.sites[row]
            if site.stack == stack:
                by_place[row_of[stack, site.layer], head] = roles
        own_roles = dataclasses.replace(inputs.roles, by_place=by_place)
        alone = dataclasses.replace(inputs, loaded=view, roles=own_roles)
        outcome = run_curves(alone, options.of_one_stack(stack))
        n_heads = sum(site.n_heads for site in view.sites)
        curves, scores = outcome.curves, outcome.scores
        results.append(StackResult(stack, n_heads, curves, scores=scores))
        swept[stack] = outcome.swept
    return StacksApart(tuple(results), *areas_of(swept))


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
    for (method, repair), of_stack in by_name.items():
        # From the first to the last head removed, as far as all curves go.
        shares = [[s for s in curve.shares if 0.0 < s < 1.0] for curve in of_stack.values()]
        low, high = (
            max(min(s, default=2.0) for s in shares),
            min(max(s, default=-1.0) for s in shares),
        )
        inner = (low, high) if low <= high else None

        def whole_and_inner(
            curve: Swept, other: Swept | None = None, inner: Interval | None = inner
        ) -> tuple[float, Interval, float | None, Interval | None]:
            whole = _area(curve, other, None)
            return (*whole, *((None, None) if inner is None else _area(curve, other, inner)))

        areas += [
            Area(stack, method, repair, *whole_and_inner(curve))
            for stack, curve in of_stack.items()
        ]
        gaps += [
            AreaGap(
                stack, other, method, repair, *whole_and_inner(of_stack[stack], of_stack[other])
            )
            for stack, other in permutations(of_stack, 2)
        ]
    return tuple(areas), tuple(gaps)


def _area(curve: Swept, other: Swept | None, between: Interval | None) -> tuple[float, Interval]:
    """Return the area under a curve, less that under another, with its 95% interval.

    Bootstrap quantiles, or Student's t for the mean of random draws.
    """
    weights = area_weights(curve.shares, between)
    value, values = float(weights @ np.asarray(curve.means)), weights @ curve.values
    if other is not None:
        weights = area_weights(other.shares, between)
        value -= float(weights @ np.asarray(other.means))
        values = values - weights @ other.values
    if curve.random:
        n, mean = len(values), float(values.mean())
        half = float(t_half_width(standard_error(values.sum(), (values**2).sum(), n), n))
        return value, (mean - half, mean + half)
    low, high = np.quantile(values, (0.025, 0.975)).tolist()
    return value, (low, high)


def area_weights(shares: Sequence[float], between: Interval | None = None) -> Array:
    """Return what each of two or more points counts in the area by the trapezoidal rule, (points,).

    ``shares`` ascend from 0 on. ``between`` leaves only the area between two shares, which may lie
    between points; of one share alone it is the curve's value. The weights sum to 1: the area is a
    mean over the shares, however far they go.
    """
    points = np.asarray(shares, dtype=float)
    low, high = between or (points[0], points[-1])
    grid = np.unique([low, *points[(points > low) & (points < high)], high])
    steps = np.diff(grid) if len(grid) > 1 else np.ones(1)
    counts = np.append(steps, 0.0) + np.insert(steps, 0, 0.0) if len(grid) > 1 else steps
    of_points = np.array([np.interp(grid, points, unit) for unit in np.eye(len(points))])
    weights: Array = of_points @ (counts / counts.sum())
    return weights
