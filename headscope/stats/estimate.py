"""A number with its confidence interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

Z = 1.959963984540054  # Half of a 95% interval of a normal value, in standard errors.


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% confidence interval.

    A value of None means that the number is undefined or was not measured; without an interval its
    uncertainty is unknown. Neither is ever written as zero. Each result says at its field how the
    interval was made.
    """

    value: float | None
    low: float | None = None
    high: float | None = None

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
        """Both ends, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width, or None."""
        return None if self.interval is None else (self.interval[1] - self.interval[0]) / 2


UNKNOWN = Estimate(None)  # For what was not measured, or is missing in results of older versions.
