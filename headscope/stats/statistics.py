"""Intervals and p-values, in this order: of rates, of means over sentences, and of random draws.

Most functions take arrays with an entry for each head, and nothing but sums over what was measured:
counts, sums of values and of their squares. The distributions are those of ``scipy.special``
(``ndtri`` is the normal quantile, ``stdtr`` and ``stdtrit`` are Student's distribution and its
quantile, ``betainc`` gives the binomial one): ``scipy.stats`` takes half a second to load.

References
----------
Wilson 1927, JASA 22; Agresti & Coull 1998, The American Statistician 52; McNemar 1947,
Psychometrika 12; Benjamini & Hochberg 1995, JRSS B 57; Carter, Schnepel & Steigerwald 2017, Review
of Economics and Statistics 99 (effective number of clusters); Korn & Graubard 1998, Survey
Methodology 24 (Wilson's interval of a clustered share); Efron & Tibshirani 1993, An Introduction to
the Bootstrap, chapter 11 (jackknife).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, ndtri, stdtr, stdtrit

from headscope.core.accumulator import Array
from headscope.core.rounding import ROUNDING, above
from headscope.stats.estimate import Estimate, JointEstimate

Z95 = float(ndtri(0.975))  # Normal quantile of a two-sided 95% interval.
#: Fewest sampled units (sentences, lines, windows, examples) for which an interval or a p-value is
#: given.
FEWEST_UNITS = 8
#: Fewest random draws or layers whose spread gives an interval.
FEWEST_DRAWS = 2


# --- rates ---


def wilson(hits: ArrayLike, trials: ArrayLike) -> tuple[Array, Array]:
    """Return the 95% Wilson score interval of hits / trials; (0, 1) where there is no trial."""
    n = np.asarray(trials, dtype=float)
    has_trial = n > 0
    n = np.where(has_trial, n, 1.0)  # no division by 0; replaced by (0, 1) below
    p = np.asarray(hits, dtype=float) / n
    z2 = Z95**2
    centre = p + z2 / (2 * n)
    half = Z95 * np.sqrt(p * (1 - p) / n + z2 / (4 * n**2))
    low = np.where(has_trial, (centre - half) / (1 + z2 / n), 0.0)
    high = np.where(has_trial, (centre + half) / (1 + z2 / n), 1.0)
    # Rounding must not put the rate itself outside: at 0 or 1 it is an end of the interval.
    return np.clip(low, 0.0, p), np.clip(high, p, 1.0)


def agresti_coull(hits: float, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Return the Agresti-Coull interval of hits / trials, one or more: Wilson's, but wider.

    Both have the same middle. Near rates of 0 and 1 Wilson's covers too little (92% at a rate of
    98% of 50, 91% at 99%), this one 93.5% or more of any rate of 50 trials.
    """
    z = float(-ndtri((1 - level) / 2))
    n = trials + z**2
    p = (hits + z**2 / 2) / n
    half = z * float(np.sqrt(p * (1 - p) / n))
    return max(p - half, 0.0), min(p + half, 1.0)


def mcnemar_p(only_head: ArrayLike, only_baseline: ArrayLike) -> Array:
    """Return p of the exact two-sided McNemar test that both disagreements are equally frequent.

    The arguments count trials that just one of the two hits, the head or the baseline; p is 1 where
    they never disagree.
    """
    only_head = np.asarray(only_head, dtype=float)
    only_baseline = np.asarray(only_baseline, dtype=float)
    rarer = np.minimum(only_head, only_baseline)
    commoner = np.maximum(only_head, only_baseline)
    # The probability that of as many fair coins as there are disagreements ``rarer`` or fewer
    # fall on one side: the binomial distribution function is an incomplete beta function.
    one_sided = betainc(commoner, rarer + 1, 0.5)
    one_sided = np.where(rarer + commoner > 0, one_sided, 1.0)
    return np.asarray(np.minimum(1.0, 2.0 * one_sided))


def paired_p(
    hits: ArrayLike,
    chances_at_hits: ArrayLike,
    expected: float,
    expected_squared: float,
    trials: int,
) -> Array:
    """Return p of a one-sided paired z-test: do hits beat a baseline of known chances?

    Each trial has the chance with which the baseline hits it. ``hits`` and ``trials`` are counts;
    ``expected`` and ``expected_squared`` are the sums over all trials of the chances and of their
    squares; ``chances_at_hits`` is the sum of the chances over the trials that were hit.
    """
    hits = np.asarray(hits, dtype=float)
    n = max(trials, 1)
    # The gap of a trial is 1 - chance where it was hit and -chance elsewhere; the squares are
    # 1 - 2 chance + chance^2 and chance^2.
    mean_gap = (hits - expected) / n
    mean_square = (hits - 2.0 * np.asarray(chances_at_hits) + expected_squared) / n
    error = np.sqrt(np.clip(mean_square - mean_gap**2, 0.0, None) / n)
    return t_p(hits / n, error, expected / n, np.inf)


