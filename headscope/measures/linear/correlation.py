"""Whether one number of heads goes with another: correlations with intervals and permutations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from headscope.measures.accumulator import Array
from headscope.measures.rounding import FRACTION, tied

#: Bootstrap resamples of heads, and permutations.
RESAMPLES = 1000
PERMUTATIONS = 10_000
#: Fewer heads than this give no interval.
_FEWEST = 5


@dataclass(frozen=True)
class Correlated:
    """A correlation over heads, its 95% bootstrap interval, and how often chance exceeds it.

    Attributes
    ----------
    value, low, high : float
        NaN where it is not defined.
    p : float
        Two-sided, by permutation of one side; NaN where it is not defined.
    """

    value: float
    low: float
    high: float
    p: float


def correlate(
    x: Array, y: Array, *, ranks: bool, given: Array | None = None, seed: int = 0
) -> Correlated:
    """Correlate two numbers of the same heads.

    Parameters
    ----------
    x, y : array of float, (heads,)
        The numbers; heads where any is not finite are left out.
    ranks : bool
        Spearman's correlation, of ranks; else Pearson's.
    given : array of float, (heads,) or (heads, columns), optional
        What is held constant: the correlation is that of what a linear fit on it leaves of both (of
        their ranks, and of its own where it has one column).
    seed : int
        Of the resamples and permutations.

    Returns
    -------
    Correlated
        Heads are the sampled unit, drawn anew with replacement.
    """
    kept = np.isfinite(x) & np.isfinite(y)
    if given is not None:
        given = given[:, None] if given.ndim == 1 else given
        kept &= np.isfinite(given).all(axis=1)
        given = tied(given[kept].T).T
    x, y = tied(x[kept]), tied(y[kept])  # heads that are equal on paper get equal ranks
    every = np.arange(len(x))[None]
    value = float(_correlations(x, y, every, ranks, given)[0])
    if len(x) < _FEWEST or not np.isfinite(value):
        return Correlated(value, np.nan, np.nan, np.nan)
    rng = np.random.default_rng(seed)
    heads = rng.integers(0, len(x), size=(RESAMPLES, len(x)))
    low, high = np.nanquantile(_correlations(x, y, heads, ranks, given), (0.025, 0.975)).tolist()
    return Correlated(value, low, high, _permutation_p(x, y, ranks, given, rng))


def _correlations(x: Array, y: Array, heads: Array, ranks: bool, given: Array | None) -> Array:
    """Correlation of each row of heads (samples, heads); NaN where a side is constant."""
    if len(x) < 3:
        return np.full(len(heads), np.nan)
    x, y = (_prepared(values, heads, ranks, given) for values in (x, y))
    size = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(size > 0, (x * y).sum(1) / size, np.nan)


def _prepared(values: Array, heads: Array, ranks: bool, given: Array | None) -> Array:
    """Return each sample's values, or ranks, without their mean and what else is held constant."""
    drawn = values[heads]
    drawn = stats.rankdata(drawn, axis=1) if ranks else drawn
    whole = np.linalg.norm(drawn, axis=1, keepdims=True)
    drawn = _beside(whole, drawn - drawn.mean(axis=1, keepdims=True))
    if given is None:
        return np.asarray(drawn)
    columns = given[heads]  # (samples, heads, columns)
    if ranks and given.shape[1] == 1:
        columns = stats.rankdata(columns, axis=1)
    design = np.concatenate([np.ones((*heads.shape, 1)), columns], axis=2)
    basis, sizes, _ = np.linalg.svd(design, full_matrices=False)
    # A sample may lack a layer altogether: its column then spans nothing.
    basis = basis * (sizes > 1e-9 * sizes[:, :1])[:, None, :]
    left = drawn - (basis @ (np.swapaxes(basis, 1, 2) @ drawn[..., None]))[..., 0]
    return _beside(whole, left)


def _beside(whole: Array, left: Array) -> Array:
    """Return what a mean or a fit leaves; 0 where that is rounding, which correlates with nothing.

    In float64, of numbers of which those that agree to float32 have been made equal.
    """
    rest = np.linalg.norm(left, axis=1, keepdims=True)
    return np.asarray(left * (rest > 1e-9 * whole))


def _permutation_p(
    x: Array, y: Array, ranks: bool, given: Array | None, rng: np.random.Generator
) -> float:
    """Return how often a random order of one side correlates as strongly, both signs."""
    every = np.arange(len(x))[None]
    x, y = (_prepared(values, every, ranks, given)[0] for values in (x, y))
    order = rng.permuted(np.tile(np.arange(len(x)), (PERMUTATIONS, 1)), axis=1)
    by_chance = np.abs(x[order] @ y)
    return float((1 + (by_chance >= abs(x @ y) * (1 - FRACTION)).sum()) / (1 + PERMUTATIONS))
