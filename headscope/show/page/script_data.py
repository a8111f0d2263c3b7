"""What a page's scripts read: JSON inside the page, and the data of its charts.

``charts.js`` draws a chart from its data, at the width that it has on the screen, so that its
letters can be read on every screen. Here the data are written under the short names that the script
reads: :func:`chart_html` writes a figure, :func:`_panel` a chart in it, :func:`_series` its lines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from markupsafe import Markup

from headscope.core.safe_text import visible
from headscope.show.blocks import Chart, Panels, Series
from headscope.show.cells import tidy
from headscope.stats.estimate import Estimate

#: Characters that might end a script in HTML or in old JavaScript, as JSON escapes them.
_ESCAPES = {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def page_json(data: Any) -> Markup:
    """Write JSON as ASCII in which no HTML parser can see the end of the script."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup("".join(_ESCAPES.get(char, char) for char in text))


def chart_html(block: Chart | Panels) -> Markup:
    """Write a figure for ``charts.js``; nothing if no panel has a value to show."""
    charts = [block] if isinstance(block, Chart) else _captioned(block)
    panels = [_panel(chart, block.alt or chart.title) for chart in charts if _has_value(chart)]
    if not panels:
        return Markup("")
    data: dict[str, Any] = {"title": _words(block.title), "panels": panels}
    if isinstance(block, Panels):
        data["shared"] = len({chart.y for chart in charts}) == 1
        caption, names = block.groups
        if names:
            data["groups"] = [_words(caption), [_words(name) for name in names]]
    else:
        panels[0]["title"] = ""  # that of the figure
    return Markup(
        '<figure class="chart"><script type="application/json">{}</script></figure>'
    ).format(page_json(data))


def _captioned(block: Panels) -> list[Chart]:
    """Give each chart all captions, since the page may show it alone.

    In a figure file charts side by side share the caption of y, and charts below each other have a
    title above the first alone.
    """
    charts = [panel for panel in block.panels if isinstance(panel, Chart)]
    shared_x = next((chart.x for chart in charts if chart.x), "")
    captioned: list[Chart] = []
    for i, chart in enumerate(charts):
        title_above = captioned[i - block.across].title if i >= block.across else ""
        y_before = captioned[-1].y if captioned else ""
        captioned.append(
            replace(
                chart,
                title=chart.title or title_above,
                x=chart.x or shared_x,
                y=chart.y or y_before,
            )
        )
    return captioned


def _has_value(chart: Chart) -> bool:
    """Whether a chart has a value to show."""
    values = chain.from_iterable(series.y for series in chart.series)
    return any(_value(y) is not None for y in values)


def _panel(panel: Chart, alt: str) -> dict[str, Any]:
    """Write a chart under the names that ``charts.js`` reads."""
    bars = any(series.kind == "bars" for series in panel.series)
    return {
        "title": _words(panel.title),
        "alt": _words(f"{panel.title}: {alt}" if panel.title else alt),
        "x": _words(panel.x),
        "y": _words(panel.y),
        "xs": panel.x_scale,
        "ys": panel.y_scale,
        "names": [_words(name) for name in panel.x_names],
        "levels": _levels(panel.levels),
        "xlevels": _levels(panel.x_levels),
        "series": [_series(series, bars) for series in panel.series],
    }


def _levels(levels: Mapping[str, float] | None) -> list[list[Any]]:
    """Write named lines across a panel as pairs of name and value."""
    return [[_words(name), _short(value)] for name, value in (levels or {}).items()]


def _series(series: Series, bars: bool) -> dict[str, Any]:
    """Write a series, without its empty fields.

    Values of x that count up by one are written as the first: [3, 4, 5] -> 3.
    """
    x: Any
    if bars:
        x = [_words(str(name)) for name in series.x]
    else:
        x = [_short(value) for value in series.x]
        if x and x == [x[0] + i for i in range(len(x))]:
            x = x[0]
    written = {
        "n": _words(series.name),
        "k": series.kind,
        "x": x,
        "y": [_short(_value(y)) for y in series.y],
        "e": _pairs(y.interval if isinstance(y, Estimate) else None for y in series.y),
        "b": _pairs(series.band),
        "c": series.colour if isinstance(series.colour, str) else list(series.colour),
        "m": series.marker,
        "d": series.dash,
        "w": series.width,
        "g": list(series.groups),
    }
    return {key: value for key, value in written.items() if value or key in ("x", "y")}


def _pairs(pairs: Iterable[Sequence[float] | None]) -> list[list[float | None] | None]:
    """Write pairs of numbers, such as intervals; an empty list where none is known."""
    written = [None if pair is None else [_short(end) for end in pair] for pair in pairs]
    return written if any(written) else []


def _value(y: Estimate | float | None) -> float | None:
    """Return a point's value; None if there is none, or none that is finite."""
    value = y.value if isinstance(y, Estimate) else y
    return value if value is not None and math.isfinite(value) else None


def _short(value: float | None) -> float | None:
    """Round to four digits, more than an eye can see; None for numbers that are not finite."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.4g}")
    return int(short) if short == int(short) else short


def _words(text: str) -> str:
    """Write text as it is printed: no control characters, true minus signs."""
    return tidy(visible(text))
