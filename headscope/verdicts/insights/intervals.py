"""Means with intervals, and on which side of a threshold they lie.

Outcomes are words: ``holds``, ``does not hold``, ``open`` (the interval straddles the threshold)
and ``not measured`` (there is no interval: a single value says nothing about the next).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headscope.measures.rounding import above
from headscope.measures.statistics import standard_error, t_half_width

__all__ = ["Estimate", "common", "every", "mean_estimate"]

HOLDS, FAILS, OPEN, UNKNOWN = "holds", "does not hold", "open", "not measured"


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval; low and high are None where the interval is unknown."""

    mean: float
    low: float | None
    high: float | None

    @classmethod
    def around(cls, mean: float, half: float | None) -> Estimate:
        """Make one of a mean and half of its interval (None, or not finite: unknown)."""
        if half is None or not math.isfinite(half):
            return cls(mean, None, None)
        return cls(mean, mean - half, mean + half)

    def above(self, limit: float) -> str:
        """Whether the whole interval lies above."""
        if self.low is None or self.high is None:
            return UNKNOWN
        return HOLDS if above(self.low, limit) else OPEN if above(self.high, limit) else FAILS

    def at_least(self, limit: float) -> str:
        """Whether the whole interval lies at or above."""
        if self.low is None or self.high is None:
            return UNKNOWN
        return HOLDS if self.low >= limit else FAILS if self.high < limit else OPEN

    def below(self, limit: float) -> str:
        """Whether the whole interval lies below."""
        if self.low is None or self.high is None:
            return UNKNOWN
        return HOLDS if above(limit, self.high) else OPEN if above(limit, self.low) else FAILS

    def within(self, low: float, high: float) -> str:
        """Whether the whole interval lies between two limits; fails where it lies outside."""
        if self.low is None or self.high is None:
            return UNKNOWN
        if low <= self.low and self.high <= high:
            return HOLDS
        return FAILS if self.high < low or self.low > high else OPEN

    def __str__(self) -> str:
        return f"{self.mean:.2f} {self.interval()}"

    def interval(self, form: str = ".2f") -> str:
        """Write the interval."""
        if self.low is None or self.high is None:
            return "[no interval]"
        return f"[{self.low:{form}}, {self.high:{form}}]"


def mean_estimate(values: Sequence[float]) -> Estimate | None:
    """Return the mean of values with its t interval, unknown for one value; None without values."""
    if not values:
        return None
    x = np.asarray(values, dtype=float)
    n = np.array(len(x))
    half = t_half_width(standard_error(x.sum(), np.square(x).sum(), n), n)
    return Estimate.around(float(x.mean()), float(half))


def every(outcomes: Sequence[str]) -> str:
    """Whether all of some things hold: one that does not is enough against it."""
    worst = (verdict for verdict in (FAILS, UNKNOWN, OPEN) if verdict in outcomes)
    return next(worst, HOLDS if outcomes else UNKNOWN)


def common(outcomes: Sequence[str]) -> str:
    """Return the outcome that all of some things share; mixed where they differ."""
    if not outcomes or UNKNOWN in outcomes:
        return UNKNOWN
    if len(set(outcomes)) == 1:
        return outcomes[0]
    return "mixed" if FAILS in outcomes else OPEN
