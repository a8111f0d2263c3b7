"""Figures of blocks, and what all figures share; made without pyplot or changed settings."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.scale import LinearScale, LogScale, ScaleBase, SymmetricalLogScale

from headscope.show.blocks import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Block,
    Chart,
    Custom,
    HeadMap,
    Matrix,
    Panels,
    Series,
)
from headscope.show.cells import model_name
from headscope.show.terminal import matrix_cell
from headscope.stats.estimate import Estimate

# What figures of an analysis need besides the functions of this module.
__all__ = ["BLACK", "BLUE", "GREEN", "GREY", "ORANGE", "PURPLE", "SKY", "VERMILION", "model_name"]

Values = Sequence[Sequence[float | None]]
Array = np.ndarray


def new_figure(width: float, height: float) -> Figure:
    """Start a figure of this many inches."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def figure_files(figures: Mapping[str, Figure]) -> dict[str, bytes]:
    """Draw each figure as ``NAME.png`` and ``NAME.svg``; the same figure gives the same bytes."""
    files: dict[str, bytes] = {}
    for name, figure in figures.items():
        if (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
        figure.set_layout_engine("none")  # placed once, for both files
        png, svg = io.BytesIO(), io.BytesIO()
        FigureCanvasAgg(figure).print_png(png)  # type: ignore[no-untyped-call]
        # Fixed ids; text that stays text is a third of the size, and can be searched.
        with mpl.rc_context({"svg.hashsalt": "headscope", "svg.fonttype": "none"}):
            FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None})  # type: ignore[no-untyped-call]
        files |= {f"{name}.png": png.getvalue(), f"{name}.svg": svg.getvalue()}
    return files


def plain_axes(
    axes: Axes, x: str = "", y: str = "", title: str = "", *, title_size: float = 10
) -> None:
    """Give axes their captions in small letters, and no frame above and on the right."""
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.set_title(title, fontsize=title_size)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def legend_beside(
    figure: Figure,
    place: Literal["outside lower center", "outside right center"],
    columns: int = 1,
    **options: Any,
) -> None:
    """Put one legend outside all panels: by default that of the first one."""
    options.setdefault("handles", figure.axes[0].get_legend_handles_labels()[0])
    figure.legend(loc=place, ncols=columns, fontsize=7, frameon=False, **options)


def note(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **options: Any
) -> None:
    """Write beside a point, ``offset`` points away from it."""
    options = {"fontsize": 7, **options}
    axes.annotate(text, at, xytext=offset, textcoords="offset points", **options)


def label_grid(axes: Axes, n_layers: int, n_heads: int, names: Sequence[str] | None = None) -> None:
    """Turn axes into a grid of layers x heads, one cell a head; ``names`` are the layers'."""
    names = names or [f"L{i}" for i in range(n_layers)]
    axes.set_xticks(range(n_heads), [f"H{i}" for i in range(n_heads)], fontsize=7)
    axes.set_yticks(range(n_layers), names, fontsize=7)
    axes.set_xticks(np.arange(-0.5, n_heads), minor=True)
    axes.set_yticks(np.arange(-0.5, n_layers), minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="both", length=0)


def small_colour_bar(figure: Figure, image: Any, axes: Any, legend: str, fraction: float) -> Axes:
    """Put a colour bar beside axes, and return its own."""
    bar = figure.colorbar(image, ax=axes, fraction=fraction, pad=0.02)
    bar.set_label(legend, fontsize=7)
    bar.ax.tick_params(labelsize=7)
    return bar.ax


def signed_scale(values: Array) -> ScaleBase:
    """Choose an axis on which every value keeps its place, zero and negative ones too.

    Logarithmic where all are above zero, linear where they lie on both sides of it; of zeros and
    values above them linear up to the first decile, and logarithmic from there.
    """
    if values.min() > 0:
        return LogScale(None)
    size = np.abs(values[values != 0])
    least = float(np.quantile(size, 0.1)) if len(size) else 0.0
    if not least or values.min() < -least:
        return LinearScale(None)
    return SymmetricalLogScale(None, linthresh=least, linscale=0.5)


