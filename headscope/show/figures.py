"""Figures of matplotlib: blocks drawn, their files, and what all figures share.

:func:`figures_of` draws the blocks that have a file's name, :func:`figure_files` writes the files;
functions named ``..._on`` draw on axes. All is done without pyplot, and no setting of matplotlib is
left changed.
"""

from __future__ import annotations

import importlib
import io
import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from headscope.show.blocks import (
    BLUE,
    GREY,
    VERMILION,
    Block,
    Chart,
    Drawing,
    HeadMap,
    Matrix,
    Panels,
    Series,
)
from headscope.show.cells import decimal, head_rows, model_name, tidy
from headscope.show.style import formats_to_draw
from headscope.show.terminal import matrix_cell
from headscope.stats.estimate import Estimate

__all__ = ["BLUE", "GREY", "VERMILION", "model_name"]  # for those who draw with this module

_TOKENS = 24  # Tokens of a matrix that are shown at most
_NUMBERED = 16  # Tokens of a matrix up to which each cell has its number


def figures_of(blocks: Iterable[Block]) -> Iterator[tuple[str, Figure]]:
    """Draw every block that has a file's name; nothing if the run writes no figures."""
    if not formats_to_draw():
        return
    for block in blocks:
        if isinstance(block, Drawing):
            yield block.file, block.draw()
        elif isinstance(block, HeadMap) and block.file:
            yield block.file, _head_map_figure(block)
        elif isinstance(block, Panels) and block.file:
            yield block.file, _panels_figure(block)
        elif isinstance(block, Chart) and block.file:
            yield block.file, _chart_figure(block)


def _head_map_figure(block: HeadMap) -> Figure:
    """Draw a map of heads, half an inch for each of its cells."""
    rows = head_rows(block.values)
    n_heads = len(rows[0][1])
    figure = new_figure(max(5.0, 1.8 + 0.55 * n_heads), 1.3 + 0.5 * len(rows))
    head_map_on(figure.add_subplot(), block)
    return figure


def _chart_figure(block: Chart) -> Figure:
    """Draw a chart, with its legend below if it has several series."""
    figure = new_figure(*block.size)
    chart_on(figure.add_subplot(), block)
    if len(block.series) > 1:
        legend_beside(figure, "outside lower center", 2, handlelength=3.5)
    return figure


def _panels_figure(block: Panels) -> Figure:
    """Draw charts and matrices side by side, with one legend or one colour bar for all."""
    figure = new_figure(*block.size)
    y_captions = {panel.y for panel in block.panels if isinstance(panel, Chart)} - {""}
    has_matrix = any(isinstance(panel, Matrix) for panel in block.panels)
    same_number = len(y_captions) == 1 and not has_matrix
    n_rows = math.ceil(len(block.panels) / block.across)
    grid = figure.subplots(n_rows, block.across, sharex=_same_bars(block), sharey=same_number)
    for axes, panel in zip(np.ravel(grid), block.panels, strict=True):
        if isinstance(panel, Chart):
            chart_on(axes, panel)
        else:
            _matrix_on(axes, panel)

    caption, group_names = block.groups
    if group_names:
        # A colour for each group; group i covers the values from i - 0.5 to i + 0.5.
        shades = ScalarMappable(BoundaryNorm(np.arange(-0.5, len(group_names)), 256), "viridis")
        bar_axes = small_colour_bar(figure, shades, grid, caption, 0.03)
        bar_axes.set_yticks(range(len(group_names)), group_names)
    else:
        handles = _handles_by_label(figure)
        if len(handles) > 1:
            legend_beside(figure, "outside lower center", 3, handles=list(handles.values()))
    figure.suptitle(tidy(block.title), fontsize=11)
    return figure


def _same_bars(block: Panels) -> bool:
    """Whether all panels are bars of one number, whose lengths can be compared across panels."""
    charts = [panel for panel in block.panels if isinstance(panel, Chart)]
    kinds: set[str] = set()
    for chart in charts:
        kinds |= {series.kind for series in chart.series}
    one_number = len({chart.x for chart in charts}) == 1
    return len(charts) == len(block.panels) and kinds == {"bars"} and one_number


