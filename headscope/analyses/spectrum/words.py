"""How ``spectrum`` writes shares."""

from __future__ import annotations

from headscope.stats.estimate import Estimate


def value_of(share: Estimate | float) -> float:
    """Return the number itself: of an estimate, its value; a known share is one already."""
    if isinstance(share, Estimate):
        return share.value or 0.0
    return share
