"""How the scoreboard of ``insights`` looks."""

from headscope.show.insights.tables import insights_csv, insights_report
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    human=insights_report,
    csv=insights_csv,
    files=lambda result: {"insights.csv": insights_csv(result).encode()},
)