def _handles_by_label(figure: Figure) -> dict[str, Any]:
    """Return what a legend of all panels shows: each label once, as the first panel draws it."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    return handles


def head_map_on(axes: Axes, block: HeadMap, *, text: bool = True, legend: bool = True) -> None:
    """Draw a number of every head as the colour of its cell; with ``text``, write it there too."""
    rows = head_rows(block.values)
    grid = np.array([values for _, values in rows], dtype=float)  # None becomes NaN
    image = axes.imshow(grid, aspect="auto", **_colours_of(grid))
    label_grid(axes, len(rows), grid.shape[1], [layer for layer, _ in rows])
    if text:
        for (layer, head), value in np.ndenumerate(grid):
            if np.isfinite(value):
                number = tidy(decimal(value, block.digits))
                cell_text(axes, layer, head, number, colour=image.to_rgba(value), size=6.5)
    if legend:
        small_colour_bar(axes.figure, image, axes, block.legend, 0.03)
    axes.set_title(_wrapped(block.title, axes), fontsize=10)


#: Below zero orange, at zero white, above it blue.
_SIGNED = LinearSegmentedColormap.from_list("signed", (VERMILION, "#FFFFFF", BLUE))


def _colours_of(grid: np.ndarray, one_sign: str = "viridis") -> dict[str, Any]:
    """Return how imshow colours numbers: those of both signs by two colours that meet at zero.

    Numbers of one sign are coloured by matplotlib's colours of the name ``one_sign``.
    """
    known = grid[np.isfinite(grid)]
    if known.size and known.min() < 0 < known.max():
        most = float(np.abs(known).max())
        return {"cmap": _SIGNED, "vmin": -most, "vmax": most}
    return {"cmap": one_sign}


def _wrapped(title: str, axes: Axes) -> str:
    """Break a title of 10 points into lines that are no wider than its figure."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    lines = tidy(title).split("\n")
    return "\n".join(
        textwrap.fill(line, int(11.5 * figure.get_figwidth()), break_on_hyphens=False)
        for line in lines
    )


def chart_on(axes: Axes, chart: Chart) -> None:
    """Draw a chart on axes: its series, then lines across, then scales and captions."""
    has_bars = any(series.kind == "bars" for series in chart.series)
    for series in chart.series:
        if series.kind == "bars":
            _bars_on(axes, series)
        else:
            _points_on(axes, series)
    if has_bars:
        axes.invert_yaxis()  # the first bar on top
        axes.axvline(0, color="black", lw=0.8)
    else:
        axes.grid(axis="y", color="0.92", lw=0.8)

    # Levels are values of y: of bars, which lie, these are on the horizontal axis.
    level_line = axes.axvline if has_bars else axes.axhline
    x_level_line = axes.axhline if has_bars else axes.axvline
    dashes = itertools.cycle(("--", ":", "-."))  # goes on, so that no two lines look alike
    _lines_across(level_line, chart.levels, dashes)
    _lines_across(x_level_line, chart.x_levels, dashes)
    if has_bars and chart.levels:
        axes.legend(fontsize=7, frameon=False)

    if chart.x_names:
        _name_ticks(axes, chart.x_names)
    _set_scales(axes, chart)
    plain_axes(axes, chart.x, chart.y, chart.title, title_size=10 if chart.file else 9)


def _number(value: Estimate | float | None) -> float | None:
    """Return the value of an estimate, or the number itself."""
    return value.value if isinstance(value, Estimate) else value


def _bars_on(axes: Axes, series: Series) -> None:
    """Draw a bar for each value (of no length if it is unknown), with its interval at its end."""
    lengths = [_number(value) or 0.0 for value in series.y]
    axes.barh(range(len(lengths)), lengths, color=series.colour)
    axes.set_yticks(range(len(lengths)), list(series.x), fontsize=7)
    for i, value in enumerate(series.y):
        if isinstance(value, Estimate) and value.interval is not None:
            axes.hlines(i, *value.interval, color="black", lw=0.8)