def fractions(scale: ScaleBase, values: Array, shown: Array) -> Array:
    """Say how far up an axis values are that shows all of ``shown``: from 0 to 1."""
    ends = scale.get_transform().transform(np.array([shown.min(), shown.max()]))
    place = scale.get_transform().transform(values) - ends[0]
    return np.asarray(place / ((ends[1] - ends[0]) or 1.0))


def swarm(heights: Array) -> Array:
    """Move dots at heights in diameters, (n,), sideways until none of a column lies on another."""
    shifts = np.zeros(len(heights))
    placed: list[int] = []
    for i in np.argsort(heights, kind="stable").tolist():
        for step in range(4 * len(heights)):
            shifts[i] = (step + 1) // 2 * 0.5 * (-1) ** step
            if all(np.hypot(shifts[i] - shifts[j], heights[i] - heights[j]) >= 1 for j in placed):
                break
        placed.append(i)
    return shifts


def head_grid(cells: Mapping[tuple[int, int], float | None], n_layers: int | None = None) -> Values:
    """Arrange values of (layer, head) as rows of layers, None where there is no such head.

    Without ``n_layers`` the last row is the last layer with a head.
    """
    n_layers = n_layers or max(layer for layer, _ in cells) + 1
    n_heads = max((head for _, head in cells), default=0) + 1
    return [[cells.get((layer, head)) for head in range(n_heads)] for layer in range(n_layers)]


def heat_map(
    values: Values,
    *,
    title: str,
    legend: str,
    limits: tuple[float, float] | None = None,
    digits: int = 2,
    names: Sequence[str] | None = None,
) -> Figure:
    """Draw what :func:`head_grid` arranged, each cell with its number; None stays empty.

    ``limits`` are the ends of the colour scale, by default the extremes of the values; ``names``
    are those of the rows, by default L0, L1, ...
    """
    grid = np.array(values, dtype=float)  # None becomes NaN
    n_layers, n_heads = grid.shape
    figure = new_figure(max(5.0, 1.8 + 0.55 * n_heads), 1.2 + 0.5 * n_layers)
    axes = figure.add_subplot()
    low, high = limits or (float(np.nanmin(grid)), float(np.nanmax(grid)))
    image = axes.imshow(grid, aspect="auto", cmap="viridis", vmin=low, vmax=high)
    label_grid(axes, n_layers, n_heads, names)
    for (layer, head), value in np.ndenumerate(grid):
        if np.isfinite(value):
            colour = "white" if value < (low + high) / 2 else "black"
            cell_text(axes, layer, head, f"{value:.{digits}f}", colour, 6.5)
    small_colour_bar(figure, image, axes, legend, 0.03)
    axes.set_title(title, fontsize=10)
    return figure


def cell_text(axes: Axes, layer: int, head: int, text: str, colour: str, size: float) -> None:
    """Write into the middle of a head's cell."""
    axes.text(head, layer, text, ha="center", va="center", fontsize=size, color=colour)


#: Tokens of a matrix that are shown, and up to how many each cell has its number.
_TOKENS, _NUMBERED = 24, 16


def figures_of(blocks: Iterable[Block]) -> dict[str, Figure]:
    """Draw every block that has a file's name, by that name."""
    drawn = (b for b in blocks if isinstance(b, Chart | HeadMap | Panels | Custom) and b.file)
    return {block.file: _figure(block) for block in drawn}


