"""Intervals and tests: rates, McNemar, binomial, Benjamini-Hochberg. scipy does the arithmetic.

``scipy.special`` has the distributions that are needed; ``scipy.stats`` and ``optimize`` take
half a second to load, so functions that need them load them.

References
----------
Wilson 1927, JASA 22; Agresti & Coull 1998, The American Statistician 52; McNemar 1947,
Psychometrika 12; Benjamini & Hochberg 1995, JRSS B 57.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, ndtr, ndtri, stdtrit

from headscope.core.accumulator import Array
from headscope.core.rounding import above
from headscope.stats.estimate import Estimate, JointEstimate

Z95 = float(ndtri(0.975))  # Normal quantile of a two-sided 95% interval.


def wilson(hits: ArrayLike, trials: ArrayLike) -> tuple[Array, Array]:
    """Return the 95% Wilson score interval of hits / trials; (0, 1) where there is no trial."""
    n = np.asarray(trials, dtype=float)
    safe = np.where(n > 0, n, 1.0)
    p = np.asarray(hits, dtype=float) / safe
    z2 = Z95**2
    centre = p + z2 / (2 * safe)
    half = Z95 * np.sqrt(p * (1 - p) / safe + z2 / (4 * safe**2))
    low = np.where(n > 0, (centre - half) / (1 + z2 / safe), 0.0)
    high = np.where(n > 0, (centre + half) / (1 + z2 / safe), 1.0)
    # Rounding must not leave the rate itself outside: at 0 or 1 it is an end of the interval.
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

    The arguments count trials that just one of the two hits; p is 1 where they never disagree.
    """
    a, b = np.asarray(only_head, dtype=float), np.asarray(only_baseline, dtype=float)
    # The binomial distribution function is an incomplete beta function.
    half = betainc(np.maximum(a, b), np.minimum(a, b) + 1, 0.5)
    return np.asarray(np.minimum(1.0, 2.0 * np.where(a + b > 0, half, 1.0)))


def paired_p(
    hits: ArrayLike, both: ArrayLike, expected: float, expected_squared: float, trials: int
) -> Array:
    """Return p of a one-sided paired z-test: do hits beat a baseline of known chances?"""
    h, n = np.asarray(hits, dtype=float), max(trials, 1)
    mean = (h - expected) / n
    mean_square = (h - 2.0 * np.asarray(both) + expected_squared) / n
    error = np.sqrt(np.clip(mean_square - mean**2, 0.0, None) / n)
    return normal_p(h / n, error, expected / n)


def binomial_p(hits: ArrayLike, trials: ArrayLike, chance: ArrayLike) -> Array:
    """Return p of the exact binomial test: the probability of at least ``hits`` at ``chance``."""
    k, n = np.asarray(hits, dtype=float), np.asarray(trials, dtype=float)
    return np.where(n > 0, betainc(k, n - k + 1, np.asarray(chance, dtype=float)), 1.0)


def below_chance(right: int, predicted: ArrayLike, gold: ArrayLike) -> tuple[float, float]:
    """Return the share of right guesses that chance gives, and p of as few as there are.

    ``predicted`` and ``gold`` count each class. Chance guesses every class as often as the model
    does, whatever it reads, and is right where that meets the gold share (as in Cohen's kappa). p
    is that of the exact binomial test: the probability of at most ``right``.
    """
    guessed, true = np.asarray(predicted, dtype=float), np.asarray(gold, dtype=float)
    n = float(true.sum())
    chance = float(guessed @ true) / n**2
    wrong = n - right
    return chance, float(binomial_p(wrong, n, 1 - chance))


def normal_p(mean: ArrayLike, standard_error: ArrayLike, reference: ArrayLike) -> Array:
    """Return p of a one-sided z-test: the probability of a mean this far above ``reference``.

    A gap within rounding counts as none, however small its error: p is 1/2.
    """
    mean, reference = np.asarray(mean, dtype=float), np.asarray(reference, dtype=float)
    gap = np.where(above(mean, reference) | above(reference, mean), mean - reference, 0.0)
    error = np.asarray(standard_error, dtype=float)
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.where(error > 0, gap / error, np.sign(gap) * np.inf)
    return np.asarray(ndtr(-np.nan_to_num(z, nan=0.0, posinf=np.inf, neginf=-np.inf)))


