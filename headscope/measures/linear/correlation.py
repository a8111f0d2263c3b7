"""Whether one number of heads goes with another: correlations within layers, with intervals.

Heads of a layer read the same states and are not independent of each other, and layers differ in
everything; so heads are compared within their layer, and layers are what is sampled. Each layer has
a correlation r and its Fisher z = artanh r; the interval is Student's t over the layers' z.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from headscope.measures.accumulator import Array
from headscope.measures.rounding import ROUNDING, tied
from headscope.measures.statistics import t_half_width

#: Fewer layers than this give no interval, fewer heads no correlation of a layer.
LAYERS, HEADS = 4, 4


@dataclass(frozen=True)
class Correlated:
    """A correlation within layers and its 95% interval.

    Attributes
    ----------
    value, low, high : float
        tanh of the mean z, and of the ends of its interval; NaN where it is not defined.
    p : float
        Two-sided, by the same t; NaN where there is no interval.
    layers : int
        How many count.
    """

    value: float
    low: float
    high: float
    p: float
    layers: int


def correlate(
    x: Array, y: Array, layer: Array, *, ranks: bool, given: Array | None = None
) -> Correlated:
    """Correlate two numbers of the same heads within their layers.

    Parameters
    ----------
    x, y : array of float, (heads,)
        The numbers; heads where any is not finite are left out.
    layer : array, (heads,)
        The layer of each.
    ranks : bool
        Spearman's correlation, of ranks within the layer; else Pearson's.
    given : array of float, (heads,), optional
        What is held constant: the correlation is that of what a linear fit on it leaves of both (of
        their ranks, and of its own).

    Returns
    -------
    Correlated
        Layers where a side is constant, or with fewer than :data:`HEADS` heads, do not count.
    """
    kept = np.isfinite(x) & np.isfinite(y) & (True if given is None else np.isfinite(given))
    found, heads = [], []
    for number in np.unique(layer):
        here = kept & (layer == number)
        sides = [x[here], y[here], *([] if given is None else [given[here]])]
        r = _correlation(sides, ranks) if here.sum() >= HEADS else np.nan
        if np.isfinite(r):
            found.append(r)
            heads.append(int(here.sum()))
    if not found:
        return Correlated(np.nan, np.nan, np.nan, np.nan, 0)
    n, size = len(found), np.array(heads, dtype=float)
    # Among n heads ranks agree by chance now and then: 1 counts as half a step of Spearman's less.
    most = 1 - 6 / (size**3 - size)
    z = np.arctanh(np.clip(found, -most, most))
    mean = float(z.mean())
    if n < LAYERS:
        return Correlated(float(np.tanh(mean)), np.nan, np.nan, np.nan, n)
    error = float(z.std(ddof=1)) / np.sqrt(n)
    if error <= ROUNDING * abs(mean):  # all at the bound: what independent heads would vary by
        error = float(np.sqrt((1 / np.maximum(size - 3, 1)).sum())) / n
    half = float(t_half_width(error, np.array(n)))
    p = 2 * float(stats.t.sf(abs(mean) / error, n - 1)) if error else 1.0
    low, high = np.tanh([mean - half, mean + half]).tolist()
    return Correlated(float(np.tanh(mean)), low, high, p, n)


def _correlation(sides: list[Array], ranks: bool) -> float:
    """Correlate the first two numbers of one layer; NaN where one is constant."""
    if any(np.ptp(side) <= ROUNDING * np.abs(side).max() for side in sides[:2]):
        return np.nan
    # Heads that are equal on paper get equal ranks.
    x, y, *given = (stats.rankdata(tied(side)) if ranks else side for side in sides)
    design = np.stack([np.ones(len(x)), *given], axis=1)
    left = []
    for side in (x, y):
        rest = side - design @ np.linalg.lstsq(design, side, rcond=None)[0]
        # What a fit explains to the last digit leaves rounding, which correlates with nothing.
        if np.linalg.norm(rest) <= ROUNDING * np.linalg.norm(side):
            return np.nan
        left.append(rest / np.linalg.norm(rest))
    return float(left[0] @ left[1])