def _figure(block: Chart | HeadMap | Panels | Custom) -> Figure:
    if isinstance(block, HeadMap):
        layers = list(dict.fromkeys(layer for layer, _ in block.values))
        cells = {(layers.index(name), head): v for (name, head), v in block.values.items()}
        return heat_map(
            head_grid(cells, len(layers)),
            title=block.title,
            legend=block.legend,
            digits=block.digits,
            names=layers,
        )
    if isinstance(block, Panels):
        figure = new_figure(*block.size)
        charts = all(isinstance(panel, Chart) for panel in block.panels)
        grid = figure.subplots(-(-len(block.panels) // block.across), block.across, sharey=charts)
        for axes, panel in zip(np.ravel(grid), block.panels, strict=True):
            _chart(axes, panel) if isinstance(panel, Chart) else _matrix(axes, panel)
        caption, names = block.groups
        if names:
            shades = ScalarMappable(BoundaryNorm(np.arange(-0.5, len(names)), 256), "viridis")
            small_colour_bar(figure, shades, grid, caption, 0.03).set_yticks(
                range(len(names)), names
            )
        figure.suptitle(block.title, fontsize=11)
        return figure
    figure = new_figure(*(block.size if isinstance(block, Chart) else (6.6, 4.2)))
    axes = figure.add_subplot()
    if isinstance(block, Custom):
        assert block.figure is not None
        block.figure(axes)
        return figure
    _chart(axes, block)
    if len(block.series) > 1:
        legend_beside(figure, "outside lower center", 2)
    return figure


def _chart(axes: Axes, chart: Chart) -> None:
    bars = False
    for series in chart.series:
        values = [v.value if isinstance(v, Estimate) else v for v in series.y]
        if series.kind == "bars":
            bars = True
            axes.barh(range(len(values)), [v or 0.0 for v in values], color=series.colour)
            axes.set_yticks(range(len(values)), list(series.x), fontsize=7)
        else:
            _points(axes, series, values)
    if bars:
        axes.invert_yaxis()
        axes.axvline(0, color="black", lw=0.8)
    else:
        axes.grid(axis="y", color="0.92", lw=0.8)
    levels = (axes.axvline, axes.axhline) if bars else (axes.axhline, axes.axvline)
    for across, lines in zip(levels, (chart.levels, chart.x_levels), strict=True):
        for name, level in (lines or {}).items():
            across(level, color="0.3", lw=1, ls="--", label=name)
    if bars and chart.levels:
        axes.legend(fontsize=7, frameon=False)
    if chart.x_scale == "doubling":
        axes.set_xscale("log", base=2)
        ticks = sorted({x for series in chart.series for x in series.x})
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.minorticks_off()
    if chart.y_scale == "log":
        axes.set_yscale("log")
    if chart.y_scale == "small":
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_ylim(bottom=-0.02)
        ticks = [y for y in (0, 0.25, 0.5, 1, 2, 4, 8, 16, 32) if y < axes.get_ylim()[1]]
        axes.set_yticks(ticks, [f"{y:g}" for y in ticks])
    plain_axes(axes, chart.x, chart.y, chart.title, title_size=10 if chart.file else 9)


def _points(axes: Axes, series: Series, values: list[float | None]) -> None:
    known = [i for i, value in enumerate(values) if value is not None]
    x, y = [series.x[i] for i in known], np.array([values[i] for i in known], dtype=float)
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
        lw=1.5,
        marker=series.marker,
        ms=5,
        markerfacecolor="none" if series.hollow else series.colour,
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
    low, high = 0.0, 1.0
    if not matrix.weights:
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
    axes.imshow(values, cmap="Blues", vmin=low, vmax=high if high > low else low + 1)
    axes.set_xticks(range(n), names, fontsize=7, rotation=60, ha="right")
    axes.set_yticks(range(n), names, fontsize=7)
    axes.set_title(f"{matrix.title} (queries down)", fontsize=9)
    for (i, j), value in np.ndenumerate(values):
        text = matrix_cell(value, matrix.weights)
        if n <= _NUMBERED and np.isfinite(value) and text != ".":
            colour = "white" if value > (low + high) / 2 else "black"
            cell_text(axes, i, j, text, colour, 6)
    for written in axes.texts:
        written.set_in_layout(False)  # measuring hundreds of them takes seconds
