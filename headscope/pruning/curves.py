"""Runs that prune along curves or remove named heads, in a whole model or one stack at a time.

References
----------
Michel et al. 2019, arXiv:1905.10650: tables of single heads (each removed alone, and all of a layer
but one), and section 4 (encoder, decoder and cross-attention apart).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import trapezoid
from scipy.interpolate import make_interp_spline

from headscope.analyses.classify.known_roles import places
from headscope.analyses.classify.result import HeadResult
from headscope.analyses.classify.roles import ROLES
from headscope.core.accumulator import Array
from headscope.core.errors import InputError
from headscope.core.rounding import tied
from headscope.models.run.loaded import LoadedModel
from headscope.pruning.measure import Name, Pruner, original_names
from headscope.pruning.options import MANUAL, Repair
from headscope.pruning.ranking import Ranking, Repaired
from headscope.pruning.result import Area, AreaGap, Curve, HeadEffect, HeadScores, MaxDrop, Point
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import FEWEST_DRAWS, adjust, standard_error, t_half_width
from headscope.tasks.calibration import HeadByHead
from headscope.tasks.units import Head, Units, parse_heads

Q = 0.05  # False discovery rate of the tables of single heads.


@dataclass(frozen=True)
class Version:
    """One pruned model of a curve, and the point that it was measured as."""

    method: str
    repair: Repair
    made: Repaired
    point: Point


class Outcome(NamedTuple):
    """The measured curves, and the models of which one may be saved."""

    pruner: Pruner  # on the examples that were measured on
    curves: tuple[Curve, ...]
    versions: tuple[Version, ...]
    scores: tuple[HeadScores, ...] = ()
    max_drop: MaxDrop | None = None


def run_curves(
    pruner: Pruner,
    rankings: Mapping[str, Ranking],
    repairs: Sequence[Repair],
    counts: Sequence[int],
    *,
    random: bool,
) -> Outcome:
    """Remove so many units by every ranking with every repair, and as many at random."""
    ways = [(name, kind) for name in rankings for kind in repairs]
    ways += [("random", Repair.none)] if random else []
    curves: list[Curve] = []
    versions: list[Version] = []
    for i, (name, kind) in enumerate(ways):
        points = []
        for j, count in enumerate(counts):
            pruner.tell("removing heads", i * len(counts) + j, len(ways) * len(counts))
            if name == "random":
                points.append(pruner.random_point(count))
                continue
            made = pruner.repaired(kind, rankings[name].remove(count))
            points.append(pruner.point(made))
            if count:
                versions.append(Version(name, kind, made, points[-1]))
        curves.append(Curve(name, kind.value, tuple(points)))
    return Outcome(pruner, tuple(curves), tuple(versions), scores_of(pruner, rankings))


def scores_of(pruner: Pruner, rankings: Mapping[str, Ranking]) -> tuple[HeadScores, ...]:
    """Return the scores that methods give; heads that are named by hand have none."""
    by_method = (item for item in rankings.items() if item[0] != MANUAL)
    return tuple(scores_grid(*item, pruner.loaded, pruner.units) for item in by_method)


def scores_grid(name: str, ranking: Ranking, loaded: LoadedModel, units: Units) -> HeadScores:
    """Lay a ranking's values out as layers x heads; None where a layer has fewer heads."""
    grid: list[list[float | None]] = units.expand(ranking.values).tolist()
    for site, row in zip(loaded.sites, grid, strict=True):
        row[site.n_heads :] = [None] * (len(row) - site.n_heads)
    layers = tuple((site.stack, site.layer) for site in loaded.sites)
    return HeadScores(name, tuple(map(tuple, grid)), layers)


def units_by_hand(
    loaded: LoadedModel,
    units: Units,
    heads: str | None,
    roles: Mapping[Head, HeadResult],
    keep: Sequence[str],
) -> tuple[int, ...]:
    """Return the units that are removed by name, or because they have no role of ``keep``.

    ``heads`` is a list such as ``L0H1,L3H*``; without it, heads with a role of ``keep`` stay.
    """
    if heads is not None:
        what = f"heads {heads}"
        names = parse_heads(heads, {(s.stack, s.layer): s.head_ids for s in loaded.sites})
        position_of = places(loaded)
        removed = {units.unit(position_of[name]) for name in names}
    else:
        what = f"keep_roles {','.join(keep)}"
        of_heads = (key for head in roles.values() for key in head.roles)  # also labels of pairs
        role_names = list(dict.fromkeys([*(role.key for role in ROLES), *of_heads]))
        for name in keep:
            if name not in role_names:
                raise InputError(f"There is no role {name!r}; choose {', '.join(role_names)}.")
        if not roles:
            raise InputError("keep_roles needs to know what the heads do; do not turn roles off.")
        kept_heads = {head for head, result in roles.items() if set(keep) & set(result.roles)}
        removed = {u for u, members in enumerate(units.members) if kept_heads.isdisjoint(members)}
    if len(removed) == len(units):
        raise InputError(
            f"{what} would remove every head of {loaded.name}; at least one must stay."
        )
    if not removed:
        raise InputError(f"{what} would remove no head of {loaded.name}; choose others.")
    return tuple(sorted(removed))


# --- tables of single heads -----------------------------------------------------------------------


