"""An encoder-decoder model pruned one stack at a time, and which of its stacks is fragile.

References
----------
Michel et al. 2019, arXiv:1905.10650, section 4: encoder, decoder and cross-attention apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
from scipy.integrate import trapezoid
from scipy.interpolate import make_interp_spline

from headscope.analyses.classify.result import HeadResult
from headscope.core.accumulator import Array
from headscope.models.run.loaded import LoadedModel
from headscope.pruning.curves import Outcome
from headscope.pruning.measure import Pruner
from headscope.pruning.result import Area, AreaGap, Curve, StackResult
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import FEWEST_DRAWS, standard_error, t_half_width
from headscope.tasks.units import Head


class StacksApart(NamedTuple):
    """Each stack pruned alone, and the areas under the curves."""

    stacks: tuple[StackResult, ...] = ()
    areas: tuple[Area, ...] = ()
    gaps: tuple[AreaGap, ...] = ()


def prune_each_stack(
    loaded: LoadedModel,
    roles: Mapping[Head, HeadResult],
    prune_one: Callable[[str, LoadedModel, Mapping[Head, HeadResult]], Outcome],
) -> StacksApart:
    """Prune every stack while the others keep their heads, and compare the curves.

    ``prune_one`` gets a stack's name, its view of the model, and the roles of its heads by their
    positions in that view.
    """
    results = []
    curves_of_stacks = {}
    for stack in loaded.stacks:
        view = loaded.only(stack)
        outcome = prune_one(stack, view, _roles_in_view(loaded, roles, stack, view))
        pruner = outcome.pruner
        results.append(StackResult(stack, pruner.n_heads, outcome.curves, outcome.scores))
        curves_of_stacks[stack] = complete_curves(pruner, outcome.curves)
    areas, gaps = areas_of(curves_of_stacks)
    return StacksApart(tuple(results), areas, gaps)


def _roles_in_view(
    loaded: LoadedModel, roles: Mapping[Head, HeadResult], stack: str, view: LoadedModel
) -> dict[Head, HeadResult]:
    """Return the roles of a stack's heads by their positions in a view of that stack."""
    row_in_view = {site.layer: site.row for site in view.sites}
    roles_in_view = {}
    for (row, head), result in roles.items():
        site = loaded.sites[row]
        if site.stack == stack:
            roles_in_view[row_in_view[site.layer], head] = result
    return roles_in_view


class CompleteCurve(NamedTuple):
    """A curve from no head removed to all, and how its values vary together."""

    method: str
    repair: str
    shares: Array  # (points,), of heads removed, from 0 to 1
    #: (points, 1 + resamples of the examples or draws of random heads): the metric itself first.
    values: Array


def complete_curves(pruner: Pruner, curves: Sequence[Curve]) -> tuple[CompleteCurve, ...]:
    """Return the curves that run from no head removed to all, with the values of each resample."""
    complete = []
    for curve in curves:
        shares = np.array([point.fraction for point in curve.points])
        if shares[0] != 0.0 or shares[-1] != 1.0:
            continue
        values = []
        for point in curve.points:
            value = point.value.value or 0.0
            if curve.method != "random":
                resamples = pruner.resamples[id(point)].tolist()
            elif point.draws:
                resamples = [draw.value for draw in point.draws]
            else:  # where nothing or everything is removed, there is nothing to draw
                resamples = [value] * pruner.draws
            values.append([value, *resamples])
        complete.append(CompleteCurve(curve.method, curve.repair, shares, np.array(values)))
    return tuple(complete)


def areas_of(
    curves_of_stacks: Mapping[str, Sequence[CompleteCurve]],
) -> tuple[tuple[Area, ...], tuple[AreaGap, ...]]:
    """Return the areas under the whole curves of every stack, and the gaps between stacks.

    They go from the first to the last head removed, over the shares that the curves of one method
    have in common in all stacks, so that they can be compared.
    """
    # The curves of the stacks, by method and repair.
    by_method: dict[tuple[str, str], dict[str, CompleteCurve]] = {}
    for stack, curves in curves_of_stacks.items():
        for curve in curves:
            by_method.setdefault((curve.method, curve.repair), {})[stack] = curve
    areas: list[Area] = []
    gaps: list[AreaGap] = []
    for (method, repair), curve_by_stack in by_method.items():
        # The shares that they have in common.
        inner_shares = [curve.shares[1:-1] for curve in curve_by_stack.values()]
        if any(len(shares) == 0 for shares in inner_shares):
            continue
        low = max(shares.min() for shares in inner_shares)
        high = min(shares.max() for shares in inner_shares)
        if low > high:
            continue

        # The areas over these, and the gaps between them.
        random = method == "random"
        area_by_stack = {}
        for stack, curve in curve_by_stack.items():
            area_by_stack[stack] = _area(curve, low, high)
            areas.append(Area(stack, method, repair, _interval(area_by_stack[stack], random)))
        for stack, other_stack in permutations(area_by_stack, 2):
            gap = _interval(area_by_stack[stack] - area_by_stack[other_stack], random)
            gaps.append(AreaGap(stack, other_stack, method, repair, gap))
    return tuple(areas), tuple(gaps)


def _area(curve: CompleteCurve, low: float, high: float) -> Array:
    """Return the mean of a curve over the shares from ``low`` to ``high``, by the trapezoidal rule.

    Returns (1 + resamples,), that of the metric itself first. ``low`` and ``high`` may lie between
    points; over one share alone it is the curve's value there.
    """
    shares = curve.shares
    x = np.unique([low, *shares[(shares > low) & (shares < high)], high])
    y = make_interp_spline(shares, curve.values, k=1)(x)
    area: Array = y[0] if len(x) == 1 else trapezoid(y, x, axis=0) / (high - low)
    return area


def _interval(area: Array, random: bool) -> Estimate:
    """Return an area with its 95% interval; ``area`` (1 + resamples,) has the metric's own first.

    Bootstrap quantiles, or for ``random`` heads Student's t for the mean of the draws.
    """
    value = float(area[0])
    resamples = area[1:]
    if random:
        n = len(resamples)
        mean = float(resamples.mean())
        error = standard_error(resamples.sum(), (resamples**2).sum(), n)
        half = float(t_half_width(error, n, FEWEST_DRAWS))
        return Estimate(value, mean - half, mean + half)
    low, high = np.quantile(resamples, (0.025, 0.975)).tolist()
    return Estimate(value, low, high)
