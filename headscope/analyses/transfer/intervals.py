"""Intervals over seeds and examples, and for how much more one variant varies than another.

Three functions are used elsewhere: :func:`crossed` is a mean over seeds and examples,
:func:`spread_ratio` the ratio of two standard deviations over seeds, with its steps below it, and
:func:`share_difference` the difference of two shares.

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

    ``values`` are (seeds, examples). ``floor`` is how much one example may differ from another: the
    standard error is not taken to be less than ``floor`` / examples. Without an interval for one
    seed or one example.
    """
    seeds, examples = values.shape
    mean = float(values.mean())
    if seeds < 2 or examples < 2:
        return Estimate(mean)

    # two-way analysis of variance: squared effects of seeds, of examples, and what is left
    seed_means = values.mean(axis=1)
    example_means = values.mean(axis=0)
    residuals = values - seed_means[:, None] - example_means + mean  # [seeds, examples]
    squares = np.array(
        [
            examples * np.square(seed_means - mean).sum(),
            seeds * np.square(example_means - mean).sum(),
            np.square(residuals).sum(),
        ]
    )
    degrees = np.array([seeds - 1, examples - 1, (seeds - 1) * (examples - 1)])
    contributions = squares / degrees / values.size  # [3], to the variance of the mean
    from_seeds, from_examples, from_residuals = contributions

    # variance of the mean, and its degrees of freedom by Satterthwaite
    variance = max(from_seeds + from_examples - from_residuals, from_seeds, from_examples)
    denominator = float((np.square(contributions) / degrees).sum())
    degrees_of_sum = variance**2 / denominator if denominator > 0 else float(seeds - 1)
    error = max(float(np.sqrt(variance)), floor / examples)
    half_width = float(stdtrit(max(degrees_of_sum, 1.0), 0.975)) * error
    return Estimate.around(mean, half_width)


#: Ratios of two deviations that are tried, from a thousandth to a thousand times, in steps of 2%.
_RATIOS = np.geomspace(1e-3, 1e3, 699)
_TINY = 1e-12  # No variance is taken to be less, so that ratios exist where runs are equal
_EQUAL = 1e-9  # Logarithms of ratios that differ by less are equal but for rounding
_DEALS = 2000  # Ways of dealing runs to two variants that are tried, at most
_TAIL = 0.025  # Share of the deals beyond each end of a 95% interval


def spread_ratio(values: ArrayLike, other_values: ArrayLike, floor: float = 0.0) -> Estimate:
    """Return the ratio of two standard deviations over seeds, with a permutation interval.

    ``values`` are the accuracies of one variant's runs, ``other_values`` the other's. A ratio lies
    inside the interval if, with it, the two variants cannot be told apart: the squared distances of
    the first variant's runs from their median (Brown & Forsythe 1974) are divided by the square of
    the ratio, and all distances are dealt to two variants anew, in every way or in 2,000. The
    observed deal must then be a usual one (:func:`_is_usual`). Ratios from a thousandth to a
    thousand are tried. Unlike the F interval this asks for no normal values, which accuracies of
    diverged runs are not.

    The ratio is unknown where a variant has fewer than two runs, or no deviation; the interval is
    unknown where there are too few deals, as of three runs each.

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
    squares = _squared_distances(first)
    other_squares = _squared_distances(second)
    deals = _deals(len(squares), len(other_squares))
    if len(deals) * _TAIL <= 1:  # of so few deals, even a single one is no rare one
        return Estimate(ratio)
    inside = [
        tried for tried in _RATIOS if _is_usual(squares / tried**2, other_squares, deals, floor)
    ]
    if not inside:
        return Estimate(ratio)
    return Estimate(ratio, min(float(inside[0]), ratio), max(float(inside[-1]), ratio))


def _deviation(values: Array) -> float:
    """Return the standard deviation; 0 if the values differ by rounding alone."""
    if not above(values.max(), values.min()):
        return 0.0
    return float(values.std(ddof=1))


def _is_usual(squares: Array, other_squares: Array, deals: Array, floor: float) -> bool:
    """Whether the observed deal, which is the first, is a usual one.

    It is if more than 2.5% of all deals have at least its ratio of the first variant's variance to
    the other's, and more than 2.5% at most its ratio.

    ``deals`` (deals, runs) bool says which of all squared distances the first variant gets.
    """
    all_squares = np.concatenate([squares, other_squares])
    least = floor**2 + _TINY
    variances = np.maximum(deals @ all_squares / len(squares), least)  # [deals]
    other_variances = np.maximum(~deals @ all_squares / len(other_squares), least)
    log_ratios = np.log(variances / other_variances)
    observed = log_ratios[0]
    share_as_large = float((log_ratios >= observed - _EQUAL).mean())
    share_as_small = float((log_ratios <= observed + _EQUAL).mean())
    return min(share_as_large, share_as_small) > _TAIL


def _squared_distances(values: Array) -> Array:
    """Return squared distances from the median, ascending.

    Of an odd number of values one is the median itself, whose distance of 0 is left out.
    """
    squares = np.sort(np.square(values - np.median(values)))
    has_median = len(values) % 2 == 1
    return squares[1:] if has_median else squares


def _deals(n_first: int, n_second: int) -> Array:
    """Return which runs each deal gives to the first variant, (deals, runs) bool.

    The observed deal comes first, then all others, or random ones where there are too many. Of two
    runs and one: ``[[1, 1, 0], [1, 0, 1], [0, 1, 1]]``.
    """
    n_runs = n_first + n_second
    if math.comb(n_runs, n_first) <= _DEALS:
        chosen = np.array(list(itertools.combinations(range(n_runs), n_first)))
    else:
        rng = np.random.default_rng(0)
        permutations = rng.random((_DEALS - 1, n_runs)).argsort(axis=1)
        chosen = np.concatenate([[np.arange(n_first)], permutations[:, :n_first]])
    deals = np.zeros((len(chosen), n_runs), dtype=bool)
    np.put_along_axis(deals, chosen, True, axis=1)
    return deals


def share_difference(hits: int, trials: int, other_hits: int, other_trials: int) -> Estimate:
    """Return hits / trials - other_hits / other_trials, with Newcombe's interval.

    It is made from Wilson's intervals of both shares.
    """
    p = hits / trials
    q = other_hits / other_trials
    p_low, p_high = map(float, wilson(hits, trials))
    q_low, q_high = map(float, wilson(other_hits, other_trials))
    low = np.hypot(p - p_low, q_high - q)
    high = np.hypot(p_high - p, q - q_low)
    return Estimate(p - q, float(p - q - low), float(p - q + high))
