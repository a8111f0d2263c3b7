"""How ``spectrum`` writes shares."""

from __future__ import annotations

from headscope.show.cells import plus_minus
from headscope.stats.estimate import Estimate


def value_of(share: Estimate | float) -> float:
    """Return a share that was measured, or that is known without an interval."""
    return (share.value or 0.0) if isinstance(share, Estimate) else share


def share_text(number: Estimate) -> str:
    """Write a share with half of its interval."""
    return plus_minus(f"{value_of(number):z.3f}", number.half_width)
