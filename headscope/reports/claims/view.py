"""The claims and their verdicts in the terminal and as CSV; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from headscope.reports.result import InsightsResult
from headscope.show.cells import model_line, to_csv
from headscope.show.view import KeyNumber, View

_STYLES = {"holds": "bold green", "does not hold": "bold red", "mixed": "bold yellow"}


def insights_report(result: InsightsResult) -> Iterator[RenderableType]:
    """Show the model and every claim with its verdict, what was measured, control and rule."""
    yield model_line(result)
    yield from scoreboard(result)


def scoreboard(result: InsightsResult) -> Iterator[RenderableType]:
    """Show the claims that have a verdict, then the list of the others."""
    waiting = [claim for claim in result.insights if claim.verdict == "not measured yet"]
    for claim in result.insights:
        if claim in waiting:
            continue
        title = Text(f"\n{claim.number:>2} ")
        title.append(claim.verdict.upper(), style=_STYLES.get(claim.verdict, "bold"))
        yield title.append(f"  {claim.claim}")
        lines = [(claim.measured, "")]
        if len(claim.parts) > 1:
            lines += [(f"- {p.name}: {p.verdict}; {p.measured}", "") for p in claim.parts]
        lines += [(f"Control: {claim.control}" if claim.control else "", ""), (claim.rule, "dim")]
        for line, style in lines:
            if line:
                yield Padding(Text(line, style=style), (0, 0, 0, 3), expand=False)
    if waiting:
        yield Text("\nNot measured yet", style="bold")
    for claim in waiting:
        yield Text(f"{claim.number:>2} {claim.claim}", style="dim")


VIEW = View(
    insights_report,
    files=lambda result: {"insights.csv": to_csv(result).encode()},
    compared=lambda result: (
        KeyNumber(f"{claim.number}. {claim.claim}", claim.verdict)
        for claim in result.insights
        if claim.verdict != "not measured yet"
    ),
)