def binomial_p(hits: ArrayLike, trials: ArrayLike, chance: ArrayLike) -> Array:
    """Return p of the exact binomial test: the probability of at least ``hits`` at ``chance``."""
    k = np.asarray(hits, dtype=float)
    n = np.asarray(trials, dtype=float)
    return np.where(n > 0, betainc(k, n - k + 1, np.asarray(chance, dtype=float)), 1.0)


def below_chance(right: int, predicted: ArrayLike, gold: ArrayLike) -> tuple[float, float]:
    """Return the share of right guesses that chance gives, and p of as few as there are.

    ``right`` counts the right guesses; ``predicted`` and ``gold`` count how often each class was
    guessed and how often it is right. Chance guesses every class as often as the model does,
    whatever it reads, and is right where that meets the gold share (as in Cohen's kappa). p is that
    of the exact binomial test: the probability of at most ``right``.
    """
    guess_counts = np.asarray(predicted, dtype=float)
    gold_counts = np.asarray(gold, dtype=float)
    n = float(gold_counts.sum())
    chance = float(guess_counts @ gold_counts) / n**2
    wrong = n - right
    return chance, float(binomial_p(wrong, n, 1 - chance))


# --- means over sentences ---


def t_p(mean: ArrayLike, error: ArrayLike, reference: ArrayLike, units: ArrayLike) -> Array:
    """Return p of a one-sided t-test: the probability of a mean this far above ``reference``.

    ``error`` is the standard error of ``mean``, ``units`` the number of sampled units that it comes
    from (infinite for a z-test). A mean that differs from the reference by rounding alone has
    p 1/2. Where all units agree (no error), p is that of a sign test, 1/2 to the power of units.
    Without a standard error (infinite or NaN) p is 1.
    """
    mean = np.asarray(mean, dtype=float)
    reference = np.asarray(reference, dtype=float)
    error = np.asarray(error, dtype=float)
    units = np.asarray(units, dtype=float)
    differ = above(mean, reference) | above(reference, mean)  # by more than rounding
    gap = np.where(differ, mean - reference, 0.0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        by_t = stdtr(np.maximum(units - 1.0, 1.0), -gap / error)
        by_sign = np.select([gap > 0, gap < 0], [0.5**units, 1.0], default=0.5)
    p = np.where(error > ROUNDING, by_t, by_sign)
    return np.where(np.isfinite(error) & np.isfinite(gap), p, 1.0)


def share_interval(mean: ArrayLike, error: ArrayLike, units: ArrayLike) -> tuple[Array, Array]:
    """Return the 95% interval of a share, or of a mean of weights between 0 and 1.

    ``error`` is the standard error of ``mean``, ``units`` the number of sampled units. Near 0 and 1
    mean -/+ t standard errors covers far too little, so this is Wilson's interval, with Student's
    quantile in place of the normal one. Its number of trials is that with which a rate would have
    this standard error; where all units agree, one trial a unit. NaN without a standard error
    (infinite or NaN).
    """
    mean = np.asarray(mean, dtype=float)
    error = np.asarray(error, dtype=float)
    units = np.asarray(units, dtype=float)
    t2 = np.square(stdtrit(np.maximum(units - 1.0, 1.0), 0.975))
    p = mean.clip(0.0, 1.0)
    variance = p * (1.0 - p)  # of one trial
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        vary = (error > ROUNDING) & (variance > ROUNDING)
        trials = np.where(vary, variance / np.square(error), units)
        centre = (p + t2 / (2 * trials)) / (1 + t2 / trials)
        half = np.sqrt(t2 * (variance / trials + t2 / (4 * trials**2))) / (1 + t2 / trials)
    known = np.isfinite(error)
    low = np.minimum((centre - half).clip(0.0, 1.0), p)
    high = np.maximum((centre + half).clip(0.0, 1.0), p)
    return np.where(known, low, np.nan), np.where(known, high, np.nan)


def adjust(p: Array, among: Array | None = None) -> Array:
    """Return Benjamini-Hochberg adjusted p-values, in the shape of ``p``.

    ``among`` says which entries make up the family (all by default); the others get 1.
    """
    family = np.ones(p.shape, dtype=bool) if among is None else among
    # As scipy.stats.false_discovery_control, which takes a third of a second to load: the k-th
    # smallest of m p-values becomes the smallest of p m / k among it and the larger ones.
    values = p[family]
    order = np.argsort(values)
    m = len(values)
    scaled = values[order] * (m / np.arange(1, m + 1))
    smallest_from_here = np.minimum.accumulate(scaled[::-1])[::-1]
    values[order] = smallest_from_here.clip(0.0, 1.0)
    adjusted = np.ones(p.shape)
    adjusted[family] = values
    return adjusted


def ratio(sums: ArrayLike, counts: ArrayLike) -> Array:
    """Return sums / counts; NaN where nothing was counted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.asarray(sums) / np.asarray(counts))


def standard_error(total: ArrayLike, squares: ArrayLike, n: ArrayLike) -> Array:
    """Return the standard error of a mean from the sums of n values and of their squares.

    NaN where n is less than 2; 0 where rounding makes the variance negative.
    """
    total = np.asarray(total)
    squares = np.asarray(squares)
    n = np.asarray(n)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = (squares - total**2 / n) / (n - 1)
        return np.asarray(np.sqrt(np.clip(variance, 0.0, None) / n))


def effective_units(queries: ArrayLike, queries_squared: ArrayLike) -> Array:
    """Return how many sentences of equal length would tell as much: at most as many as there are.

    ``queries`` is the number of query words in all sentences, ``queries_squared`` the sum over
    sentences of their squared number; the effective number is the square of the first over the
    second, 0 without queries. Sentences of 10 and 10 words count as 2, of 18 and 2 as 1.2.
    """
    queries = np.asarray(queries, dtype=float)
    squared = np.asarray(queries_squared, dtype=float)
    return np.asarray(np.square(queries) / np.where(squared > 0, squared, 1.0))


def ratio_error(
    sums: ArrayLike,
    squares: ArrayLike,
    products: ArrayLike,
    queries: ArrayLike,
    queries_squared: ArrayLike,
    sentences: ArrayLike,
) -> Array:
    """Return the standard error of a mean over queries with sentences as the sampled unit.

    With x the sum of the values of one sentence, and q its number of queries, the arguments are
    sums over sentences::

        sums  x        squares  x^2       products  x q
        queries  q     queries_squared  q^2          sentences: how many have queries

    This is the ratio estimator of Cochran 1977, Sampling Techniques, section 6.4, with n / (n - 1)
    for the effective number n of sentences (:func:`effective_units`). Infinite where fewer than
    :data:`FEWEST_UNITS` sentences have queries: they say too little about the next. NaN where there
    is no query.
    """
    total = np.asarray(sums, dtype=float)
    queries = np.asarray(queries, dtype=float)
    n = effective_units(queries, queries_squared)
    with np.errstate(invalid="ignore", divide="ignore"):
        # The residuals x - rate q of sentences, squared and summed.
        rate = total / queries
        residual = np.asarray(squares) - 2 * rate * np.asarray(products)
        residual = (residual + rate**2 * np.asarray(queries_squared)).clip(min=0.0)
        error = np.sqrt(residual * n / (n - 1)) / queries
    return np.where((queries > 0) & (np.asarray(sentences) < FEWEST_UNITS), np.inf, error)


def t_half_width(error: ArrayLike, n: ArrayLike, fewest: int = FEWEST_UNITS) -> Array:
    """Return half of the 95% interval (Student's t) of a mean of n values with a standard error.

    Infinite for fewer values than ``fewest``, NaN for none.
    """
    n = np.asarray(n)
    quantile = stdtrit(np.maximum(n - 1, 1), 0.975)
    return np.where((n > 0) & (n < fewest), np.inf, quantile * np.asarray(error))


def jackknife(full: ArrayLike, without_each: Array) -> tuple[Array, Array]:
    """Return the 95% interval of positive numbers, such as ratios of sums over sentences.

    ``full`` (...) are the numbers, ``without_each`` (sentences, ...) the same numbers with one
    sentence left out each time. The interval is Student's t of the jackknife's pseudo-values of the
    logarithm, and is widened to hold ``full`` itself. NaN below :data:`FEWEST_UNITS` sentences.
    """
    full = np.asarray(full, dtype=float)
    n = len(without_each)
    if n < FEWEST_UNITS:
        unknown = np.full(full.shape, np.nan)
        return unknown, unknown
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(without_each)
        mean = logs.mean(axis=0)
        centre = n * np.log(full) - (n - 1) * mean
        error = np.sqrt((n - 1) / n * np.square(logs - mean).sum(axis=0))
    half = t_half_width(error, n)
    return np.minimum(np.exp(centre - half), full), np.maximum(np.exp(centre + half), full)


# --- means over random draws ---


def joint_mean(
    values: Sequence[float],
    downs: Sequence[float],
    ups: Sequence[float],
    *,
    n_means: int,
    n: int | None = None,
) -> JointEstimate:
    """Return a mean over random draws, with its own interval and a wider one.

    The wider intervals of ``n_means`` such means hold at once with 95% (Bonferroni). Each draw has
    a value with a 95% interval over examples, from value - down to value + up.

    Examples and draws err independently, so both contributions to a half-width add as squares (Zou
    & Donner 2008): ``downs`` or ``ups``, averaged over draws, and Student's t over draws. For the
    wider interval the first is widened by the ratio of Student's quantiles for ``n`` examples, or,
    without ``n``, of normal quantiles.
    """
    drawn = np.array(values)
    draws = len(drawn)
    mean = float(drawn.mean())
    error_of_draws = drawn.std(ddof=1) / np.sqrt(draws) if draws > 1 else 0.0

    def quantile_over_examples(tail: float) -> float:
        quantile = ndtri(tail) if n is None else stdtrit(max(n - 1, 1), tail)
        return -float(quantile)

    def interval(tail: float) -> tuple[float, float]:
        """Return both ends of the interval that leaves ``tail`` on each side."""
        widening = quantile_over_examples(tail) / quantile_over_examples(0.025)
        over_draws = -stdtrit(draws - 1, tail) * error_of_draws if draws > 1 else 0.0
        down = np.hypot(widening * np.mean(downs), over_draws)
        up = np.hypot(widening * np.mean(ups), over_draws)
        return mean - float(down), mean + float(up)

    low, high = interval(0.025)
    all_low, all_high = interval(0.025 / n_means)
    if not np.isfinite([low, high, all_low, all_high]).all():
        return JointEstimate(mean)
    return JointEstimate(value=mean, low=low, high=high, all_low=all_low, all_high=all_high)


def finite(value: float) -> float | None:
    """Return a finite number as it is, and None for any other: results hold no NaN."""
    return float(value) if np.isfinite(value) else None


@dataclass(frozen=True)
class CrossedMean:
    """Means, their uncertainty, and how much of it comes from the random draws."""

    mean: Array  # Over sequences and draws
    sem: Array  # Standard error; NaN for a single sequence
    half_width: Array  # Half of the 95% interval; infinite (unknown) for too few sequences
    #: Standard deviation between draws, each averaged over sequences; 0 where nothing is drawn
    draw_std: Array

    def estimate(self, *index: int) -> Estimate:
        """Return the mean at an index, with its interval."""
        return Estimate.around(float(self.mean[index]), finite(self.half_width[index]))


def crossed_mean(values: Array, fewest: int = FEWEST_UNITS) -> CrossedMean:
    """Average values that were measured on every sequence with every random draw.

    ``values`` are (S sequences, D draws, ...). With s the standard error over sequences (each
    averaged over draws) and d the standard error over draws (each averaged over sequences)::

        sem^2 = s^2 + d^2        half_width^2 = (t_{S-1} s)^2 + (t_{D-1} d)^2

    as limits for the mean of a sum from the limits of its two parts (Howe 1974, JASA 69). What
    sequences and draws have in common is counted twice, so the interval is rather too wide; with
    fewer sequences than ``fewest`` it is unknown.
    """
    by_sequence = values.mean(axis=1)
    by_draw = values.mean(axis=0)
    sequences, draws = values.shape[:2]
    sequence_error = np.full(by_draw.shape[1:], np.nan)
    if sequences > 1:
        sequence_error = by_sequence.std(axis=0, ddof=1) / np.sqrt(sequences)
    sequence_half_width = t_half_width(sequence_error, sequences, fewest)
    draw_error = np.zeros(by_draw.shape[1:])
    draw_half_width = draw_error
    if draws > 1:
        draw_error = by_draw.std(axis=0, ddof=1) / np.sqrt(draws)
        draw_half_width = t_half_width(draw_error, draws, FEWEST_DRAWS)
    return CrossedMean(
        mean=by_sequence.mean(axis=0),
        sem=np.hypot(sequence_error, draw_error),
        half_width=np.hypot(sequence_half_width, draw_half_width),
        draw_std=draw_error * np.sqrt(draws),
    )
