"""The number that a claim leads with, and how the page draws it: as a bar beside its control.

A claim is a sentence of an article that a report judges. All bars of a page have one scale; a
number stands on it as a *share* of its bar's ``reference``, so that losses and accuracies can stand
below each other. :func:`draw_bars` draws them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from headscope.show.cells import tidy
from headscope.show.estimates import ranged
from headscope.stats.estimate import Estimate


@dataclass(frozen=True)
class Bar:
    """A number, its 95% interval and its control."""

    caption: str
    value: float
    control: float | None  # The same number of the control; None where it was not measured
    control_name: str
    low: float | None = None  # Ends of the interval; None where it is unknown
    high: float | None = None
    reference: float = 1.0  # The number that is drawn as 1, such as the full model's metric

    @property
    def text(self) -> str:
        """Write the number with its interval and its control, in words."""
        number = Estimate(self.value, self.low, self.high)
        text = f"{self.caption} {ranged(number, _two_digits)}"
        if self.control is not None:
            text += f"; {self.control_name} {_two_digits(self.control)}"
        return text

    @property
    def shares(self) -> list[float]:
        """Return the numbers that the bar has to show, as shares of ``reference``."""
        numbers = (self.value, self.control, self.low, self.high)
        return [self._share(number) for number in numbers if number is not None]

    def markup(self, least: float, most: float) -> Markup:
        """Draw the bar from 0 to the number, its interval, and a tick for the control.

        The drawing begins at ``least`` and ends at ``most``, both shares of ``reference``.
        """

        def x(number: float) -> float:
            """Return where a number stands, in percent of the width; outside, at the edge."""
            share = (self._share(number) - least) / (most - least)
            return round(100 * min(1.0, max(0.0, share)), 1)

        start, stop = sorted((x(0.0), x(self.value)))
        bar = Markup('<rect class="bar" x="{}" y="2" width="{:.1f}" height="10"/>')
        shapes = [bar.format(start, max(stop - start, 0.4))]  # wide enough to be seen at 0
        if self.low is not None and self.high is not None:
            interval = Markup('<path class="ends" d="M{} 7H{}"/>')
            shapes.append(interval.format(x(self.low), x(self.high)))
        tick = Markup('<path class="{}" d="M{} 0V14"/>')
        if self.control is not None:
            shapes.append(tick.format("control", x(self.control)))
        shapes.append(tick.format("zero", x(0.0)))
        # The drawing, named for screen readers, and the same words beside it
        return Markup(
            '<svg viewBox="0 0 100 14" preserveAspectRatio="none" role="img" aria-label="{words}">'
            '<rect class="track" x="0" y="2" width="100" height="10"/>{shapes}</svg>{words}'
        ).format(words=tidy(self.text), shapes=Markup("").join(shapes))

    def _share(self, number: float) -> float:
        """Return a number as a share of ``reference``; itself, where that is 0."""
        return number / (self.reference or 1.0)


def _two_digits(value: float) -> str:
    """Write a number with two significant digits."""
    return f"{value:.2g}"


def draw_bars(bars: Sequence[Bar | None]) -> tuple[list[Markup], Markup]:
    """Draw bars on one scale, and its legend; None becomes an empty drawing."""
    numbers: list[float] = []
    for bar in bars:
        if bar is not None:
            numbers += bar.shares
    if not numbers:
        return [Markup("")] * len(bars), Markup("")
    # The scale holds 0 to 1 and all numbers, from a multiple of a half to another one (numbers 0.2
    # and 1.3: from 0 to 1.5), but at most from -1 to 2: what lies further out ends at the edge.
    least = max(-1.0, math.floor(2 * min(0.0, *numbers)) / 2)
    most = min(2.0, math.ceil(2 * max(1.0, *numbers)) / 2)
    drawn = [Markup("") if bar is None else bar.markup(least, most) for bar in bars]
    return drawn, _legend(least, most)


def _legend(least: float, most: float) -> Markup:
    """Say what the colours mean, above the scale: marks at its ends, at 0 and at 1."""
    anchors = {least: "start", most: "end"}  # so that the outer numbers stay inside
    mark = Markup('<text x="{:.1f}%" y="13" text-anchor="{}">{}</text>')
    marks = Markup("")
    for value in sorted({least, 0.0, 1.0, most}):
        percent = 100 * (value - least) / (most - least)
        marks += mark.format(percent, anchors.get(value, "middle"), tidy(f"{value:g}"))
    return Markup(
        '<div class="axis"><p class="soft"><i class="own"></i>this model <i class="between"></i>'
        '95% interval <i class="random"></i>control</p><svg aria-hidden="true">{}</svg></div>'
    ).format(marks)
