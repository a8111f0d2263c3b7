"""Whether two numbers of heads go together, within layers.

Each layer's correlation r becomes Fisher's z = arctanh r; the mean z over layers has an interval by
Student's t, and tanh brings both back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from headscope.core.accumulator import Array
from headscope.core.rounding import ROUNDING, tied
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.statistics import t_half_width

LAYERS = 4  # Fewer layers than this give no interval.
HEADS = 4  # A layer with fewer heads than this is left out.


class Correlated(NamedTuple):
    """A correlation within layers."""

    estimate: Estimate  # tanh of the mean z, and of the ends of its interval
    p: float | None = None  # Two-sided, by the same t; None where there is no interval.
    layers: int = 0  # How many count.


def correlate(
    x: Array, y: Array, layer: Array, *, ranks: bool, fixed: Array | None = None
) -> Correlated:
    """Correlate two numbers of heads within their layers, holding ``fixed`` constant.

    ``ranks`` asks for Spearman's correlation, else it is Pearson's.

    Shapes: ``x``, ``y``, ``layer``, ``fixed`` (heads,).
    """
    # Correlate the heads of each layer.
    known = np.isfinite(x) & np.isfinite(y)
    if fixed is not None:
        known &= np.isfinite(fixed)
    by_layer = []
    n_heads = []
    for number in np.unique(layer):
        in_layer = known & (layer == number)
        if in_layer.sum() < HEADS:
            continue
        fixed_values = [] if fixed is None else [fixed[in_layer]]
        r = _correlation(x[in_layer], y[in_layer], fixed_values, ranks)
        if np.isfinite(r):
            by_layer.append(r)
            n_heads.append(int(in_layer.sum()))
    if not by_layer:
        return Correlated(UNKNOWN)

    # Average Fisher's z. A correlation of 1 has none, and few heads can be ranked alike by chance:
    # it counts as 1 less half of the smallest step that Spearman's can take.
    n_layers = len(by_layer)
    size = np.array(n_heads, dtype=float)
    most = 1 - 6 / (size**3 - size)
    z = np.arctanh(np.clip(by_layer, -most, most))
    mean = float(z.mean())
    if n_layers < LAYERS:
        return Correlated(Estimate(float(np.tanh(mean))), layers=n_layers)

    # Its interval, and p, by how far the layers differ.
    error = float(z.std(ddof=1)) / np.sqrt(n_layers)
    if error <= ROUNDING * abs(mean):  # all layers equal: use the spread of independent heads
        error = float(np.sqrt((1 / np.maximum(size - 3, 1)).sum())) / n_layers
    half_width = float(t_half_width(error, n_layers, LAYERS))
    p = 2 * float(stdtr(n_layers - 1, -abs(mean) / error)) if error else 1.0
    value, low, high = np.tanh([mean, mean - half_width, mean + half_width]).tolist()
    return Correlated(Estimate(value, low, high), p, n_layers)


def _correlation(x: Array, y: Array, fixed: Sequence[Array], ranks: bool) -> float:
    """Correlate two numbers of one layer's heads; NaN where one is constant.

    What ``fixed`` explains of both by least squares is taken away first.
    """
    if _is_constant(x) or _is_constant(y):
        return np.nan
    if ranks:
        # Heads that are equal on paper get equal ranks.
        x = _ranks(tied(x))
        y = _ranks(tied(y))
        fixed = [_ranks(tied(values)) for values in fixed]
    design = np.stack([np.ones(len(x)), *fixed], axis=1)
    return float(_residual(x, design) @ _residual(y, design))


def _is_constant(values: Array) -> bool:
    """Whether values differ by no more than rounding."""
    return bool(np.ptp(values) <= ROUNDING * np.abs(values).max())


def _residual(values: Array, design: Array) -> Array:
    """Return what a fit leaves of values, at length 1; NaN where that is nothing but rounding."""
    residual = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    length = np.linalg.norm(residual)
    if length <= ROUNDING * np.linalg.norm(values):
        return np.full(len(values), np.nan)
    return np.asarray(residual / length)


def _ranks(values: Array) -> Array:
    """Rank values from 1; equal ones get the mean of their ranks."""
    ordered = np.sort(values)  # scipy.stats, which has this too, takes half a second to load
    smaller = np.searchsorted(ordered, values)
    not_larger = np.searchsorted(ordered, values, "right")
    return np.asarray((smaller + not_larger + 1) / 2)
