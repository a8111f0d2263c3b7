r"""Intervals of a metric, and of its change from one model to another on the same examples.

=====================  =============================  ==========================================
metric                 of one model                   of a change
=====================  =============================  ==========================================
rate of examples       Agresti and Coull's interval   Tango's score interval, p by its inversion
tokens, F1, Matthews   bootstrap, with two examples   bootstrap, with two examples more: one that
                       more: one right, one wrong     each model alone has right
any other              bootstrap                      bootstrap
=====================  =============================  ==========================================

The bootstrap draws the same examples for both models and takes quantiles of the resampled changes.
Those of n examples are too narrow by sqrt((n - 1) / n), and by the normal quantile in place of
Student's; so each end lies as far out among the resamples as Student's quantile, times
sqrt(n / (n - 1)), does in a normal distribution. The p-value turns the same sentence round: the
level at which 0 is an end of the interval, (1 + resamples on the other side) / (1 + resamples) on
each side. Where 0 lies beyond all resamples these tell no more than that p is small; there the
normal tail with their standard deviation goes on, so that p can be adjusted over many heads.

An interval of no width is never given. Where it would have none (no resample differs from another,
beyond rounding), or where examples are fewer than :data:`FEWEST`, it is unknown: from minus to plus
infinity, p 1.

References
----------
Efron & Tibshirani 1993, An Introduction to the Bootstrap, chapters 13 and 15; Hesterberg 2015, The
American Statistician 69 (quantiles for small n); Koehn 2004 (paired bootstrap of a metric); Bonett
& Price 2012, Journal of Educational and Behavioral Statistics 37 (one change more either way).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from headscope.core.accumulator import Array
from headscope.core.rounding import EPS
from headscope.stats.metrics import (
    RESAMPLES,
    Counted,
    Metric,
    Outputs,
    Rate,
    resampled,
    size_of,
    value_of,
)
from headscope.stats.statistics import agresti_coull, tango, tango_p

FEWEST = 8  # Examples below which resamples say nothing.
_BEYOND = 5  # Resamples that lie beyond either end of an interval, at least.
_ROUNDING = 4 * EPS  # Two values of a metric are equal within this share of them.
_ARITHMETIC = 1e-12  # What a sum in float64 leaves of a difference of 0, as a share of the metric.


@dataclass(frozen=True)
class Estimate:
    """A metric of one model with its interval."""

    value: float  # In the metric's unit; the ends are infinite where the interval is unknown.
    low: float
    high: float
    level: float  # of the interval, such as 0.95

    @property
    def ci(self) -> tuple[float, float] | None:
        """Both ends, or None where they are unknown."""
        return _known(self.low, self.high)


@dataclass(frozen=True)
class Change:
    """A metric of two models on the same examples."""

    examples: int  # examples that both were measured on
    baseline: float  # The metric of the first model and of the other.
    value: float
    #: ``value - baseline`` with its paired interval; the ends are infinite where it is unknown.
    difference: float
    low: float
    high: float
    level: float  # of the interval, such as 0.95
    #: Two-sided, of no difference: below 1 - level exactly where the interval leaves 0 out.
    p_value: float

    @property
    def ci(self) -> tuple[float, float] | None:
        """Both ends, or None where they are unknown."""
        return _known(self.low, self.high)

    def most_lost(self, sign: int) -> float:
        """Return the upper end of the loss; ``sign`` is 1 if higher is better, else -1.

        Where the interval is unknown although there are examples enough, every resample showed the
        same loss, and that is returned; with too few examples it is infinite.
        """
        if self.ci is None and self.examples >= FEWEST:
            return -sign * self.difference
        return -self.low if sign > 0 else self.high


def paired_change(
    metric: Metric,
    baseline: Outputs,
    outputs: Outputs,
    *,
    level: float = 0.95,
    seed: int = 0,
    resamples: int = RESAMPLES,
    drawn: Array | None = None,
    values: Array | None = None,
) -> Change:
    """Measure a change with its paired interval and p-value.

    Both models' outputs (n, ...) are on the same examples in the same order; the class of the
    metric says which interval it has. There are more resamples where the level asks for it.
    ``drawn`` and ``values`` (resamples,) are what :func:`resampled` gave for the baseline and the
    outputs with this seed, where it is known; a :class:`Rate` or :class:`Counted` metric has no use
    for it.
    """
    n = size_of(outputs)
    start, value = value_of(metric, baseline), value_of(metric, outputs)
    values_of_both = n, start, value, value - start
    if isinstance(metric, Rate):
        was, now = (np.asarray(metric.right(o)) > 0.5 for o in (baseline, outputs))
        gained, lost = int((now & ~was).sum()), int((was & ~now).sum())
        low, high = (100.0 * end for end in tango(gained, lost, n, level))
        return Change(*values_of_both, low, high, level, tango_p(gained, lost))
    if n < FEWEST:
        return Change(*values_of_both, -math.inf, math.inf, level, 1.0)
    enough = max(resamples, _needed(n, level))
    if isinstance(metric, Counted):
        baseline, outputs = (
            metric.with_two_more(baseline, (True, False), outputs),
            metric.with_two_more(outputs, (False, True), baseline),
        )
        drawn = values = None
    if drawn is None or len(drawn) < enough:
        drawn = resampled(metric, baseline, resamples=enough, seed=seed)
    if values is None or len(values) < enough:
        values = resampled(metric, outputs, resamples=enough, seed=seed)
    gaps, scale = values - drawn, max(abs(start), abs(value))
    gaps[np.abs(gaps) <= _ARITHMETIC * scale] = 0.0
    low, high = _ends(gaps, n, level, scale)
    p_value = 1.0 if math.isinf(low) else _p_value(gaps, n)
    return Change(*values_of_both, low, high, level, p_value)


def interval_of(
    metric: Metric,
    outputs: Outputs,
    *,
    level: float = 0.95,
    seed: int = 0,
    resamples: int = RESAMPLES,
    values: Array | None = None,
) -> Estimate:
    """Measure one model, with an interval; parameters as of :func:`paired_change`."""
    n, value = size_of(outputs), value_of(metric, outputs)
    if isinstance(metric, Rate):
        hits = float(np.asarray(metric.right(outputs)).sum())
        low, high = (100.0 * end for end in agresti_coull(hits, n, level))
        return Estimate(value, low, high, level)
    if n < FEWEST:
        return Estimate(value, -math.inf, math.inf, level)
    enough = max(resamples, _needed(n, level))
    if isinstance(metric, Counted):
        outputs, values = metric.with_two_more(outputs, (True, False)), None
    if values is None or len(values) < enough:
        values = resampled(metric, outputs, resamples=enough, seed=seed)
    return Estimate(value, *_ends(values, n, level, abs(value)), level)


# --- the bootstrap ------------------------------------------------------------------------------


def _tail(n: int, level: float) -> float:
    """Share of resamples beyond each end."""
    quantile = stats.t.isf((1 - level) / 2, n - 1) * math.sqrt(n / (n - 1))
    return float(stats.norm.sf(quantile))


def _needed(n: int, level: float) -> int:
    """Return how many resamples put :data:`_BEYOND` of them beyond each end."""
    return math.ceil(_BEYOND / _tail(n, level))


def _ends(values: Array, n: int, level: float, scale: float) -> tuple[float, float]:
    """Return both ends; infinite ones where no value differs from another but by rounding."""
    if np.ptp(values) <= _ROUNDING * scale:
        return -math.inf, math.inf
    beyond = math.floor((len(values) + 1) * _tail(n, level))
    ordered = np.sort(values)
    return float(ordered[beyond - 1]), float(ordered[-beyond])


def _p_value(gaps: Array, n: int) -> float:
    """Return the level at which 0 is an end of the interval."""
    fewer = int(min((gaps <= 0).sum(), (gaps >= 0).sum()))
    tail = min((1 + fewer) / (1 + len(gaps)), 0.5)
    if fewer == 0:  # 0 lies beyond all resamples
        tail = min(tail, float(stats.norm.sf(abs(gaps.mean()) / gaps.std(ddof=1))))
    quantile = stats.norm.isf(tail) * math.sqrt((n - 1) / n)
    return max(float(2 * stats.t.sf(quantile, n - 1)), float(np.finfo(float).tiny))


def _known(low: float, high: float) -> tuple[float, float] | None:
    return None if math.isinf(low) or math.isinf(high) else (low, high)
