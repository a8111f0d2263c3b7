"""Numbers measured on sentences, with how much each sentence pulls at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headscope.core.accumulator import Array
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import finite, ratio, t_half_width


@dataclass(frozen=True)
class Clustered:
    """Numbers that are smooth functions of sums over sentences."""

    value: Array  # (n,). The numbers; NaN where nothing was counted.
    #: (sentences, n). How much each sentence pulls at each number, in units of a mean over
    #: sentences: the standard error of a number is that of the mean of its column. Columns of
    #: numbers that were measured on the same sentences may be added and subtracted, row by row.
    influence: Array

    @classmethod
    def ratio(cls, part: Array, total: Array) -> Clustered:
        """Make sum(part) / sum(total) over sentences, both (sentences, n) or broadcast to it.

        Cochran 1977, Sampling Techniques, section 6.4.
        """
        part, total = np.broadcast_arrays(
            np.asarray(part, dtype=float), np.asarray(total, dtype=float)
        )
        value = ratio(part.sum(0), total.sum(0))
        with np.errstate(invalid="ignore", divide="ignore"):
            influence = (part - value * total) / (total.sum(0) / max(1, len(total)))
        return cls(value, influence)

    @classmethod
    def mean_of(cls, rows: Sequence[Array], n: int) -> Clustered:
        """Average (n,) numbers of every sentence; there may be no sentence."""
        return cls.ratio(np.asarray(rows).reshape(len(rows), n), np.ones((len(rows), 1)))

    def rest(self) -> Clustered:
        """Return 1 minus each number."""
        return Clustered(1.0 - self.value, -self.influence)

    def unknown(self) -> Clustered:
        """Return numbers as unknown (NaN), with the same shapes."""
        return Clustered(self.value * np.nan, self.influence * np.nan)

    def mean(self) -> Clustered:
        """Return the mean of the finite numbers, as one number."""
        known = np.isfinite(self.value)
        if not known.any():
            return Clustered(np.full(1, np.nan), np.full((len(self.influence), 1), np.nan))
        return Clustered(
            self.value[known].mean(keepdims=True), self.influence[:, known].mean(1, keepdims=True)
        )

    def __sub__(self, other: Clustered) -> Clustered:
        return Clustered(self.value - other.value, self.influence - other.influence)

    def error(self) -> Array:
        """Return each number's standard error; infinite where there is one sentence."""
        n = len(self.influence)
        if n < 2:
            return np.full(len(self.value), np.inf)
        return np.asarray(self.influence.std(axis=0, ddof=1) / np.sqrt(n))

    def half_width(self) -> Array:
        """Return half of each 95% interval (Student's t over sentences)."""
        return t_half_width(self.error(), np.array(len(self.influence)))

    def estimates(self) -> list[Estimate]:
        """Return each number with its interval; what is not finite is None."""
        pairs = zip(self.value, self.half_width(), strict=True)
        return [Estimate.around(finite(value), finite(half)) for value, half in pairs]

    def estimate(self) -> Estimate:
        """Return the only number with its interval."""
        (only,) = self.estimates()
        return only
