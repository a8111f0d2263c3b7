"""A number with its confidence interval."""

from __future__ import annotations

from dataclasses import dataclass

Z = 1.959963984540054  # Half of a 95% interval of a normal value, in standard errors.


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% confidence interval.

    Without a value (None) the number is not defined or was not measured; without an interval
    nobody knows how sure it is. What is unknown is never zero. How the interval was made is said
    where a result has the field.
    """

    value: float | None
    low: float | None = None
    high: float | None = None

    @classmethod
    def around(cls, value: float | None, half_width: float | None = None) -> Estimate:
        """Make one of a number and half of its interval, None where that is unknown."""
        if value is None or half_width is None:
            return cls(value)
        return cls(value, value - half_width, value + half_width)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width, or None."""
        return None if self.interval is None else (self.interval[1] - self.interval[0]) / 2


UNKNOWN = Estimate(None)  # What results of older versions do not hold, and what was not measured.