def normal_interval(mean: ArrayLike, standard_error: ArrayLike) -> tuple[Array, Array]:
    """Return mean -/+ 1.96 standard errors."""
    centre, half = np.asarray(mean, dtype=float), Z95 * np.asarray(standard_error, dtype=float)
    return centre - half, centre + half


def adjust(p: Array, among: Array | None = None) -> Array:
    """Return Benjamini-Hochberg adjusted p-values, in the shape of ``p``.

    ``among`` says which entries make up the family (all by default); the others get 1.
    """
    family = np.ones(p.shape, dtype=bool) if among is None else among
    adjusted, values = np.ones(p.shape), p[family]
    order = np.argsort(values)
    # As scipy.stats.false_discovery_control, which takes a third of a second to load.
    scaled = values[order] * (len(values) / np.arange(1, len(values) + 1))
    values[order] = np.minimum.accumulate(scaled[::-1])[::-1].clip(0.0, 1.0)
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
    total, squares, n = np.asarray(total), np.asarray(squares), np.asarray(n)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = (squares - total**2 / n) / (n - 1)
        return np.asarray(np.sqrt(np.clip(variance, 0.0, None) / n))


def ratio_error(
    sums: ArrayLike,
    squares: ArrayLike,
    products: ArrayLike,
    queries: ArrayLike,
    queries_squared: ArrayLike,
    sentences: int,
) -> Array:
    """Return the standard error of a mean over queries with sentences as the sampled unit.

    The ratio estimator of Cochran 1977, Sampling Techniques, section 6.4. Infinite where fewer than
    2 sentences have queries: one says nothing about the next. NaN where there is no query.
    """
    total = np.asarray(sums, dtype=float)
    if sentences < 2:
        return np.full(total.shape, np.inf)
    queries, squares = np.asarray(queries, dtype=float), np.asarray(squares)
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = total / queries
        residual = squares - 2 * rate * np.asarray(products)
        residual = (residual + rate**2 * np.asarray(queries_squared)).clip(min=0.0)
        error = np.sqrt(residual * sentences / (sentences - 1)) / queries
    alone = (queries > 0) & (queries**2 == queries_squared)  # all queries are of one sentence
    return np.where(alone, np.inf, error)


def t_half_width(error: ArrayLike, n: ArrayLike) -> Array:
    """Return half of the 95% interval (Student's t) of a mean of n values with a standard error.

    Infinite for a single value, NaN for none.
    """
    n = np.asarray(n)
    quantile = stdtrit(np.maximum(n - 1, 1), 0.975)
    return np.where(n == 1, np.inf, quantile * np.asarray(error))


def joint_mean(
    values: Sequence[float],
    downs: Sequence[float],
    ups: Sequence[float],
    *,
    of: int,
    n: int | None = None,
) -> JointEstimate:
    """Return a mean over random draws, one of ``of`` such means, with both of its intervals.

    ``downs`` and ``ups`` are the half-widths over examples of each draw. Examples and draws err
    independently, so both contributions to a half-width add as squares (Zou & Donner 2008): that
    over examples, averaged over draws, and Student's t over draws. For the interval of all means
    (Bonferroni) the first is widened by the ratio of Student's quantiles for ``n`` examples, or,
    without ``n``, of normal quantiles.
    """
    drawn = np.array(values)
    draws, mean = len(drawn), float(drawn.mean())
    error = drawn.std(ddof=1) / np.sqrt(draws) if draws > 1 else 0.0

    def quantile(tail: float) -> float:
        return -float(ndtri(tail) if n is None else stdtrit(max(n - 1, 1), tail))

    ends = []
    for tail in (0.025, 0.025 / of):
        grown = quantile(tail) / quantile(0.025)
        over_draws = -stdtrit(draws - 1, tail) * error if draws > 1 else 0.0
        low, high = (float(np.hypot(grown * np.mean(side), over_draws)) for side in (downs, ups))
        ends += [mean - low, mean + high]
    return JointEstimate(mean, *(ends if np.isfinite(ends).all() else ()))


