"""One number for each claim, drawn as a bar beside its control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from headscope.reports.claims.rule import claims
from headscope.reports.result import Insight
from headscope.show.cells import tidy


@dataclass(frozen=True)
class Bar:
    """A number from 0 to ``most`` (or from ``-most``), its 95% interval and its control."""

    what: str
    value: float
    control: float | None
    control_is: str
    most: float = 1.0
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """Write the number with its interval and its control, in words."""
        interval = ""
        if self.low is not None and self.high is not None:
            interval = f" [{self.low:.2g}, {self.high:.2g}]"
        text = f"{self.what} {self.value:.2g}{interval}"
        return text if self.control is None else f"{text}; {self.control_is} {self.control:.2g}"

    @property
    def markup(self) -> Markup:
        """Draw a bar of 100 units with both ends of the interval and a red tick for the control."""
        least = -self.most if min(self.value, self.control or 0.0, self.low or 0.0) < 0 else 0.0

        def at(value: float) -> str:
            return f"{100 * min(1.0, max(0.0, (value - least) / (self.most - least))):.1f}"

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
        ).format(tidy(self.text), Markup("").join(parts))


def bar_of(claim: Insight) -> Bar | None:
    """Return the number that a claim leads with; None where it has none."""
    row = next((one.bar for one in claims().values() if one.number == claim.number), None)
    if not row:
        return None
    numbers = {
        name: row[name] for name in ("value", "control", "most", "low", "high") if name in row
    }
    try:
        found = {name: _found(claim.values, place) for name, place in numbers.items()}
        what = str(row["what"]).format_map(claim.values)
    except (KeyError, TypeError):  # not measured
        return None
    if found["value"] is None:  # too little text, say
        return None
    return Bar(what, control_is=row["control_is"], **found)


def _found(values: Mapping[str, Any], place: str | float) -> Any:
    """Follow the names in ``place``, such as ``gaussian.layer_ratio.mean``; a number is itself."""
    if not isinstance(place, str):
        return place
    found: Any = values
    for name in place.split("."):
        found = found[name]
    return found
