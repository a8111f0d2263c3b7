"""Small charts as inline SVG: numbers only, colours from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 44


@dataclass(frozen=True)
class Line:
    """One line of a chart, or ``dots`` in its place; a point whose y is None is left out.

    ``style`` is one of the page's eight line colours, zero-based; ``band`` holds (low, high) of
    every point.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    style: int
    dashed: bool = False
    dots: bool = False
    band: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Chart:
    """A drawing and its legend: (style, dashed, name) of each line."""

    svg: Markup
    legend: tuple[tuple[int, bool, str], ...]


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self._of(self.low), self._of(self.high)
        return self.start + (self._of(value) - low) / (high - low) * (self.end - self.start)

    def _of(self, value: float) -> float:
        return math.log10(max(value, self.low)) if self.log else value

    def hides(self, value: float) -> bool:
        """Whether a value lies below a logarithmic axis: it is drawn at its end, and marked."""
        return self.log and value < self.low

    def ticks(self) -> list[float]:
        if self.log:
            first, last = round(math.log10(self.low)), math.floor(math.log10(self.high) + 1e-9)
            every = max(1, math.ceil((last - first) / 6))
            return [10.0**e for e in range(last, first - 1, -every)]
        step = _nice((self.high - self.low) / 5)
        lowest = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(lowest, math.floor(self.high / step + 1e-9) + 1)]


def chart(
    lines: Sequence[Line],
    *,
    label: str,
    x_title: str,
    y_title: str,
    y_limits: tuple[float, float] | None = None,
    x_names: Sequence[str] = (),
    percent: bool = False,
    log: bool = False,
) -> Chart:
    """Draw lines with axes, later ones above earlier ones; without any point nothing is drawn.

    A screen reader says ``label`` instead. ``x_names`` stand in place of whole numbers from 0,
    ``percent`` means that x runs from 0 to 1. ``y_limits`` are the extremes by default; on a
    logarithmic axis (``log``) the lower one must be above 0, and values below it are drawn as
    triangles that point down.
    """
    legend = tuple((line.style, line.dashed, line.name) for line in lines)
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points if y is not None]
    if not xs or not ys:
        return Chart(Markup(), legend)
    low, high = y_limits or (min(ys), max(ys))
    y = _Axis(low, high if high > low else low + 1, HEIGHT - BOTTOM, TOP, log)
    left, right = min(xs), max(xs)
    pad = 0.5 if left == right else 0.02 * (right - left)
    x = _Axis(left - pad, right + pad, LEFT, WIDTH - RIGHT)
    parts = [*_axes(x, y, x_names, percent, sorted(set(xs))), *_titles(x_title, y_title)]
    for line in lines:
        parts += _line(line, x, y)
    frame = '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    return Chart(Markup(frame).format(WIDTH, HEIGHT, label, Markup("").join(parts)), legend)


def points_of(curve: Iterable[float | None]) -> list[tuple[float, float | None]]:
    """Number the values of a curve from 0."""
    return [(float(i), value) for i, value in enumerate(curve)]


def highest(lines: Iterable[Line]) -> float:
    """Return the largest value of all lines, 1 where there is none."""
    return max((y for line in lines for _, y in line.points if y is not None), default=1.0)


def _axes(
    x: _Axis, y: _Axis, names: Sequence[str], percent: bool, xs: Sequence[float]
) -> Iterator[Markup]:
    for tick in y.ticks():
        at = f"{y(tick):.1f}"
        yield Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
            LEFT, WIDTH - RIGHT, at, at
        )
        yield _text(LEFT - 6, y(tick) + 4, f"{tick:.0e}" if y.log else f"{tick:.6g}", "end")
    places = xs if len(xs) <= 13 else x.ticks()  # of a cloud of points: round numbers
    if names:
        places = [float(i) for i in range(len(names)) if x.low <= i <= x.high]
    every = max(1, math.ceil(len(places) / 13))
    for i, value in enumerate(places):
        if i % every == 0:
            text = names[int(value)] if names else f"{value:.0%}" if percent else f"{value:.6g}"
            yield _text(x(value), HEIGHT - BOTTOM + 18, text, "middle")


def _titles(x_title: str, y_title: str) -> Iterator[Markup]:
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_title, "middle")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = '<text x="12" y="{}" text-anchor="middle" transform="rotate(-90 12 {})">{}</text>'
    yield Markup(turned).format(middle, middle, y_title)


def _line(line: Line, x: _Axis, y: _Axis) -> Iterator[Markup]:
    if line.band:
        upper = [(px, high) for (px, _), (_, high) in zip(line.points, line.band, strict=True)]
        lower = [(px, low) for (px, _), (low, _) in zip(line.points, line.band, strict=True)]
        corners = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in [*upper, *reversed(lower)])
        yield Markup('<polygon class="band s{}" points="{}"/>').format(line.style, corners)
    known = [(px, py) for px, py in line.points if py is not None]
    points = [(x(px), y(py)) for px, py in known if not y.hides(py)]
    below = [(x(px), y(py)) for px, py in known if y.hides(py)]
    kind = f"s{line.style}{' dashed' if line.dashed else ''}"
    if not line.dots:
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        yield Markup('<polyline class="line {}" points="{}"/>').format(kind, path)
    if line.dots or len(points) < 16:
        for px, py in points:
            yield Markup('<circle class="dot {}" cx="{}" cy="{}" r="3"/>').format(
                kind, f"{px:.1f}", f"{py:.1f}"
            )
    for px, py in below:
        corners = f"{px - 4:.1f},{py - 4:.1f} {px + 4:.1f},{py - 4:.1f} {px:.1f},{py + 4:.1f}"
        yield Markup('<polygon class="dot below {}" points="{}"/>').format(kind, corners)


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(
        f"{x:.1f}", f"{y:.1f}", anchor, escape(text)
    )


def _nice(step: float) -> float:
    """Round a step up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * 0.999)