def finite(value: float) -> float | None:
    """Return a finite number as it is, and None for any other: results hold no NaN."""
    return float(value) if np.isfinite(value) else None


_PRECISION = 1e-12  # How near to the true ends the search comes, as a share of the examples.


def tango(gained: int, lost: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return Tango's score interval of (gained - lost) / n, each end between -1 and 1.

    Of ``n`` examples, ``gained`` are right in the second model alone, ``lost`` in the first alone.
    Tango 1998, Statistics in Medicine 17.
    """
    from scipy.optimize import brentq

    z = float(-ndtri((1 - level) / 2))

    def upper(gained: int, lost: int) -> float:
        """Find the difference above the observed one where the statistic is -z."""

        def above_end(difference: float) -> float:
            gap = gained - lost - n * difference
            if gap == 0:
                return z
            linear = (2 * n - gained + lost) * difference - gained - lost
            constant = -lost * difference * (1 - difference)
            root = math.sqrt(max(linear * linear - 8 * n * constant, 0.0))
            q = max((root - linear) / (4 * n), 0.0)
            variance = n * (2 * q + difference * (1 - difference))
            score = gap / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, gap)
            return z + score

        end = 1.0 - _PRECISION
        if gained == n or above_end(end) > 0:
            return 1.0
        return float(brentq(above_end, (gained - lost) / n, end, xtol=_PRECISION))

    # The lower end for one model over the other is the upper end the other way round.
    return -upper(lost, gained), upper(gained, lost)


def tango_p(gained: int, lost: int) -> float:
    """Return the level at which 0 is an end of the interval: two-sided, 1 if nothing changed."""
    changed = gained + lost
    return float(2 * ndtr(-abs(gained - lost) / math.sqrt(changed))) if changed else 1.0


@dataclass(frozen=True)
class CrossedMean:
    """Means, their uncertainty, and how much of it comes from the random draws."""

    mean: Array  # Over sequences and draws.
    sem: Array  # Standard error; NaN for a single sequence.
    half_width: Array  # Half of the 95% interval; infinite for a single sequence: it is unknown.
    #: Standard deviation between draws, each averaged over sequences; 0 where nothing is drawn.
    draw_std: Array

    def estimate(self, *at: int) -> Estimate:
        """Return the mean at an index, with its interval."""
        return Estimate.around(float(self.mean[at]), finite(self.half_width[at]))


def crossed_mean(values: Array) -> CrossedMean:
    """Average values that were measured on every sequence with every random draw.

    With s the standard error over sequences (each averaged over draws) and d that over draws (each
    averaged over sequences)::

        sem^2 = s^2 + d^2        half_width^2 = (t_{S-1} s)^2 + (t_{D-1} d)^2

    What sequences and draws have in common is counted twice, so the interval is rather too wide.

    Howe 1974, JASA 69: limits for the mean of a sum, from the limits of its two parts.

    Shapes: ``values`` (sequences, draws, ...).
    """
    by_sequence, by_draw = values.mean(axis=1), values.mean(axis=0)
    sequences, draws = values.shape[:2]
    of_sequences, of_draws = np.full(by_draw.shape[1:], np.nan), np.zeros(by_draw.shape[1:])
    wide_draws = of_draws
    if sequences > 1:
        of_sequences = by_sequence.std(axis=0, ddof=1) / np.sqrt(sequences)
    if draws > 1:
        of_draws = by_draw.std(axis=0, ddof=1) / np.sqrt(draws)
        wide_draws = t_half_width(of_draws, np.array(draws))
    wide_sequences = t_half_width(of_sequences, np.array(sequences))
    return CrossedMean(
        mean=by_sequence.mean(axis=0),
        sem=np.hypot(of_sequences, of_draws),
        half_width=np.hypot(wide_sequences, wide_draws),
        draw_std=of_draws * np.sqrt(draws),
    )