def _points_on(axes: Axes, series: Series) -> None:
    """Draw a line or points, their band or intervals; unknown values are left out."""
    known = [i for i, value in enumerate(series.y) if _number(value) is not None]
    x = [series.x[i] for i in known]
    y = np.array([_number(series.y[i]) for i in known], dtype=float)
    if series.band:
        low, high = np.array([series.band[i] for i in known]).T
        axes.fill_between(x, low, high, color=series.colour, alpha=0.15, lw=0)
    if series.groups:
        groups = [series.groups[i] for i in known]
        last_group = max(series.groups)
        # Coloured as by the colour bar of :func:`_panels_figure`
        axes.scatter(x, y, c=groups, cmap="viridis", s=16, vmin=-0.5, vmax=last_group + 0.5)
        return
    axes.plot(
        x,
        y,
        ls=series.dash if series.kind == "line" else "none",
        lw=series.width,
        marker=series.marker,
        ms=5,
        color=series.colour,
        label=series.name,
    )
    for i in known:
        estimate = series.y[i]
        if isinstance(estimate, Estimate) and estimate.interval is not None:
            axes.vlines(series.x[i], *estimate.interval, color=series.colour, lw=1)


def _lines_across(
    draw_line: Callable[..., Any], levels: Mapping[str, float] | None, dashes: Iterator[str]
) -> None:
    """Draw a named line at each level, with the next of the dashes."""
    for name, level in (levels or {}).items():
        draw_line(level, color="0.3", lw=1, ls=next(dashes), label=name)


def _name_ticks(axes: Axes, names: Sequence[str]) -> None:
    """Write names at x = 0, 1, 2 ..., aslant if they are long."""
    axes.set_xticks(range(len(names)), names)
    if max(map(len, names)) > 6:
        axes.set_xticks(axes.get_xticks(), names, rotation=60, ha="right")
    axes.set_xlim(-0.5, len(names) - 0.5)


def _set_scales(axes: Axes, chart: Chart) -> None:
    """Set logarithmic axes, or write x in per cent."""
    if chart.x_scale == "log":
        axes.set_xscale("log", base=2)
    elif chart.x_scale == "log10":
        axes.set_xscale("log", base=10)
    elif chart.x_scale == "percent":
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    if chart.y_scale == "log10":
        axes.set_yscale("log")


def _matrix_on(axes: Axes, matrix: Matrix) -> None:
    """Shade a matrix of tokens by tokens; with few tokens, write its numbers, too."""
    # matplotlib would take a $ for the begin of a formula.
    names = [name[:14].replace("$", r"\$") for name in matrix.columns[:_TOKENS]]
    n_tokens = len(names)
    rows = [row[:n_tokens] for row in matrix.values[:n_tokens]]
    values = np.array(rows, dtype=float)  # None becomes NaN
    weights: dict[str, Any] = {"cmap": "Blues", "vmin": 0.0, "vmax": 1.0}
    image = axes.imshow(values, **(weights if matrix.weights else _colours_of(values, "Blues")))
    axes.set_xticks(range(n_tokens), names, fontsize=7, rotation=60, ha="right")
    axes.set_yticks(range(n_tokens), names, fontsize=7)
    axes.set_title(f"{matrix.title} (queries down)", fontsize=9)
    if n_tokens > _NUMBERED:
        return
    for (i, j), value in np.ndenumerate(values):
        number = matrix_cell(value, matrix.weights)
        if np.isfinite(value) and number != ".":
            cell_text(axes, i, j, number, colour=image.to_rgba(value), size=6)
    for text in axes.texts:
        text.set_in_layout(False)  # measuring hundreds of them takes seconds


