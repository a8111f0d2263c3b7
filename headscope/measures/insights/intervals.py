"""Means with intervals, and on which side of a threshold they lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

__all__ = ["Estimate", "mean_estimate"]


@dataclass(frozen=True)
class Estimate:
    """A mean with the 95% interval that its spread allows (the mean itself for one value)."""

    mean: float
    low: float
    high: float

    def below(self, limit: float) -> bool | None:
        """Whether the whole interval lies below; None where it straddles the limit."""
        return True if self.high < limit else False if self.low >= limit else None

    def within(self, low: float, high: float) -> bool | None:
        """Whether the whole interval lies between two limits; None where it straddles one."""
        if low <= self.low and self.high <= high:
            return True
        return False if self.high < low or self.low > high else None

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


def mean_estimate(values: Sequence[float]) -> Estimate | None:
    """Return the mean of values with its t interval; None without values."""
    if not values:
        return None
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean, mean, mean)
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    half = half if math.isfinite(half) else 0.0
    return Estimate(mean, mean - half, mean + half)
