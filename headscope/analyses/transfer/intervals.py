"""Intervals over seeds and examples, and for how much more one variant varies than another.

References
----------
Satterthwaite 1946, Biometrics Bulletin 2 (degrees of freedom of a sum of variances); Scheffé 1959,
The Analysis of Variance, chapter 7 (two crossed random factors); Brown & Forsythe 1974, JASA 69
(distances from the median); Newcombe 1998, Statistics in Medicine 17 (difference of two shares,
method 10).
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from headscope.core.accumulator import Array
from headscope.core.rounding import above
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.statistics import wilson


def crossed(values: Array, floor: float = 1.0) -> Estimate:
    """Return a mean over seeds and examples; its interval covers new seeds and new examples.

    Shapes: ``values`` (seeds, examples).
    """
    seeds, examples = values.shape
    mean = float(values.mean())
    if seeds < 2 or examples < 2:
        return Estimate(mean)

    # mean squares of the two-way layout, each divided by the number of values
    by_seed = values.mean(axis=1)
    by_example = values.mean(axis=0)
    rest = values - by_seed[:, None] - by_example + mean
    degrees = np.array([seeds - 1, examples - 1, (seeds - 1) * (examples - 1)])
    squares = np.array(
        [
            examples * np.square(by_seed - mean).sum(),
            seeds * np.square(by_example - mean).sum(),
            np.square(rest).sum(),
        ]
    )
    mean_squares = squares / degrees / values.size
    of_seeds, of_examples, of_rest = mean_squares

    # variance of the mean, and its degrees of freedom by Satterthwaite
    variance = max(of_seeds + of_examples - of_rest, of_seeds, of_examples)
    spread = float((np.square(mean_squares) / degrees).sum())
    degrees_of_sum = variance**2 / spread if spread > 0 else float(seeds - 1)
    error = max(float(np.sqrt(variance)), floor / examples)
    half_width = float(stdtrit(max(degrees_of_sum, 1.0), 0.975)) * error
    return Estimate.around(mean, half_width)


#: Ratios of two spreads that are tried, from a thousandth to a thousand times, in steps of 2%.
_RATIOS = np.geomspace(1e-3, 1e3, 699)
_TINY = 1e-12  # A variance below this is none: runs that are equal.
_EQUAL = 1e-9  # Logarithms of ratios that are equal but for rounding.
_DEALS = 2000  # Ways of dealing runs to two variants that are tried, at most.


def spread_ratio(values: ArrayLike, other_values: ArrayLike, floor: float = 0.0) -> Estimate:
    """Return the ratio of two standard deviations over seeds, with a permutation interval.

    The runs of both variants are dealt to them anew: their squared distances from their variant's
    median (Brown & Forsythe 1974), the first variant's divided by the square of a ratio that is
    tried. Ratios that make the observed deal a usual one (:func:`_is_usual`) lie inside the
    interval; a thousandth to a thousand are tried. Unlike the F interval it asks for no normal
    values, which accuracies of diverged runs are not.

    Unknown where either has fewer than two values or no spread; the interval is unknown where there
    are too few deals for it (three seeds of each).

    No deviation is taken to be below ``floor``, what one example more would add: runs that agree on
    all examples that were seen may differ on others.
    """
    first = np.asarray(values, dtype=float)
    second = np.asarray(other_values, dtype=float)
    if min(len(first), len(second)) < 2:
        return UNKNOWN
    deviation = max(_deviation(first), floor)
    other_deviation = max(_deviation(second), floor)
    if not deviation or not other_deviation:
        return UNKNOWN
    ratio = deviation / other_deviation
    squares = _from_median(first)
    other_squares = _from_median(second)
    deals = _deals(len(squares), len(other_squares))
    if len(deals) * 0.025 <= 1:  # not even the observed deal alone is rare enough
        return Estimate(ratio)
    inside = [
        tried for tried in _RATIOS if _is_usual(squares / tried**2, other_squares, deals, floor)
    ]
    if not inside:
        return Estimate(ratio)
    return Estimate(ratio, min(float(inside[0]), ratio), max(float(inside[-1]), ratio))


def _deviation(values: Array) -> float:
    """Return the standard deviation; one that is only rounding counts as none."""
    if not above(values.max(), values.min()):
        return 0.0
    return float(values.std(ddof=1))


def _is_usual(squares: Array, other_squares: Array, deals: Array, floor: float) -> bool:
    """Whether the observed deal, the first, is a usual one for the first variant.

    It is where more than 2.5% of all deals give that variant at least as large a variance relative
    to the other's, and more than 2.5% at most as large a one.

    ``deals`` (deals, runs) says which of the squared distances of all runs the first one gets.
    """
    dealt = np.concatenate([squares, other_squares])
    least = floor**2 + _TINY
    variances = np.maximum(deals @ dealt / len(squares), least)
    other_variances = np.maximum(~deals @ dealt / len(other_squares), least)
    gained = np.log(variances / other_variances)
    as_large = float((gained >= gained[0] - _EQUAL).mean())
    as_small = float((gained <= gained[0] + _EQUAL).mean())
    return min(as_large, as_small) > 0.025


def _from_median(values: Array) -> Array:
    """Return squared distances from the median, without that of the median itself (always 0)."""
    squares = np.sort(np.square(values - np.median(values)))
    return squares[len(values) % 2 :]


def _deals(n_first: int, n_second: int) -> Array:
    """Return which runs each deal gives to the first variant, bool, (deals, runs).

    The first is that which was observed; the others are all there are, or random ones.
    """
    n_runs = n_first + n_second
    if math.comb(n_runs, n_first) <= _DEALS:
        chosen = np.array(list(itertools.combinations(range(n_runs), n_first)))
    else:
        rng = np.random.default_rng(0)
        chosen = rng.random((_DEALS - 1, n_runs)).argsort(axis=1)[:, :n_first]
        chosen = np.concatenate([[np.arange(n_first)], chosen])
    deals = np.zeros((len(chosen), n_runs), dtype=bool)
    np.put_along_axis(deals, chosen, True, axis=1)
    return deals


def share_difference(hits: int, trials: int, other_hits: int, other_trials: int) -> Estimate:
    """Return hits / trials - other_hits / other_trials with Newcombe's interval from Wilson's."""
    p = hits / trials
    q = other_hits / other_trials
    p_low, p_high = map(float, wilson(hits, trials))
    q_low, q_high = map(float, wilson(other_hits, other_trials))
    low = np.hypot(p - p_low, q_high - q)
    high = np.hypot(p_high - p, q - q_low)
    return Estimate(p - q, float(p - q - low), float(p - q + high))
