"""What is shown of the claims, in the terminal and as CSV; 80 columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headscope.reports.claims.bars import bar_of
from headscope.reports.result import VERDICTS, InsightsResult
from headscope.show.cells import model_line, to_csv
from headscope.show.style import is_verbose
from headscope.show.terminal import terminal
from headscope.show.view import KeyNumber, View, next_step

_STYLES = {"holds": "bold green", "does not hold": "bold red", "mixed": "bold yellow"}


def scoreboard(result: InsightsResult) -> Iterator[RenderableType]:
    """Show a verdict, the claim and one number each; with ``--verbose`` all that decided it."""
    counts = Counter(claim.verdict for claim in result.insights)
    verdicts = ", ".join(f"{name} {counts[name]}" for name in VERDICTS if counts[name])
    head = f"Eleven claims from the literature, tested on this model: {verdicts}.\n"
    yield Text(head, style="bold")
    lines = Table.grid(padding=(0, 1, 0, 0))
    for claim in result.insights:
        verdict = Text(claim.verdict, _STYLES.get(claim.verdict, "dim"))
        if not is_verbose():
            text, bar = Text(re.split("[:;]", claim.claim)[0].rstrip(".")), bar_of(claim)
            if bar is not None:
                text.append(f"\n{bar.text}", "dim")
            lines.add_row(f"{claim.number:>2}", verdict, text)
            continue
        yield Text.assemble(f"{claim.number:>2} ", verdict, f"  {claim.claim}")
        parts = claim.parts if len(claim.parts) > 1 else ()
        for text in (
            Text(claim.measured),
            *(Text(f"- {part.name}: {part.verdict}; {part.measured}") for part in parts),
            Text(f"Control: {claim.control}" if claim.control else ""),
            Text(claim.rule, "dim"),
        ):
            if text:
                yield Padding(text, (0, 0, 0, 3), expand=False)
    if not is_verbose():
        yield lines


def _human(result: InsightsResult) -> Iterator[RenderableType]:
    yield from scoreboard(result)
    yield Text("")
    yield model_line(result)
    why = "what decided each claim:" if not is_verbose() else "all of it as a page:"
    command = "insights {} --verbose" if not is_verbose() else "report {}"
    yield from terminal([next_step(result, why, command)])


def _verdicts(result: InsightsResult) -> Iterator[KeyNumber]:
    """Yield every claim that has a verdict, for comparison with other models."""
    for claim in result.insights:
        if claim.verdict != "not measured yet":
            yield KeyNumber(f"{claim.number}. {claim.claim}", claim.verdict)


VIEW = View(
    _human,
    files=lambda result: {"insights.csv": to_csv(result).encode()},
    compared=_verdicts,
)
