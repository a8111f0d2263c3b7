"""How the steps of ``explain`` write counts and shares."""

from __future__ import annotations


def counted(value: float | None) -> str:
    """Write a count with commas, or a dash where there is none."""
    return "-" if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """Write a share: 0.123 as 12.3%, and one that would be 0.0% but is not zero as less."""
    if value is None:
        return "-"
    if 0 < abs(value) < 0.0005:
        return "less than 0.1%"
    return f"{value:.1%}"
