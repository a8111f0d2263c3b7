r"""Intervals of a metric, and of its change from one model to another on the same examples.

=====================  =============================  ==========================================
metric                 of one model                   of a change
=====================  =============================  ==========================================
rate of examples       Agresti and Coull's interval   Tango's score interval, p by its inversion
tokens, F1, Matthews   bootstrap, with two examples   bootstrap, with two examples more: one that
                       more: one right, one wrong     each model alone has right
any other              bootstrap                      bootstrap
=====================  =============================  ==========================================

The bootstrap is :class:`_Bootstrap`, at the end of the file; it draws the same examples for both
models. An interval of no width is never given. Where it would have none (all resamples are equal up
to rounding), or where examples are fewer than FEWEST_UNITS, it is unknown: from minus to plus
infinity, with p 1. The largest loss is unknown then, too: equal resamples do not show that a model
loses nothing. Only of two models that are known to be the same it is 0.

First :class:`Change`; then :func:`paired_change` of two models, :func:`interval_of` one, and
:func:`resampled_estimate` of any number; :func:`over_orders` joins several changes.

The class of a metric says its row of the table: a :class:`Rate` is the first, those of
:data:`Counted` the second. ``metric.with_two_more(outputs, (True, False))`` adds two examples to
outputs, the first right and the second wrong. Where outputs have an array :data:`CLUSTER`, examples
of one cluster are not independent and are drawn together: a *unit* is an example or a cluster.

References
----------
Efron & Tibshirani 1993, An Introduction to the Bootstrap, chapters 13 and 15; Hesterberg 2015, The
American Statistician 69 (quantiles for small n); Koehn 2004 (paired bootstrap of a metric); Bonett
& Price 2012, Journal of Educational and Behavioral Statistics 37 (one change more either way).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from headscope.core.accumulator import Array
from headscope.core.rounding import EPS
from headscope.stats.estimate import Estimate
from headscope.stats.metrics import (
    CLUSTER,
    RESAMPLES,
    Counted,
    Metric,
    Outputs,
    Rate,
    drawn_units,
    resampled,
    size_of,
    value_of,
)
from headscope.stats.statistics import FEWEST_UNITS, agresti_coull
from headscope.stats.tango import tango, tango_p

_FEWEST_BEYOND = 5  # Fewest resamples that must lie beyond each end of an interval.
_ROUNDING = 4 * EPS  # Two values of a metric are equal within this share of them.
_ARITHMETIC = 1e-12  # What a sum in float64 leaves of a difference of 0, as a share of the metric.


@dataclass(frozen=True)
class Change:
    """A metric of two models on the same examples."""

    value: float  # The second model's
    baseline: float  # The first model's
    difference: float  # ``value - baseline``
    low: float  # Lower end of the difference's interval; minus infinity where it is unknown
    high: float  # Upper end; plus infinity where the interval is unknown
    level: float  # Level of the interval, such as 0.95.
    examples: int  # Examples that both were measured on
    units: int  # The independent units among them: examples, or clusters of them
    #: Two-sided p-value of no difference: below 1 - level exactly where the interval excludes 0.
    p_value: float
    #: Whether both are the same model. A caller sets it who knows outputs that no two different
    #: models share
    same: bool = False

    @property
    def ci(self) -> tuple[float, float] | None:
        """Both ends, or None where they are unknown."""
        return None if math.isinf(self.low) or math.isinf(self.high) else (self.low, self.high)

    def estimate(self) -> Estimate:
        """Return the difference with its interval, if that is known.

        Of the same model nothing is uncertain, and both ends are the difference itself.
        """
        if self.ci is None and self.same:
            return Estimate(self.difference, self.difference, self.difference)
        if self.ci is None:
            return Estimate(self.difference)
        return Estimate(self.difference, self.low, self.high)

    def most_lost(self, sign: int) -> float:
        """Return the upper end of what the second model loses.

        ``sign`` is 1 if a higher metric is better, else -1. Infinite where the interval is unknown,
        but 0 if both are the same model.
        """
        if self.ci is None:
            return 0.0 if self.same else math.inf
        return -self.low if sign > 0 else self.high


def paired_change(
    metric: Metric,
    baseline: Outputs,
    outputs: Outputs,
    *,
    level: float = 0.95,
    seed: int = 0,
    resamples: int = RESAMPLES,
    baseline_values: Array | None = None,
    values: Array | None = None,
) -> Change:
    """Measure how a metric changes from one model to another, with its interval and p-value.

    ``baseline`` and ``outputs`` are the outputs of the first and the second model: arrays by name
    with an entry for each example, of the same examples in the same order. The class of the metric
    says which interval it has.

    ``baseline_values`` and ``values`` (resamples,) are what :func:`resampled` gave for both with
    this seed, where a caller has them already; a :class:`Rate` or a metric of :data:`Counted` does
    not use them. More than ``resamples`` are drawn where the level needs more.
    """
    units = drawn_units(outputs)
    baseline_value = value_of(metric, baseline)
    value = value_of(metric, outputs)
    # The change without an interval; what follows fills in ``low``, ``high`` and ``p_value``.
    unknown = Change(
        value=value,
        baseline=baseline_value,
        difference=value - baseline_value,
        low=-math.inf,
        high=math.inf,
        level=level,
        examples=size_of(outputs),
        units=units,
        p_value=1.0,
    )

    if isinstance(metric, Rate) and CLUSTER not in outputs:
        return _change_of_rate(metric, baseline, outputs, unknown)
    if units < FEWEST_UNITS:
        return unknown

    # Where right answers are counted, add one example that the first model alone has right, and
    # one that the second alone has right.
    if isinstance(metric, Counted):
        given_baseline = baseline
        baseline = metric.with_two_more(given_baseline, (True, False), other=outputs)
        outputs = metric.with_two_more(outputs, (False, True), other=given_baseline)
        baseline_values = None  # these were of the examples without the two
        values = None

    # Take quantiles of the change in each resample.
    bootstrap = _Bootstrap(units, level=level, resamples=resamples, seed=seed)
    values = bootstrap.values(metric, outputs, values)
    baseline_values = bootstrap.values(metric, baseline, baseline_values)
    changes = values - baseline_values  # (resamples,)
    scale = max(abs(baseline_value), abs(value))
    is_rounding = np.abs(changes) <= _ARITHMETIC * scale
    changes[is_rounding] = 0.0
    low, high = bootstrap.interval(changes, scale)
    if math.isinf(low):
        return unknown
    return replace(unknown, low=low, high=high, p_value=_p_value(changes, units))


def _change_of_rate(metric: Rate, baseline: Outputs, outputs: Outputs, unknown: Change) -> Change:
    """Return the change of a rate of independent examples: ``unknown`` with interval and p."""
    was_right = np.asarray(metric.right(baseline)) > 0.5  # bool or 0 and 1, as bool
    is_right = np.asarray(metric.right(outputs)) > 0.5
    gained = int((is_right & ~was_right).sum())
    lost = int((was_right & ~is_right).sum())
    low, high = tango(gained, lost, unknown.units, unknown.level)
    p_value = tango_p(gained, lost)
    # Tango's ends are shares; a rate is in percent.
    return replace(unknown, low=100.0 * low, high=100.0 * high, p_value=p_value)


def interval_of(
    metric: Metric,
    outputs: Outputs,
    *,
    level: float = 0.95,
    seed: int = 0,
    resamples: int = RESAMPLES,
    values: Array | None = None,
) -> Estimate:
    """Measure one model, with an interval; the parameters are those of :func:`paired_change`."""
    units = drawn_units(outputs)
    value = value_of(metric, outputs)
    if isinstance(metric, Rate) and CLUSTER not in outputs:
        hits = float(np.asarray(metric.right(outputs)).sum())
        low, high = agresti_coull(hits, units, level)
        return Estimate(value, 100.0 * low, 100.0 * high)
    if units < FEWEST_UNITS:
        return Estimate(value)
    if isinstance(metric, Counted):
        outputs = metric.with_two_more(outputs, (True, False))
        values = None
    bootstrap = _Bootstrap(units, level=level, resamples=resamples, seed=seed)
    values = bootstrap.values(metric, outputs, values)
    low, high = bootstrap.interval(values, abs(value))
    return Estimate(value) if math.isinf(low) else Estimate(value, low, high)


def resampled_estimate(value: float, values: Array, units: int) -> Estimate:
    """Return a number with the interval that its bootstrap resamples give.

    ``values`` (resamples,) are the same number in resamples, each of as many lines (or other
    ``units``) as the number was measured on; values that are not finite are left out.
    """
    values = values[np.isfinite(values)]
    bootstrap = _Bootstrap(units)
    if units < FEWEST_UNITS or len(values) < bootstrap.fewest_resamples:
        return Estimate(value)
    low, high = bootstrap.interval(values, abs(value))
    return Estimate(value) if math.isinf(low) else Estimate(value, low, high)


# --- changes over several orders ---


def over_orders(changes: Sequence[Change]) -> Change:
    """Join changes that were measured on the same examples in several orders.

    A model whose outputs depend on the texts that share its batch changes by another amount in
    every order. Returns the mean of the differences, and an interval that holds the interval of
    every order; it is unknown where one of them is.
    """
    value = fmean(change.value for change in changes)
    return replace(
        changes[0],
        value=value,
        difference=value - changes[0].baseline,
        low=min(change.low for change in changes),
        high=max(change.high for change in changes),
        p_value=max(change.p_value for change in changes),
        same=all(change.same for change in changes),
    )


def estimate_over_orders(values: Sequence[Estimate]) -> Estimate:
    """Join estimates of one metric as :func:`over_orders` joins changes.

    Without an interval where one of them has none.
    """
    mean = fmean(float(value) for value in values)
    intervals = [value.interval for value in values if value.interval is not None]
    if len(intervals) < len(values):
        return Estimate(mean)
    return Estimate(
        value=mean,
        low=min(low for low, _ in intervals),
        high=max(high for _, high in intervals),
    )


# --- the bootstrap ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bootstrap:
    """Intervals from bootstrap resamples: quantiles of what was measured on them.

    Plain quantiles of resamples of n units are too narrow by sqrt((n - 1) / n), and by the normal
    quantile in place of Student's. So each end lies as far out among the resamples as Student's
    quantile, times sqrt(n / (n - 1)), lies in a normal distribution: :attr:`tail`.
    """

    units: int  # Number of units, examples or clusters, that each resample draws
    level: float = 0.95
    resamples: int = RESAMPLES  # More are drawn where the level needs more
    seed: int = 0

    @property
    def tail(self) -> float:
        """The share of resamples that lies beyond each end of the interval."""
        n = self.units
        students = -stdtrit(n - 1, (1 - self.level) / 2)  # quantile, 2.04 for n = 32 and 95%
        quantile = students * math.sqrt(n / (n - 1))
        return float(ndtr(-quantile))

    @property
    def fewest_resamples(self) -> float:
        """How many resamples it takes for :data:`_FEWEST_BEYOND` of them to lie beyond each end."""
        return _FEWEST_BEYOND / self.tail

    def values(self, metric: Metric, outputs: Outputs, known: Array | None) -> Array:
        """Return the metric of every resample, (resamples,): ``known`` values if they suffice."""
        count = max(self.resamples, math.ceil(self.fewest_resamples))
        if known is not None and len(known) >= count:
            return known
        return resampled(metric, outputs, resamples=count, seed=self.seed)

    def interval(self, values: Array, scale: float) -> tuple[float, float]:
        """Return both ends; infinite ones where no value differs from another but by rounding.

        ``scale`` is the size of the numbers that the values were computed from.
        """
        if np.ptp(values) <= _ROUNDING * scale:
            return -math.inf, math.inf
        n_beyond = math.floor((len(values) + 1) * self.tail)
        ordered = np.sort(values)
        return float(ordered[n_beyond - 1]), float(ordered[-n_beyond])


def _p_value(changes: Array, units: int) -> float:
    """Return p of no change: that for which 0 is an end of the interval at level 1 - p.

    ``changes`` (resamples,) give the share of resamples beyond 0, on the side of 0 where fewer are.
    That is the tail of the interval which ends at 0; its level, and so p, follows by the steps of
    :attr:`_Bootstrap.tail` in reverse. Where no resample lies beyond 0, they only show that p is
    small: the share is then taken from the normal distribution with their mean and standard
    deviation, so that p can be adjusted over many heads.
    """
    n_beyond = int(min((changes <= 0).sum(), (changes >= 0).sum()))
    tail = min((1 + n_beyond) / (1 + len(changes)), 0.5)
    if n_beyond == 0:
        normal_tail = float(ndtr(-abs(changes.mean()) / changes.std(ddof=1)))
        tail = min(tail, normal_tail)
    quantile = -ndtri(tail)
    students = quantile * math.sqrt((units - 1) / units)
    p_value = float(2 * stdtr(units - 1, -students))
    return max(p_value, float(np.finfo(float).tiny))  # no p is exactly 0
