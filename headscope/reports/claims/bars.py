"""One number for each claim, drawn as a bar beside its control."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from headscope.reports.result import Insight
from headscope.show.cells import tidy

Values = Mapping[str, Any]
_UNTRAINED = "random weights"


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
        """The number with its interval and its control, in words."""
        interval = ""
        if self.low is not None and self.high is not None:
            interval = f" [{self.low:.2g}, {self.high:.2g}]"
        text = f"{self.what} {self.value:.2g}{interval}"
        return text if self.control is None else f"{text}; {self.control_is} {self.control:.2g}"

    @property
    def markup(self) -> Markup:
        """A bar of 100 units with both ends of the interval and a red tick for the control."""
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


def _shared(v: Values) -> Bar | None:
    ratio = v["gaussian"]["layer_ratio"]
    what = "dimensions of a layer's W_Q W_K^T, share of random ones"
    return Bar(what, ratio["mean"], 1.0, "random", 1.2, ratio["low"], ratio["high"])


def _kept(v: Values) -> Bar | None:
    low, high = (v["baseline"] - end for end in reversed(v["loss_interval"]))
    what, control = f"with only the {v['kept']} labelled heads", "as many random heads"
    return Bar(what, v["value"], v["random_mean"], control, v["baseline"], low, high)


#: By the number of the claim.
_BARS: dict[int, Callable[[Values], Bar | None]] = {
    0: lambda v: Bar("asymmetry, median head", v["median"], v["gaussian"], "random", 2**0.5),
    1: lambda v: Bar("share recovered", v["r2_value"], v["r2_value_random_weights"], _UNTRAINED),
    2: _kept,
    3: _shared,
    5: lambda v: Bar(
        f"share of sigma in {v['k']} of {v['length']}",
        v["mean_share"],
        v["random_weights"],
        _UNTRAINED,
    ),
    6: lambda v: Bar(
        "rank correlation of coherence and error",
        v["spearman"],
        v["random_spearman"],
        _UNTRAINED,
    ),
    7: lambda v: Bar(
        "difference between tokens left, with skip",
        v["attention_with_skip"],
        v["attention"],
        "attention alone",
    ),
}


def bar_of(claim: Insight) -> Bar | None:
    """Return the number that a claim leads with; None where it has none."""
    if claim.number not in _BARS:
        return None
    try:
        bar = _BARS[claim.number](claim.values)
    except (KeyError, TypeError, ValueError):  # not measured, or a file of an earlier version
        return None
    return None if bar is None or bar.value is None else bar  # too little text, say
