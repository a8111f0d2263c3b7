"""Rates of many heads over the same sentences, with intervals that take the sentence as a unit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.statistics import ratio, t_half_width

__all__ = ["Clustered"]


@dataclass(frozen=True)
class Clustered:
    """Numbers that are smooth functions of sums over sentences.

    Attributes
    ----------
    value : array of float, (n,)
        The numbers; NaN where nothing was counted.
    influence : array of float, (sentences, n)
        How much each sentence pulls at each number, in units of a mean over sentences: the standard
        error of a number is that of the mean of its column. Columns of numbers that were measured
        on the same sentences may be added and subtracted, row by row.
    """

    value: Array
    influence: Array

    @classmethod
    def ratio(cls, part: Array, whole: Array) -> Clustered:
        """Make sum(part) / sum(whole) over sentences, both (sentences, n) or broadcast to it.

        Cochran 1977, Sampling Techniques, section 6.4.
        """
        part, whole = np.broadcast_arrays(
            np.asarray(part, dtype=float), np.asarray(whole, dtype=float)
        )
        value = ratio(part.sum(0), whole.sum(0))
        with np.errstate(invalid="ignore", divide="ignore"):
            influence = (part - value * whole) / (whole.sum(0) / max(1, len(whole)))
        return cls(value, influence)

    def rest(self) -> Clustered:
        """Return 1 minus each number."""
        return Clustered(1.0 - self.value, -self.influence)

    def mean(self) -> Clustered:
        """Return the mean of the numbers that are known, as one number."""
        known = np.isfinite(self.value)
        if not known.any():
            return Clustered(np.full(1, np.nan), np.full((len(self.influence), 1), np.nan))
        return Clustered(
            self.value[known].mean(keepdims=True),
            self.influence[:, known].mean(1, keepdims=True),
        )

    def __sub__(self, other: Clustered) -> Clustered:
        return Clustered(self.value - other.value, self.influence - other.influence)

    def half_width(self) -> Array:
        """Return half of each 95% interval (Student's t over sentences); infinite for one."""
        n = len(self.influence)
        if n < 2:
            return np.full(len(self.value), np.inf)
        error = self.influence.std(axis=0, ddof=1) / np.sqrt(n)
        return t_half_width(error, np.array(n))
