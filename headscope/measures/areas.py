"""The area under a curve of a metric over shares of heads removed, with its interval.

The curve is a straight line between its points, so the area from share 0 to 1 is a weighted sum of
its values, and whatever is known of these together (bootstrap resamples, random draws) gives the
area's own spread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.statistics import standard_error, t_half_width


def area_weights(shares: Sequence[float]) -> Array:
    """Return what each point counts in the area by the trapezoidal rule, (points,).

    Parameters
    ----------
    shares : sequence of float
        Ascending, from 0 on; two or more.

    Returns
    -------
    array, (points,)
        Weights that sum to 1: the area is a mean over the shares, however far they go.
    """
    steps = np.diff(np.asarray(shares, dtype=float))
    weights: Array = (np.append(steps, 0.0) + np.insert(steps, 0, 0.0)) / (2 * steps.sum())
    return weights


def bootstrap_interval(resamples: Array) -> tuple[float, float]:
    """Return the 2.5% and 97.5% quantiles."""
    low, high = np.quantile(resamples, (0.025, 0.975)).tolist()
    return low, high


def draws_interval(values: Array) -> tuple[float, float]:
    """Return the 95% interval (Student's t) of the mean of some random draws, two or more."""
    n, mean = len(values), float(values.mean())
    half = float(t_half_width(standard_error(values.sum(), (values**2).sum(), n), n))
    return mean - half, mean + half
