"""The area under a curve of a metric over shares of heads removed, with its interval.

The curve is a straight line between its points, so the area over any range of shares is a weighted
sum of its values, and whatever is known of these together (bootstrap resamples, random draws) gives
the area's own spread. Curves with points at different shares are compared over one range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from headscope.core.accumulator import Array
from headscope.stats.statistics import standard_error, t_half_width


def area_weights(shares: Sequence[float], between: tuple[float, float] | None = None) -> Array:
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


def inner_range(curves: Iterable[Sequence[float]]) -> tuple[float, float] | None:
    """Return the shares between the first and the last head removed that all curves cover.

    ``curves`` are the shares of each. None where one of them has no point between 0 and 1, or they
    have no share in common.
    """
    inner = [[share for share in shares if 0.0 < share < 1.0] for shares in curves]
    if not all(inner):
        return None
    low, high = max(map(min, inner)), min(map(max, inner))
    return (low, high) if low <= high else None


def bootstrap_interval(resamples: Array) -> tuple[float, float]:
    """Return the 2.5% and 97.5% quantiles."""
    low, high = np.quantile(resamples, (0.025, 0.975)).tolist()
    return low, high


def draws_interval(values: Array) -> tuple[float, float]:
    """Return the 95% interval (Student's t) of the mean of some random draws, two or more."""
    n, mean = len(values), float(values.mean())
    half = float(t_half_width(standard_error(values.sum(), (values**2).sum(), n), n))
    return mean - half, mean + half
