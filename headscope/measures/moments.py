"""Running means and spreads of many numbers at once, each over its own observations."""

from __future__ import annotations

from typing import Self

import numpy as np

from headscope.measures.accumulator import Accumulator, Array, zeros


class RunningMoments(Accumulator):
    """Means and sums of squared deviations, which add up across batches.

    Plain sums of squares would drown the spread of a share that is 1 in every window but for its
    tenth digit.

    Attributes
    ----------
    mean, squares : array of float, the shape of the numbers that are followed
        ``squares`` are summed squared deviations from the mean.
    counts : array of int, the same shape
        Observations of each number.

    References
    ----------
    Chan, Golub & LeVeque 1983, The American Statistician 37.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean, self.squares = zeros(2, *shape)
        self.counts: Array = np.zeros(shape, dtype=np.int64)

    def add(self, values: Array, counted: Array) -> None:
        """Add observations, (*shape, n); those that are not ``counted`` are passed over."""
        n = counted.sum(axis=-1)
        safe = np.maximum(n, 1)
        mean = np.where(counted, values, 0.0).sum(axis=-1) / safe
        squares = np.square(np.where(counted, values - mean[..., None], 0.0)).sum(axis=-1)
        self._join(mean, squares, n)

    def merge(self, other: Self) -> None:
        """Add the observations of another."""
        self._join(other.mean, other.squares, other.counts)

    def _join(self, mean: Array, squares: Array, n: Array) -> None:
        after = self.counts + n
        safe = np.maximum(after, 1)
        gap = np.where(n > 0, mean - self.mean, 0.0)
        self.squares = self.squares + squares + gap**2 * (self.counts * n / safe)
        self.mean = self.mean + gap * (n / safe)
        self.counts = after

    def means(self) -> Array:
        """Return the means; NaN where nothing was counted."""
        return np.where(self.counts > 0, self.mean, np.nan)

    def std(self) -> Array:
        """Return the standard deviations; NaN for fewer than two observations."""
        deviation: Array = np.sqrt(self.squares / np.maximum(self.counts - 1, 1))
        return np.where(self.counts > 1, deviation, np.nan)
