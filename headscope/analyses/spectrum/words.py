"""How ``spectrum`` writes shares: 0.912 +-0.008."""

from __future__ import annotations

from headscope.show.cells import plus_minus
from headscope.stats.estimate import Estimate


def value_of(share: Estimate | float) -> float:
    """Return the number itself: of an estimate, its value; a known share is one already."""
    if isinstance(share, Estimate):
        return share.value or 0.0
    return share


def share_text(number: Estimate) -> str:
    """Write a share with half of its interval."""
    return plus_minus(f"{value_of(number):z.3f}", number.half_width)
