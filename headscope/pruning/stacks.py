"""An encoder-decoder model pruned one stack at a time, and which of its stacks is fragile.

The curves of a stack run over shares of its heads, from none to all. What is compared is the area
under them: the more the metric falls as a stack loses heads, the smaller.

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
    """Each stack pruned alone, and the areas under the curves; empty where that was not done."""

    stacks: tuple[StackResult, ...] = ()
    areas: tuple[Area, ...] = ()
    gaps: tuple[AreaGap, ...] = ()  # Between each two stacks, both ways round


def prune_each_stack(
    loaded: LoadedModel,
    roles: Mapping[Head, HeadResult],
    prune_one: Callable[[str, LoadedModel, Mapping[Head, HeadResult]], Outcome],
) -> StacksApart:
    """Prune every stack while the others keep their heads, and compare the curves.

    ``prune_one`` gets a stack's name, a view of the model that has the heads of this stack only,
    and the roles of these heads by their positions in the view. It returns the measured curves
    and the ``pruner`` that measured them.
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
    """Return the roles of a stack's heads by their positions in a view of that stack.

    Positions count attention modules from 0. Where the encoder has six, head 1 of the decoder's
    first layer is at (6, 1) in the model, and at (0, 1) in the view of the decoder.
    """
    row_in_view = {site.layer: site.row for site in view.sites}
    roles_in_view = {}
    for (row_in_model, head), result in roles.items():
        site = loaded.sites[row_in_model]
        if site.stack == stack:
            roles_in_view[row_in_view[site.layer], head] = result
    return roles_in_view


class CompleteCurve(NamedTuple):
    """A curve from no head removed to all, and how its values vary together."""

    method: str
    repair: str
    shares: Array  # (points,), of heads removed, from 0 to 1
    #: (points, 1 + resamples): in each row the metric of a point, then what it is for other
    #: examples (bootstrap), or in other draws of random heads.
    values: Array


def complete_curves(pruner: Pruner, curves: Sequence[Curve]) -> tuple[CompleteCurve, ...]:
    """Return the curves that run from no head removed to all, with the values of each resample.

    Curves of a few fractions only are left out.
    """
    complete = []
    for curve in curves:
        shares = np.array([point.fraction for point in curve.points])
        if shares[0] != 0.0 or shares[-1] != 1.0:
            continue
        values = []
        for point in curve.points:
            value = point.value.value or 0.0  # 0 where it is not known
            if curve.method != "random":
                resamples = pruner.resamples_of(point).tolist()
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
    """Return the areas under the complete curves of every stack, and the gaps between stacks.

    Both ends, all heads and none, do not count. Areas are taken over the shares that the curves of
    one method have in common in all stacks, so that they can be compared: with points at 0, 0.25,
    0.75, 1 and at 0, 0.33, 0.67, 1 from 0.33 to 0.67.
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
        interval = _interval_of_draws if method == "random" else _bootstrap_interval
        area_by_stack = {}  # (1 + resamples,) each
        for stack, curve in curve_by_stack.items():
            area_by_stack[stack] = _area(curve, low, high)
            areas.append(Area(stack, method, repair, interval(area_by_stack[stack])))
        for stack, other_stack in permutations(area_by_stack, 2):
            gap = interval(area_by_stack[stack] - area_by_stack[other_stack])
            gaps.append(AreaGap(stack, other_stack, method, repair, gap))
    return tuple(areas), tuple(gaps)


def _area(curve: CompleteCurve, low: float, high: float) -> Array:
    """Return the mean of a curve over the shares from ``low`` to ``high``, by the trapezoidal rule.

    Returns (1 + resamples,): the mean of the metric itself, then of each resample. ``low`` and
    ``high`` may lie between points; where they are equal it is the curve's value there.
    """
    shares = curve.shares
    between = (shares > low) & (shares < high)
    x = np.unique([low, *shares[between], high])
    interpolate_linearly = make_interp_spline(shares, curve.values, k=1)
    y = interpolate_linearly(x)  # [x, 1 + resamples]
    area: Array = y[0] if len(x) == 1 else trapezoid(y, x, axis=0) / (high - low)
    return area


def _bootstrap_interval(area: Array) -> Estimate:
    """Return an area (1 + resamples,) with its 95% interval: quantiles of the resamples."""
    low, high = np.quantile(area[1:], (0.025, 0.975)).tolist()
    return Estimate(float(area[0]), low, high)


def _interval_of_draws(area: Array) -> Estimate:
    """Return an area (1 + draws,) with its 95% interval: Student's t for the mean of the draws."""
    draws = area[1:]
    n = len(draws)
    mean = float(draws.mean())
    error = standard_error(draws.sum(), (draws**2).sum(), n)
    half_width = float(t_half_width(error, n, FEWEST_DRAWS))
    return Estimate(float(area[0]), mean - half_width, mean + half_width)
