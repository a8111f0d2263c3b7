"""Figures of matplotlib: blocks drawn, one for each file name, and what all figures share.

Made without pyplot, and no setting of matplotlib is left changed.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.text import Text as MplText
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
from headscope.show.cells import head_rows, model_name, tidy
from headscope.show.style import WIDTHS, FigureStyle, figure_style
from headscope.show.terminal import matrix_cell
from headscope.stats.estimate import Estimate

__all__ = ["BLUE", "GREY", "VERMILION", "model_name"]  # for those who draw with this module

Array = np.ndarray
#: Tokens of a matrix that are shown, and up to how many each cell has its number.
_TOKENS = 24
_NUMBERED = 16


def figures_of(blocks: Iterable[Block]) -> Iterator[tuple[str, Figure]]:
    """Draw every block that has a file's name; nothing where the run writes no figures."""
    for block in blocks if figure_style().formats else ():
        if isinstance(block, Drawing):
            yield block.file, block.draw()
        elif isinstance(block, Chart | HeadMap | Panels) and block.file:
            yield block.file, _figure(block)


def _figure(block: Chart | HeadMap | Panels) -> Figure:
    if isinstance(block, HeadMap):
        rows = head_rows(block.values)
        figure = new_figure(max(5.0, 1.8 + 0.55 * len(rows[0][1])), 1.3 + 0.5 * len(rows))
        head_map_on(figure.add_subplot(), block)
        return figure
    if isinstance(block, Panels):
        figure = new_figure(*block.size)
        ys = {panel.y if isinstance(panel, Chart) else None for panel in block.panels} - {""}
        grid = figure.subplots(
            -(-len(block.panels) // block.across),
            block.across,
            sharey=len(ys) == 1 and None not in ys,
        )
        for axes, panel in zip(np.ravel(grid), block.panels, strict=True):
            chart_on(axes, panel) if isinstance(panel, Chart) else _matrix(axes, panel)
        caption, names = block.groups
        if names:
            shades = ScalarMappable(BoundaryNorm(np.arange(-0.5, len(names)), 256), "viridis")
            small_colour_bar(figure, shades, grid, caption, 0.03).set_yticks(
                range(len(names)), names
            )
        else:
            handles = []
            labels = []
            for axes in figure.axes:
                for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                    if label not in labels:
                        handles.append(handle)
                        labels.append(label)
            if len(labels) > 1:
                legend_beside(figure, "outside lower center", 3, handles=handles)
        figure.suptitle(tidy(block.title), fontsize=11)
        return figure
    figure = new_figure(*block.size)
    chart_on(figure.add_subplot(), block)
    if len(block.series) > 1:
        legend_beside(figure, "outside lower center", 2, handlelength=3.5)
    return figure


def head_map_on(axes: Axes, block: HeadMap, *, text: bool = True, legend: bool = True) -> None:
    """Draw a number of every head on axes: in words in its cell, and as a colour beside a bar."""
    rows = head_rows(block.values)
    grid = np.array([values for _, values in rows], dtype=float)  # None becomes NaN
    image = axes.imshow(grid, aspect="auto", cmap="viridis")
    label_grid(axes, len(rows), grid.shape[1], [layer for layer, _ in rows])
    for (layer, head), value in np.ndenumerate(grid if text else grid[:0]):
        if np.isfinite(value):
            cell_text(axes, layer, head, f"{value:.{block.digits}f}", image.to_rgba(value), 6.5)
    if legend:
        small_colour_bar(axes.figure, image, axes, block.legend, 0.03)
    axes.set_title(block.title, fontsize=10)


def chart_on(axes: Axes, chart: Chart) -> None:
    """Draw a chart on axes."""
    bars = False
    for series in chart.series:
        values = [v.value if isinstance(v, Estimate) else v for v in series.y]
        if series.kind == "bars":
            bars = True
            axes.barh(range(len(values)), [v or 0.0 for v in values], color=series.colour)
            axes.set_yticks(range(len(values)), list(series.x), fontsize=7)
            for i, value in enumerate(series.y):
                if isinstance(value, Estimate) and value.interval is not None:
                    axes.hlines(i, *value.interval, color="black", lw=0.8)
        else:
            _points(axes, series, values)
    if bars:
        axes.invert_yaxis()
        axes.axvline(0, color="black", lw=0.8)
    else:
        axes.grid(axis="y", color="0.92", lw=0.8)
    levels = (axes.axvline, axes.axhline) if bars else (axes.axhline, axes.axvline)
    for across, lines in zip(levels, (chart.levels, chart.x_levels), strict=True):
        for i, (name, level) in enumerate((lines or {}).items()):
            across(level, color="0.3", lw=1, ls=("--", ":", "-.")[i % 3], label=name)
    if bars and chart.levels:
        axes.legend(fontsize=7, frameon=False)
    if chart.x_names:
        axes.set_xticks(range(len(chart.x_names)), chart.x_names)
        if max(map(len, chart.x_names)) > 6:
            axes.set_xticks(axes.get_xticks(), chart.x_names, rotation=60, ha="right")
        axes.set_xlim(-0.5, len(chart.x_names) - 0.5)
    if chart.x_scale in ("log", "log10"):
        axes.set_xscale("log", base=2 if chart.x_scale == "log" else 10)
    if chart.x_scale == "percent":
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    if chart.y_scale == "log10":
        axes.set_yscale("log")
    plain_axes(axes, chart.x, chart.y, chart.title, title_size=10 if chart.file else 9)


def _points(axes: Axes, series: Series, values: list[float | None]) -> None:
    known = [i for i, value in enumerate(values) if value is not None]
    x = [series.x[i] for i in known]
    y = np.array([values[i] for i in known], dtype=float)
    if series.band:
        low, high = np.array([series.band[i] for i in known]).T
        axes.fill_between(x, low, high, color=series.colour, alpha=0.15, lw=0)
    if series.groups:
        groups = [series.groups[i] for i in known]
        highest = max(series.groups) + 0.5
        axes.scatter(x, y, c=groups, cmap="viridis", s=16, vmin=-0.5, vmax=highest)
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
        if isinstance(estimate := series.y[i], Estimate) and estimate.interval is not None:
            axes.vlines(series.x[i], *estimate.interval, color=series.colour, lw=1)


def _matrix(axes: Axes, matrix: Matrix) -> None:
    names = [name[:14].replace("$", r"\$") for name in matrix.columns[:_TOKENS]]
    n = len(names)
    values = np.array([row[:n] for row in matrix.values[:n]], dtype=float)  # None becomes NaN
    low = 0.0
    high = 1.0
    if not matrix.weights:
        low = float(np.nanmin(values))
        high = float(np.nanmax(values))
    image = axes.imshow(values, cmap="Blues", vmin=low, vmax=high if high > low else low + 1)
    axes.set_xticks(range(n), names, fontsize=7, rotation=60, ha="right")
    axes.set_yticks(range(n), names, fontsize=7)
    axes.set_title(f"{matrix.title} (queries down)", fontsize=9)
    for (i, j), value in np.ndenumerate(values):
        text = matrix_cell(value, matrix.weights)
        if n <= _NUMBERED and np.isfinite(value) and text != ".":
            cell_text(axes, i, j, text, image.to_rgba(value), 6)
    for written in axes.texts:
        written.set_in_layout(False)  # measuring hundreds of them takes seconds


class NotebookFigure(Figure):
    """A figure that Jupyter shows, with or without pyplot."""

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.savefig(drawn, format="png", dpi=100)
        return drawn.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """Start a figure of this many inches."""
    figure = NotebookFigure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def figure_files(figures: Mapping[str, Figure]) -> dict[str, bytes]:
    """Draw each figure as ``NAME.png`` and ``NAME.svg``, or as the run's style says.

    The same figure gives the same bytes.
    """
    files: dict[str, bytes] = {}
    style = figure_style()
    for name, figure in figures.items():
        if style != FigureStyle():
            for_paper(figure, style)
        if (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
        figure.set_layout_engine("none")  # the layout is computed once, for all files
        for kind in style.formats:
            # Fixed ids; text that stays text is a third of the size, and can be searched.
            plain = {"svg.hashsalt": "headscope", "svg.fonttype": "none", "pdf.fonttype": 42}
            # By its canvas: ``savefig`` would compute the layout again for each file.
            module, name_of, options = _CANVASES[kind]
            canvas = getattr(importlib.import_module(f"matplotlib.backends.{module}"), name_of)
            drawn = io.BytesIO()
            with mpl.rc_context(rc=plain):  # type: ignore[arg-type]  # keys are literals there
                getattr(canvas(figure), f"print_{kind}")(drawn, **options)
            files[f"{name}.{kind}"] = drawn.getvalue()
    return files


#: By the kind of a file: module of matplotlib (pdf's takes a quarter of a second), canvas, options.
_CANVASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "png": ("backend_agg", "FigureCanvasAgg", {}),
    "svg": ("backend_svg", "FigureCanvasSVG", {"metadata": {"Date": None}}),
    "pdf": ("backend_pdf", "FigureCanvasPdf", {"metadata": {"CreationDate": None}}),
}


def for_paper(figure: Figure, style: FigureStyle) -> None:
    """Give a figure its width on paper, type of 8 points or more, and titles only if asked for."""
    if not style.titles:
        figure.suptitle("")
        for axes in figure.axes:
            axes.set_title("")
    if style.width is None:
        return
    width, height = figure.get_size_inches()
    scale = WIDTHS[style.width] / width
    figure.set_size_inches(width * scale, max(height * scale, 2.0))
    for text in figure.findobj(MplText):
        text.set_fontsize(max(8.0, min(text.get_fontsize(), 9.0)))


def plain_axes(
    axes: Axes, x: str = "", y: str = "", title: str = "", *, title_size: float = 10
) -> None:
    """Give axes their captions in small letters, and no frame above and on the right."""
    axes.set_xlabel(tidy(x), fontsize=8)
    axes.set_ylabel(tidy(y), fontsize=8)
    axes.set_title(tidy(title), fontsize=title_size)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def legend_beside(
    figure: Figure,
    location: Literal["outside lower center", "outside right center"],
    columns: int = 1,
    **options: Any,
) -> None:
    """Put one legend outside all panels: by default that of the first one."""
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
    """Put a colour bar beside axes, and return the bar's axes."""
    bar: Colorbar = figure.colorbar(image, ax=axes, fraction=fraction, pad=0.02)
    bar.set_label(tidy(legend), fontsize=7)
    bar.ax.tick_params(labelsize=7)
    return bar.ax


def ink(ground: Any) -> str:
    """Return black or white, whichever has the greater contrast to a colour (WCAG 2)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in ground)
    return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "white"


def cell_text(axes: Axes, layer: int, head: int, text: str, ground: Any, size: float) -> None:
    """Write into the middle of a head's cell, whose colour is ``ground`` (RGB, 0 to 1)."""
    colour = ink(np.asarray(ground, dtype=float)[:3])
    axes.text(head, layer, text, ha="center", va="center", fontsize=size, color=colour)
