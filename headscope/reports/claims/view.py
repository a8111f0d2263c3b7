"""What is shown of the claims, in the terminal and as CSV; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from headscope.reports.claims.bars import bar_of
from headscope.reports.result import InsightsResult
from headscope.show.cells import model_line, to_csv
from headscope.show.style import is_verbose
from headscope.show.view import KeyNumber, View

_STYLES = {"holds": "bold green", "does not hold": "bold red", "mixed": "bold yellow"}


def scoreboard(result: InsightsResult) -> Iterator[RenderableType]:
    """Show every claim with its verdict, what was measured, control and rule; then the others."""
    waiting = [Text("\nNot measured yet", style="bold")]
    for claim in result.insights:
        if claim.verdict == "not measured yet":
            waiting.append(Text(f"{claim.number:>2} {claim.claim}", style="dim"))
            continue
        title = Text(f"\n{claim.number:>2} ")
        title.append(claim.verdict.upper(), style=_STYLES.get(claim.verdict, "bold"))
        yield title.append(f"  {claim.claim}")
        if not is_verbose():
            bar = bar_of(claim)
            number = Text(bar.text if bar else claim.measured.partition(". ")[0], style="dim")
            yield Padding(number, (0, 0, 0, 3), expand=False)
            continue
        texts = [(claim.measured, "")]
        if len(claim.parts) > 1:
            texts += [(f"- {p.name}: {p.verdict}; {p.measured}", "") for p in claim.parts]
        texts += [(f"Control: {claim.control}" if claim.control else "", ""), (claim.rule, "dim")]
        for text, style in texts:
            if text:
                yield Padding(Text(text, style=style), (0, 0, 0, 3), expand=False)
    if len(waiting) > 1:
        yield from waiting
    if not is_verbose():
        yield Text("\nParts, controls and rules of each claim: --verbose; files: -o DIR.", "dim")


def _human(result: InsightsResult) -> Iterator[RenderableType]:
    yield model_line(result)
    yield from scoreboard(result)


def _verdicts(result: InsightsResult) -> Iterator[KeyNumber]:
    """Every claim that has a verdict, for comparison with other models."""
    for claim in result.insights:
        if claim.verdict != "not measured yet":
            yield KeyNumber(f"{claim.number}. {claim.claim}", claim.verdict)


VIEW = View(
    _human,
    files=lambda result: {"insights.csv": to_csv(result).encode()},
    compared=_verdicts,
)
