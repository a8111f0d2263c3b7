"""The scoreboard in the terminal and as CSV; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from headscope.reports.result import Insight, InsightsResult
from headscope.show.cells import model_line, to_csv
from headscope.show.view import KeyNumber, View

__all__ = ["VIEW"]


_STYLES = {"holds": "bold green", "does not hold": "bold red", "mixed": "bold yellow"}


def insights_report(result: InsightsResult) -> Iterator[RenderableType]:
    """Show the model and every claim with its verdict, what was measured, control and rule."""
    yield model_line(result)
    yield from scoreboard(result)


def scoreboard(result: InsightsResult) -> Iterator[RenderableType]:
    """Show the claims that have a verdict, then the list of the others."""
    for found in result.insights:
        if found.verdict != "not measured yet":
            yield from _claim(found)
    waiting = [found for found in result.insights if found.verdict == "not measured yet"]
    if waiting:
        yield Text("\nNot measured yet", style="bold")
    for found in waiting:
        yield Text(f"{found.number:>2} {found.claim}", style="dim")


def _claim(found: Insight) -> Iterator[RenderableType]:
    title = Text(f"\n{found.number:>2} ")
    title.append(found.verdict.upper(), style=_STYLES.get(found.verdict, "bold"))
    title.append(f"  {found.claim}")
    yield title
    if found.measured:
        yield _indented(found.measured)
    if len(found.parts) > 1:
        for part in found.parts:
            yield _indented(f"- {part.name}: {part.verdict}; {part.measured}")
    if found.control:
        yield _indented(f"Control: {found.control}")
    if found.rule:
        yield _indented(found.rule, "dim")


def _indented(text: str, style: str = "") -> Padding:
    return Padding(Text(text, style=style), (0, 0, 0, 3), expand=False)


def verdicts(result: InsightsResult) -> Iterator[KeyNumber]:
    """Yield every claim that has a verdict, to stand beside other models'."""
    for found in result.insights:
        if found.verdict != "not measured yet":
            yield KeyNumber(f"{found.number}. {found.claim}", found.verdict)


VIEW = View(
    insights_report,
    files=lambda result: {"insights.csv": to_csv(result).encode()},
    compared=verdicts,
)
