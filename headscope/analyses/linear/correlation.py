"""Whether two properties of heads go together, within layers: key coherence and error, say.

A property is a number for each head. Each layer's correlation r becomes Fisher's z = arctanh r; the
mean z over layers has an interval by Student's t, and tanh brings both back.
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

FEWEST_LAYERS = 4  # Fewer layers than this give no interval.
FEWEST_HEADS = 4  # A layer with fewer heads than this is left out.


class Correlated(NamedTuple):
    """A correlation within layers."""

    estimate: Estimate  # tanh of the mean z, and of the ends of its interval
    p: float | None = None  # Two-sided, by the same t; None where there is no interval.
    layers: int = 0  # Layers whose correlation could be measured.


def correlate(
    x: Array, y: Array, layer: Array, *, ranks: bool, fixed: Array | None = None
) -> Correlated:
    """Correlate the properties ``x`` and ``y`` within layers, holding ``fixed`` constant.

    ``layer`` is the layer of each head. ``ranks`` asks for Spearman's correlation, else it is
    Pearson's.

    Shapes: ``x``, ``y``, ``layer``, ``fixed`` (heads,).
    """
    # Correlate the heads of each layer.
    known = np.isfinite(x) & np.isfinite(y)
    if fixed is not None:
        known &= np.isfinite(fixed)
    by_layer = []
    n_heads = []
    for one_layer in np.unique(layer):
        in_layer = known & (layer == one_layer)
        if in_layer.sum() < FEWEST_HEADS:
            continue
        fixed_values = [] if fixed is None else [fixed[in_layer]]
        r = _correlation(x[in_layer], y[in_layer], fixed_values, ranks)
        if np.isfinite(r):
            by_layer.append(r)
            n_heads.append(int(in_layer.sum()))
    if not by_layer:
        return Correlated(UNKNOWN)

    # Average Fisher's z. That of a correlation of 1 is infinite, and few heads can be ranked alike
    # by chance: 1 counts as 1 less half of the smallest step that Spearman's can take,
    # 12 / (n^3 - n) for n heads.
    n_layers = len(by_layer)
    n = np.array(n_heads, dtype=float)
    largest = 1 - 6 / (n**3 - n)
    z = np.arctanh(np.clip(by_layer, -largest, largest))
    mean = float(z.mean())
    if n_layers < FEWEST_LAYERS:
        return Correlated(Estimate(float(np.tanh(mean))), layers=n_layers)

    # Its interval, and p, by how far the layers differ.
    error = float(z.std(ddof=1)) / np.sqrt(n_layers)
    if error <= ROUNDING * abs(mean):
        # All layers are equal: take the variance of z over independent heads, 1 / (n - 3).
        variances = 1 / np.maximum(n - 3, 1)
        error = float(np.sqrt(variances.sum())) / n_layers
    half_width = float(t_half_width(error, n_layers, FEWEST_LAYERS))
    p = 2 * float(stdtr(n_layers - 1, -abs(mean) / error)) if error else 1.0
    value, low, high = np.tanh([mean, mean - half_width, mean + half_width]).tolist()
    return Correlated(Estimate(value, low, high), p, n_layers)


def _correlation(x: Array, y: Array, fixed: Sequence[Array], ranks: bool) -> float:
    """Correlate two properties of one layer's heads; NaN where one is constant.

    What the properties ``fixed`` explain of both by least squares is taken away first.
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
    """Return what a least-squares fit by the columns of ``design`` leaves of values, at length 1.

    NaN where that is nothing but rounding.
    """
    coefficients = np.linalg.lstsq(design, values, rcond=None)[0]
    residual = values - design @ coefficients
    length = np.linalg.norm(residual)
    if length <= ROUNDING * np.linalg.norm(values):
        return np.full(len(values), np.nan)
    return np.asarray(residual / length)


def _ranks(values: Array) -> Array:
    """Rank values from 1; equal ones get the mean of their ranks: 5, 7, 7 -> 1, 2.5, 2.5."""
    ordered = np.sort(values)  # scipy.stats, which has this too, takes half a second to load
    smaller = np.searchsorted(ordered, values)
    not_larger = np.searchsorted(ordered, values, "right")
    return np.asarray((smaller + not_larger + 1) / 2)
