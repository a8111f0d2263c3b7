"""A number with its confidence interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

#: Fewest examples on which a bound on a loss is confirmed: with 20 of them, in two halves, 7% of
#: searches confirmed a number of heads that costs more, where 2.5% may.
FEWEST_TESTED = 60


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% confidence interval.

    A value of None means that the number is undefined or was not measured; without an interval its
    uncertainty is unknown. Neither is ever written as zero. Each result says at its field how the
    interval was made.
    """

    value: float | None
    low: float | None = None  # Lower end of the interval; None where it is unknown
    high: float | None = None  # Upper end

    @classmethod
    def around(cls, value: float | None, half_width: float | None = None) -> Self:
        """Make an estimate from a value and half the width of its interval, None where unknown."""
        if value is None or half_width is None:
            return cls(value)
        return cls(value, value - half_width, value + half_width)

    def __float__(self) -> float:
        """Return the value alone; TypeError where it is unknown."""
        if self.value is None:
            raise TypeError("the number is unknown")
        return self.value

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the interval; None where it is unknown."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width; None where it is unknown."""
        return None if self.interval is None else (self.interval[1] - self.interval[0]) / 2


@dataclass(frozen=True)
class JointEstimate(Estimate):
    """One of several estimates, with a wider interval besides.

    The wider intervals of all of them hold at once with 95% (Bonferroni), so that one may be picked
    out of many.
    """

    all_low: float | None = None  # Lower end of the wider interval; None where it is unknown
    all_high: float | None = None  # Upper end of the wider interval

    @property
    def above(self) -> bool:
        """Whether the wider interval is known and lies above zero."""
        return self.all_low is not None and self.all_low > 0.0

    @property
    def below(self) -> bool:
        """Whether the wider interval is known and lies below zero."""
        return self.all_high is not None and self.all_high < 0.0

    @property
    def joint(self) -> Estimate:
        """The number with the wider interval alone."""
        return Estimate(self.value, self.all_low, self.all_high)


UNKNOWN = Estimate(None)  # For what was not measured, or is missing in results of older versions.
JOINTLY_UNKNOWN = JointEstimate(None)
