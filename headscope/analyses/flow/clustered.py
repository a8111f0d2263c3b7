"""Numbers measured on sentences, with how much each sentence pulls at them.

With one pull for each sentence, numbers from the same sentences can be averaged and subtracted
before an interval is made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headscope.core.accumulator import Array
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import FEWEST_UNITS, effective_units, finite, ratio, t_half_width


@dataclass(frozen=True)
class Clustered:
    """``n`` numbers, each computed from sums over sentences, such as a ratio of two sums."""

    value: Array  # (n,): the numbers; NaN where nothing was counted.
    #: (sentences, n): how much each sentence pulls at each number. Of a mean these are the
    #: sentences' values minus the mean; so the standard error of a number is always that of the
    #: mean of its column.
    influence: Array
    #: (n,): the effective number of sentences behind each; 0 if they are too few for an interval.
    units: Array

    @classmethod
    def ratio(cls, numerator: Array, denominator: Array) -> Clustered:
        """Make sum(numerator) / sum(denominator) over sentences.

        Both are (sentences, n) or broadcast to it (Cochran 1977, Sampling Techniques, section 6.4).
        """
        numerator, denominator = np.broadcast_arrays(
            np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
        )
        total = denominator.sum(0)
        value = ratio(numerator.sum(0), total)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean_denominator = total / max(1, len(denominator))
            influence = (numerator - value * denominator) / mean_denominator
        units = effective_units(total, np.square(denominator).sum(0))
        enough = np.count_nonzero(denominator, axis=0) >= FEWEST_UNITS
        return cls(value, influence, np.where(enough, units, 0.0))

    @classmethod
    def mean_of(cls, rows: Sequence[Array], n: int) -> Clustered:
        """Average (n,) numbers of every sentence; there may be no sentence."""
        return cls.ratio(np.asarray(rows).reshape(len(rows), n), np.ones((len(rows), 1)))

    def rest(self) -> Clustered:
        """Return what is left of 1: 1 minus each number."""
        return Clustered(1.0 - self.value, -self.influence, self.units)

    def unknown(self) -> Clustered:
        """Return NaN in the place of each number."""
        return Clustered(self.value * np.nan, self.influence * np.nan, self.units)

    def mean(self) -> Clustered:
        """Return the mean of the finite numbers, as one number."""
        known = np.isfinite(self.value)
        if not known.any():
            nothing = np.full((len(self.influence), 1), np.nan)
            return Clustered(np.full(1, np.nan), nothing, np.zeros(1))
        return Clustered(
            self.value[known].mean(keepdims=True),
            self.influence[:, known].mean(1, keepdims=True),
            self.units[known].min(keepdims=True),
        )

    def __sub__(self, other: Clustered) -> Clustered:
        units = np.minimum(self.units, other.units)
        return Clustered(self.value - other.value, self.influence - other.influence, units)

    def half_width(self) -> Array:
        """Return half of each 95% interval (Student's t); infinite where sentences are too few."""
        sentences = len(self.influence)
        if sentences == 0:
            return np.full(len(self.value), np.inf)
        units = np.maximum(self.units, 1.5)  # fewer have no interval, but must not divide by zero
        error = self.influence.std(axis=0) / np.sqrt(sentences) * np.sqrt(units / (units - 1))
        return np.where(self.units > 0, t_half_width(error, units, fewest=1), np.inf)

    def estimates(self) -> list[Estimate]:
        """Return each number with its interval; what is not finite is None."""
        pairs = zip(self.value, self.half_width(), strict=True)
        return [Estimate.around(finite(value), finite(half)) for value, half in pairs]

    def estimate(self) -> Estimate:
        """Return the only number with its interval."""
        (only,) = self.estimates()
        return only
