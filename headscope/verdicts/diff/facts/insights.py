"""The facts of ``headscope insights``."""

from __future__ import annotations

from headscope.results.insights import InsightsResult
from headscope.verdicts.diff.facts.fact import Facts


def collect(result: InsightsResult, facts: Facts) -> None:
    """Add the verdict of every claim."""
    for insight in result.insights:
        facts.text(f"insight {insight.number}", "verdict", insight.verdict)


def settings(result: InsightsResult) -> dict[str, object]:
    """Return nothing: all settings are in the provenance."""
    return {}
