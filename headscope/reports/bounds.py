"""Bounds of a metric: what it may lose, how that is written, and when a bound guards nothing.

``metric-drop=2%`` of ``--fail-on`` and ``metric_at_50_percent_drop = 0.05`` of ``[limits]`` are the
same bound, and are refused for the same reason: someone meant another unit.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from headscope.core.safe_text import visible
from headscope.removal.metric_words import scale_of

_SLACK = 1e-9  # A drop of exactly what is allowed is allowed, whatever its last digit.
_WRITTEN = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(%|points?|)", re.IGNORECASE)
#: A bare number of this share of a metric's scale, or more, was meant in another unit.
_TOO_MUCH = 0.25
_TOO_MUCH_OF_A_LOSS = 1.0  # Nats: the right answer becomes 2.7 times less likely.


@dataclass(frozen=True)
class AllowedDrop:
    """What a metric may lose: ``2%`` of its old value, ``0.5points``, or ``0.005`` in its unit.

    A point is a hundredth of the metric's scale, so that it is the same of an accuracy (0 to 100)
    and of a cosine (0 to 1).
    """

    amount: float
    unit: str = ""  # ``%``, ``points``, or empty for the metric's own

    def __str__(self) -> str:
        """As on the command line."""
        return f"{self.amount:g}{self.unit}"

    @classmethod
    def parse(cls, text: str) -> AllowedDrop | None:
        """Read it as it is written; None if it is no number of 0 or more with a known unit."""
        match = _WRITTEN.fullmatch(text)
        if match is None:
            return None
        amount = float(match[1])
        unit = match[2].lower()
        if not 0 <= amount < math.inf:
            return None
        return cls(amount, "points" if unit.startswith("point") else unit)

    def is_exceeded(self, metric: str, worsening: float | None, old: float | None) -> bool:
        """Whether a metric got worse by more than is allowed; ``old`` is what it was."""
        allowed = self.amount
        if self.unit == "%":
            allowed *= abs(old or 0.0) / 100
        elif self.unit == "points":
            allowed *= (scale_of(metric) or math.nan) / 100
        return (worsening or 0.0) > allowed + _SLACK


def drop_guards_nothing(drop: AllowedDrop, metric: str, *, with_units: bool = True) -> str:
    """Say why an allowed drop is so large that it would stop nothing; empty where it is not.

    The reason also says what to give; ``with_units`` says whether that may be a share or points.
    """
    name = visible(metric)
    scale = scale_of(metric)
    if scale is None:  # a loss, which may more than double
        if drop.unit == "points":
            return f"a {name} has no points; give a share of it, such as 2%, or nats, such as 0.05"
        too_much = math.inf if drop.unit else _TOO_MUCH_OF_A_LOSS
        extent = "has no end"
        instead = "nats, such as 0.05"
    else:
        too_much = 100.0 if drop.unit else _TOO_MUCH * scale
        extent = f"goes up to {scale:g}"
        instead = f"points, such as 0.5points, or a number below {_TOO_MUCH * scale:g}"
    if drop.amount < too_much:
        return ""
    if not with_units:
        return f"{name} {extent}; give less than {too_much:g}"
    return f"{name} {extent}; give a share of its old value, such as 2%, or {instead}"


def minimum_guards_nothing(minimum: float, metric: str) -> str:
    """Say that a least value was meant as a share of 1, where the metric goes up to 100."""
    if scale_of(metric) == 100 and 0 < minimum < 1:
        return f"{visible(metric)} goes up to 100; give {100 * minimum:g}"
    return ""