class NotebookFigure(Figure):
    """A figure that Jupyter shows, with or without pyplot."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=100)
        return content.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """Start a figure of this many inches."""
    figure = NotebookFigure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


#: For each kind of file: matplotlib's module (imported when it is used), its class of canvas, and
#: options that leave the date out.
_CANVASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "png": ("backend_agg", "FigureCanvasAgg", {}),
    "svg": ("backend_svg", "FigureCanvasSVG", {"metadata": {"Date": None}}),
    "pdf": ("backend_pdf", "FigureCanvasPdf", {"metadata": {"CreationDate": None}}),
}
#: Settings for the same bytes every time (fixed ids), and for text that stays text: the files are a
#: third of the size and can be searched.
_PLAIN = {"svg.hashsalt": "headscope", "svg.fonttype": "none", "pdf.fonttype": 42}


def figure_files(figures: Mapping[str, Figure]) -> dict[str, bytes]:
    """Return the content of each figure's files, by default ``NAME.png`` and ``NAME.svg``.

    The same figure gives the same bytes.
    """
    files: dict[str, bytes] = {}
    for name, figure in figures.items():
        layout = figure.get_layout_engine()
        if layout is not None:
            layout.execute(figure)
        figure.set_layout_engine("none")  # the layout is computed once, for all files
        for kind in formats_to_draw():
            files[f"{name}.{kind}"] = _drawn(figure, kind)
    return files


def _drawn(figure: Figure, kind: str) -> bytes:
    """Return the content of a file of this kind.

    It is drawn by the canvas, since ``savefig`` would compute the layout again for each file.
    """
    module, canvas_name, options = _CANVASES[kind]
    canvas = getattr(importlib.import_module(f"matplotlib.backends.{module}"), canvas_name)
    content = io.BytesIO()
    with mpl.rc_context(rc=_PLAIN):  # type: ignore[arg-type]  # keys are literals there
        getattr(canvas(figure), f"print_{kind}")(content, **options)
    return content.getvalue()


def plain_axes(
    axes: Axes, x: str = "", y: str = "", title: str = "", *, title_size: float = 10
) -> None:
    """Give axes their captions in small letters, and no frame above and on the right."""
    axes.set_xlabel(tidy(x), fontsize=8)
    axes.set_ylabel(tidy(y), fontsize=8)
    figure = axes.get_figure(root=True)
    is_alone = figure is not None and len(figure.axes) == 1
    axes.set_title(_wrapped(title, axes) if is_alone else tidy(title), fontsize=title_size)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def legend_beside(
    figure: Figure,
    location: Literal["outside lower center", "outside right center"],
    columns: int = 1,
    **options: Any,
) -> None:
    """Put one legend outside all panels, by default that of the first panel."""
    options.setdefault("handles", figure.axes[0].get_legend_handles_labels()[0])
    figure.legend(loc=location, ncols=columns, fontsize=7, frameon=False, **options)


def label_grid(axes: Axes, n_layers: int, n_heads: int, names: Sequence[str] | None = None) -> None:
    """Turn axes into a grid of layers x heads, one cell a head; ``names`` are the layers'."""
    names = names or [f"L{i}" for i in range(n_layers)]
    axes.set_xlabel("head", fontsize=8)
    axes.set_ylabel("layer", fontsize=8)
    axes.set_xticks(range(n_heads), [f"H{i}" for i in range(n_heads)], fontsize=7)
    axes.set_yticks(range(n_layers), names, fontsize=7)
    axes.set_xticks(np.arange(-0.5, n_heads), minor=True)
    axes.set_yticks(np.arange(-0.5, n_layers), minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="both", length=0)


def small_colour_bar(figure: Any, image: Any, axes: Any, legend: str, fraction: float) -> Axes:
    """Put a colour bar beside axes, taking this fraction of their width; return the bar's axes."""
    bar: Colorbar = figure.colorbar(image, ax=axes, fraction=fraction, pad=0.02)
    bar.set_label(tidy(legend), fontsize=7)
    bar.ax.tick_params(labelsize=7)
    return bar.ax


def ink(background: Any) -> str:
    """Return the colour to write in on a background (RGB, 0 to 1): black or white (WCAG 2)."""
    red, green, blue = map(_linear, background)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "black" if luminance > 0.179 else "white"


def _linear(channel: float) -> float:
    """Turn a channel of sRGB, 0 to 1, into light."""
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def cell_text(axes: Axes, row: int, column: int, text: str, colour: Any, size: float) -> None:
    """Write into the middle of a cell of a grid, which has this colour (RGB or RGBA, 0 to 1)."""
    red_green_blue = np.asarray(colour, dtype=float)[:3]
    axes.text(
        column,
        row,
        text,
        ha="center",
        va="center",
        fontsize=size,
        color=ink(red_green_blue),
    )
