"""What is shown of the claims: terminal, CSV, and the number that each leads with as a bar.

An :class:`Insight` is a claim with its verdict, and what was measured in words and in ``values``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from markupsafe import Markup
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headscope.reports.claims.bar import Bar, draw_bars
from headscope.reports.claims.registry import claim_of
from headscope.reports.claims.rule import NOT_YET
from headscope.reports.result import VERDICTS, Insight, InsightsResult
from headscope.show.cells import model_line, to_csv
from headscope.show.style import is_verbose
from headscope.show.terminal import terminal
from headscope.show.view import KeyNumber, View, next_step


def bar_of(insight: Insight) -> Bar | None:
    """Return the number that a claim leads with; None where it has none, or was not measured."""
    claim = claim_of(insight)
    if claim is None or claim.bar is None:
        return None
    # What was not measured is missing in the values, or None. They may come from a file as well,
    # of another version or written by hand, so they are not looked through in advance.
    try:
        bar = claim.bar(insight.values)
    except (KeyError, TypeError):
        return None
    return None if bar.value is None else bar


def drawn_bars(insights: Sequence[Insight]) -> tuple[list[Markup], Markup]:
    """Draw the bar of every claim on one scale, and its legend; a claim without is left empty."""
    return draw_bars([bar_of(insight) for insight in insights])


def paper_of(insight: Insight) -> str:
    """Name the article that a claim is from."""
    claim = claim_of(insight)
    return "" if claim is None else claim.paper


def heading(insights: Sequence[Insight]) -> str:
    """Say how many claims were tested."""
    count = {10: "Ten", 11: "Eleven", 12: "Twelve"}.get(len(insights), str(len(insights)))
    return f"{count} claims from the literature, tested on this model"


# --- the terminal ---------------------------------------------------------------------------------


_STYLES = {"holds": "bold green", "does not hold": "bold red", "mixed": "bold yellow"}


def scoreboard(result: InsightsResult) -> Iterator[RenderableType]:
    """Show a verdict, the claim and one number each; with ``--verbose`` all that decided it."""
    counts = Counter(insight.verdict for insight in result.insights)
    verdicts = ", ".join(f"{name} {counts[name]}" for name in VERDICTS if counts[name])
    yield Text(f"{heading(result.insights)}: {verdicts}.\n", style="bold")
    if is_verbose():
        for insight in result.insights:
            yield from _all_that_decided(insight)
    else:
        yield _one_line_each(result.insights)


def _verdict(insight: Insight) -> Text:
    return Text(insight.verdict, _STYLES.get(insight.verdict, "dim"))


def _one_line_each(insights: Sequence[Insight]) -> Table:
    """Show the verdict, the first words of the claim, and below them the number it leads with."""
    lines = Table.grid(padding=(0, 1, 0, 0))
    for insight in insights:
        text = Text(re.split("[:;]", insight.claim)[0].rstrip("."))
        bar = bar_of(insight)
        if bar is not None:
            text.append(f"\n{bar.text}", "dim")
        lines.add_row(f"{insight.number:>2}", _verdict(insight), text)
    return lines


def _all_that_decided(insight: Insight) -> Iterator[RenderableType]:
    """Show the verdict and the claim, then what was measured, its parts, control and rule."""
    yield Text.assemble(f"{insight.number:>2} ", _verdict(insight), f"  {insight.claim}")
    lines = [Text(insight.measured)]
    if len(insight.parts) > 1:
        for row in insight.parts:
            text = f"- {row.name}: {row.verdict}; {row.measured}"
            lines.append(Text(text))
    if insight.control:
        lines.append(Text(f"Control: {insight.control}"))
    lines.append(Text(insight.rule, "dim"))
    for line in lines:
        if line:
            yield Padding(line, (0, 0, 0, 3), expand=False)


def _human(result: InsightsResult) -> Iterator[RenderableType]:
    yield from scoreboard(result)
    yield Text("")
    yield model_line(result)
    if is_verbose():
        following = next_step(result, "all of it as a page:", "report {}")
    else:
        following = next_step(result, "what decided each claim:", "insights {} --verbose")
    yield from terminal([following])


def _verdicts(result: InsightsResult) -> Iterator[KeyNumber]:
    """Yield every claim that has a verdict, for comparison with other models."""
    for insight in result.insights:
        if insight.verdict != NOT_YET:
            yield KeyNumber(f"{insight.number}. {insight.claim}", insight.verdict)


VIEW = View(
    _human,
    files=lambda result: {"insights.csv": to_csv(result).encode("utf-8", "replace")},
    compared=_verdicts,
)
