"""What is shown of the claims: terminal, CSV, and the number that each leads with as a bar."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

from markupsafe import Markup
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headscope.reports.claims.rule import claims
from headscope.reports.result import VERDICTS, Insight, InsightsResult
from headscope.show.cells import model_line, tidy, to_csv
from headscope.show.style import is_verbose
from headscope.show.terminal import terminal
from headscope.show.view import KeyNumber, View, next_step


@dataclass(frozen=True)
class Bar:
    """A number, its 95% interval and its control."""

    what: str
    value: float
    control: float | None
    control_is: str
    low: float | None = None
    high: float | None = None
    reference: float = 1.0  # What is drawn as 1: of a metric, the full model's value

    @property
    def text(self) -> str:
        """Write the number with its interval and its control, in words."""
        interval = ""
        if self.low is not None and self.high is not None:
            interval = f" [{self.low:.2g}, {self.high:.2g}]"
        text = f"{self.what} {self.value:.2g}{interval}"
        return text if self.control is None else f"{text}; {self.control_is} {self.control:.2g}"

    @property
    def ends(self) -> list[float]:
        """Return all that the bar has to show, as shares of what counts as 1."""
        drawn = (self.value, self.control, self.low, self.high)
        return [value / (self.reference or 1.0) for value in drawn if value is not None]

    def markup(self, least: float, most: float) -> Markup:
        """Draw a bar between two numbers: its interval black, and a red tick for the control."""

        def at(value: float) -> str:
            share = (value / (self.reference or 1.0) - least) / (most - least)
            return f"{100 * min(1.0, max(0.0, share)):.1f}"

        start, end = sorted((float(at(0.0)), float(at(self.value))))
        drawn = Markup('<rect class="bar" x="{}" y="2" width="{:.1f}" height="10"/>')
        parts = [drawn.format(start, max(end - start, 0.4))]
        line = Markup('<path class="{}" d="M{} {}V{}"/>')
        if self.low is not None and self.high is not None:
            ends = Markup('<path class="ends" d="M{} 7H{}"/>').format(at(self.low), at(self.high))
            parts.append(ends)
        if self.control is not None:
            parts.append(line.format("control", at(self.control), 0, 14))
        return Markup(
            '<svg viewBox="0 0 100 14" preserveAspectRatio="none" role="img" aria-label="{0}">'
            '<rect class="track" x="0" y="2" width="100" height="10"/>{1}</svg>{0}'
        ).format(tidy(self.text), Markup("").join([*parts, line.format("zero", at(0), 0, 14)]))


def drawn_bars(claims: Sequence[Insight]) -> tuple[list[Markup], Markup]:
    """Draw the bar of every claim on one scale, and its legend; a claim without is left empty."""
    bars = [bar_of(claim) for claim in claims]
    ends = [end for bar in bars if bar is not None for end in bar.ends]
    if not ends:
        return [Markup("")] * len(bars), Markup("")
    # In steps of a half; what lies further out ends at the edge.
    least = max(-1.0, math.floor(2 * min(0.0, *ends)) / 2)
    most = min(2.0, math.ceil(2 * max(1.0, *ends)) / 2)
    marks = Markup("").join(
        Markup('<text x="{:.1f}%" y="13" text-anchor="{}">{}</text>').format(
            100 * (value - least) / (most - least),
            {least: "start", most: "end"}.get(value, "middle"),
            tidy(f"{value:g}"),
        )
        for value in sorted({least, 0.0, 1.0, most})
    )
    legend = Markup(
        '<div class="axis"><p class="soft"><i class="own"></i>this model <i class="between"></i>'
        '95% interval <i class="random"></i>control</p><svg aria-hidden="true">{}</svg></div>'
    ).format(marks)
    return [Markup("") if bar is None else bar.markup(least, most) for bar in bars], legend


def paper_of(claim: Insight) -> str:
    """Name the article that a claim is from."""
    return next((one.paper for one in claims().values() if one.number == claim.number), "")


def bar_of(claim: Insight) -> Bar | None:
    """Return the number that a claim leads with; None where it has none."""
    row = next((one.bar for one in claims().values() if one.number == claim.number), None)
    if not row:
        return None
    numbers = dict[str, Any]()
    try:
        for name in {"value", "control", "low", "high", "reference"} & row.keys():
            numbers[name] = row[name]
            if isinstance(row[name], str):  # names to follow, such as gaussian.layer_ratio.mean
                numbers[name] = functools.reduce(getitem, row[name].split("."), claim.values)
        what = str(row["what"]).format_map(claim.values)
    except (KeyError, TypeError):  # not measured
        return None
    if numbers["value"] is None:  # too little text, say
        return None
    return Bar(what, control_is=row["control_is"], **numbers)


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
            text = Text(re.split("[:;]", claim.claim)[0].rstrip("."))
            bar = bar_of(claim)
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
    files=lambda result: {"insights.csv": to_csv(result).encode("utf-8", "replace")},
    compared=_verdicts,
)