def single_heads(pruner: Pruner) -> tuple[tuple[HeadEffect, ...], tuple[HeadEffect, ...]]:
    """Measure the model without each head, and with the best head of each layer alone."""
    units = pruner.units
    loaded = pruner.loaded
    tell = pruner.tell
    by_layer = {
        layer: (units.layers == layer).nonzero().flatten().tolist()
        for layer in sorted(set(units.layers.tolist()))
    }
    chosen_on = pruner.context.calibration
    evaluation = HeadByHead(pruner.evaluation, loaded)
    calibration = HeadByHead(chosen_on.task, loaded)
    without = dict[Name, Point]()
    for layer, of_layer in by_layer.items():
        evaluation.start_at(layer)
        for unit in of_layer:
            tell("single heads", len(without), len(units))
            bare = Repaired.bare(units, [unit])
            point = pruner.point(bare, all_metrics=False, run=evaluation.outputs)
            without[point.heads_removed[0]] = point
    alone = dict[Name, Point]()
    for layer, of_layer in by_layer.items():
        qualities = []
        calibration.start_at(layer)
        for unit in of_layer:
            tell("heads left alone", len(alone), len(by_layer))
            gates = units.expand(units.gates([other for other in of_layer if other != unit]))
            qualities.append(chosen_on.quality(gates, lambda xi: calibration.outputs(gates=xi)))
        best = of_layer[int(tied(qualities).argmax())]  # on the calibration data
        others = Repaired.bare(units, [unit for unit in of_layer if unit != best])
        name = original_names(loaded, units.members[best])[0]
        alone[name] = pruner.point(others, all_metrics=False)
    return _effects(without), _effects(alone)


def _effects(points: Mapping[Name, Point]) -> tuple[HeadEffect, ...]:
    """Put points into a table, p-values adjusted over all of them; p = 1 for the full model."""
    p_values = np.array([1.0 if p.p_value is None else p.p_value for p in points.values()])
    rows = zip(points.items(), p_values.tolist(), adjust(p_values).tolist(), strict=True)
    effects = []
    for ((*stack, layer, head), point), p_value, adjusted in rows:
        change = point.difference or Estimate(None)
        row = layer, head, point.value, change, p_value, adjusted, adjusted < Q
        effects.append(HeadEffect(*row, stack=stack[0] if stack else "encoder"))
    return tuple(effects)


# --- stacks apart ---------------------------------------------------------------------------------


class Swept(NamedTuple):
    """A curve from no head removed to all, and how its values vary together."""

    method: str
    repair: str
    shares: Array  # (points,), of heads removed, from 0 to 1
    #: (points, 1 + resamples of the examples or draws of random heads): the metric itself first.
    values: Array


def swept(pruner: Pruner, curves: Sequence[Curve]) -> tuple[Swept, ...]:
    """Return the curves that run from no head removed to all, with the values of each resample."""
    complete = []
    for curve in curves:
        values = list[Any]()
        for point in curve.points:
            value = point.value.value or 0.0
            drawn = [draw.value for draw in point.draws]
            if curve.method != "random":
                drawn = pruner.resamples[id(point)].tolist()
            # Where nothing or everything is removed, there is nothing to draw.
            values.append([value, *(drawn or [value] * pruner.draws)])
        shares = np.array([point.fraction for point in curve.points])
        if (shares[0], shares[-1]) == (0.0, 1.0):
            complete.append(Swept(curve.method, curve.repair, shares, np.array(values)))
    return tuple(complete)


def areas_of(swept: dict[str, tuple[Swept, ...]]) -> tuple[tuple[Area, ...], tuple[AreaGap, ...]]:
    """Return the areas under the whole curves of every stack, and the gaps between stacks.

    They go from the first to the last head removed, over the shares that the curves of one method
    have in common in all stacks, so that they can be compared.
    """
    by_name: dict[tuple[str, str], dict[str, Swept]] = {}
    for stack, curves in swept.items():
        for curve in curves:
            by_name.setdefault((curve.method, curve.repair), {})[stack] = curve
    areas: list[Area] = []
    gaps: list[AreaGap] = []
    for name, of_stack in by_name.items():
        inner = [curve.shares[1:-1] for curve in of_stack.values()]
        low = max(min(shares, default=2.0) for shares in inner)
        high = min(max(shares, default=-1.0) for shares in inner)
        if low > high:
            continue
        values = {stack: _area(curve, low, high) for stack, curve in of_stack.items()}
        random = name[0] == "random"
        areas += [Area(stack, *name, _interval(area, random)) for stack, area in values.items()]
        for stack, other in permutations(values, 2):
            gap = _interval(values[stack] - values[other], random)
            gaps.append(AreaGap(stack, other, *name, gap))
    return tuple(areas), tuple(gaps)


def _area(curve: Swept, low: float, high: float) -> Array:
    """Return the mean of a curve over the shares from ``low`` to ``high``, by the trapezoidal rule.

    (1 + resamples,): of the metric itself first. Both ends may lie between points; over one share
    alone it is the curve's value there.
    """
    shares = curve.shares
    x = np.unique([low, *shares[(shares > low) & (shares < high)], high])
    y = make_interp_spline(shares, curve.values, k=1)(x)
    area: Array = y[0] if len(x) == 1 else trapezoid(y, x, axis=0) / (high - low)
    return area


def _interval(area: Array, random: bool) -> Estimate:
    """Return a number, first of its resamples, with its 95% interval.

    Bootstrap quantiles, or Student's t for the mean of random draws.
    """
    value = float(area[0])
    values = area[1:]
    if random:
        n = len(values)
        mean = float(values.mean())
        error = standard_error(values.sum(), (values**2).sum(), n)
        half = float(t_half_width(error, n, FEWEST_DRAWS))
        return Estimate(value, mean - half, mean + half)
    return Estimate(value, *np.quantile(values, (0.025, 0.975)).tolist())
