"""How the scoreboard of ``insights`` looks."""

from headscope.show.cells import to_csv
from headscope.show.insights.tables import insights_report, verdicts
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    insights_report,
    files=lambda result: {"insights.csv": to_csv(result).encode()},
    compared=verdicts,
)
