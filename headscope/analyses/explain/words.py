"""How the steps of ``explain`` write counts and shares."""

from __future__ import annotations


def counted(value: float | None) -> str:
    """Write a count with commas, or a dash where there is none."""
    return "-" if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """Write a share; a small one that is not zero as below the smallest that is shown."""
    if value is None:
        return "-"
    return "less than 0.1%" if 0 < abs(value) < 0.0005 else f"{value:.1%}"
