"""How much worse a metric may become, and whether that makes sense for the metric at hand."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from headscope.core.safe_text import visible
from headscope.results.diff import Change
from headscope.tasks.metric_words import scale_of

__all__ = ["AllowedDrop", "bare_limit"]

_SLACK = 1e-9  # A drop of exactly what is allowed is allowed, whatever its last digit.
_WRITTEN = re.compile(r"(.+?)\s*(%|points?|)", re.IGNORECASE)
#: A bare number of this share of a metric's scale, or more, was meant in another unit.
_TOO_MUCH = 0.25
_TOO_MUCH_OF_A_LOSS = 1.0  # Nats: who guesses 2.7 times as badly as before.


@dataclass(frozen=True)
class AllowedDrop:
    """What a metric may lose: ``2%`` of its old value, ``0.5points``, or ``0.005`` in its own unit.

    A point is a hundredth of the metric's scale, so that it is the same of an accuracy (0 to 100)
    and of a cosine (0 to 1).
    """

    amount: float
    unit: str = ""

    def __str__(self) -> str:
        """As on the command line."""
        return f"{self.amount:g}{self.unit}"

    @classmethod
    def parse(cls, text: str) -> AllowedDrop | None:
        """Read it as it is written; None if it is no number of 0 or more with a known unit."""
        match = _WRITTEN.fullmatch(text)
        try:
            amount = float(match[1]) if match else math.nan
        except ValueError:
            return None
        if match is None or not 0 <= amount < math.inf:
            return None
        return cls(amount, "points" if match[2].lower().startswith("p") else match[2])

    def exceeded(self, change: Change, metric: str) -> bool:
        """Whether a metric got worse by more than is allowed."""
        unit = {
            "%": abs(change.old or 0.0) / 100,
            "points": (scale_of(metric) or math.nan) / 100,
        }
        return (change.worsening or 0.0) > self.amount * unit.get(self.unit, 1.0) + _SLACK

    def nonsense(self, metric: str) -> str:
        """Say why this would never stop what it is to stop, and what would; empty if it would."""
        scale, name = scale_of(metric), visible(metric)
        if scale is None and self.unit == "points":
            return f"a {name} has no points; give a share of it, such as 2%, or nats, such as 0.05"
        if scale is not None and self.unit and self.amount >= 100:
            return f"no {name} can lose as much; give a smaller share, such as 2%"
        if self.unit or self.amount < bare_limit(metric):
            return ""
        if scale is None:
            return (
                f"a {name} that rises by {self} makes guesses "
                f"{math.exp(min(self.amount, 99)):.3g} times as bad; give a share of it, such as "
                "2%, or fewer nats, such as 0.05"
            )
        meant = self.amount if self.amount < 1 else 2.0
        return (
            f"{name} goes up to {scale:g}, and {self} is {100 * self.amount / scale:g}% of that; "
            f"give {meant:g}% (of the old value), {meant:g}points ({meant * scale / 100:g} of "
            f"{scale:g}) or a number below {bare_limit(metric):g}"
        )


def bare_limit(metric: str) -> float:
    """Return from where on a bare number was surely meant in another unit."""
    scale = scale_of(metric)
    return _TOO_MUCH_OF_A_LOSS if scale is None else _TOO_MUCH * scale
