"""Blocks as figures of matplotlib, one for each file name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from headscope.show import drawing as draw
from headscope.show.blocks import Block, Chart, Drawing, HeadMap, Matrix, Panels, Series
from headscope.show.cells import head_rows
from headscope.show.terminal import matrix_cell
from headscope.stats.estimate import Estimate

#: Tokens of a matrix that are shown, and up to how many each cell has its number.
_TOKENS, _NUMBERED = 24, 16


def figures_of(blocks: Iterable[Block]) -> Iterator[tuple[str, Figure]]:
    """Draw every block that has a file's name."""
    for block in blocks:
        if isinstance(block, Drawing):
            yield block.file, block.draw()
        elif isinstance(block, Chart | HeadMap | Panels) and block.file:
            yield block.file, _figure(block)


def _figure(block: Chart | HeadMap | Panels) -> Figure:
    if isinstance(block, HeadMap):
        rows = head_rows(block.values)
        grid = np.array([values for _, values in rows], dtype=float)  # None becomes NaN
        n_layers, n_heads = grid.shape
        figure = draw.new_figure(max(5.0, 1.8 + 0.55 * n_heads), 1.2 + 0.5 * n_layers)
        axes = figure.add_subplot()
        low, high = float(np.nanmin(grid)), float(np.nanmax(grid))
        image = axes.imshow(grid, aspect="auto", cmap="viridis", vmin=low, vmax=high)
        draw.label_grid(axes, n_layers, n_heads, [layer for layer, _ in rows])
        for (layer, head), value in np.ndenumerate(grid):
            if np.isfinite(value):
                colour = "white" if value < (low + high) / 2 else "black"
                draw.cell_text(axes, layer, head, f"{value:.{block.digits}f}", colour, 6.5)
        draw.small_colour_bar(figure, image, axes, block.legend, 0.03)
        axes.set_title(block.title, fontsize=10)
        return figure
    if isinstance(block, Panels):
        figure = draw.new_figure(*block.size)
        ys = {panel.y if isinstance(panel, Chart) else None for panel in block.panels} - {""}
        grid = figure.subplots(
            *(-(-len(block.panels) // block.across), block.across),
            sharey=len(ys) == 1 and None not in ys,
        )
        for axes, panel in zip(np.ravel(grid), block.panels, strict=True):
            chart_on(axes, panel) if isinstance(panel, Chart) else _matrix(axes, panel)
        caption, names = block.groups
        if names:
            shades = ScalarMappable(BoundaryNorm(np.arange(-0.5, len(names)), 256), "viridis")
            draw.small_colour_bar(figure, shades, grid, caption, 0.03).set_yticks(
                range(len(names)), names
            )
        else:
            handles, labels = [], []
            for axes in figure.axes:
                for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                    if label not in labels:
                        handles.append(handle)
                        labels.append(label)
            if len(labels) > 1:
                draw.legend_beside(figure, "outside lower center", 3, handles=handles)
        figure.suptitle(block.title, fontsize=11)
        return figure
    figure = draw.new_figure(*block.size)
    chart_on(figure.add_subplot(), block)
    if len(block.series) > 1:
        draw.legend_beside(figure, "outside lower center", 2, handlelength=3.5)
    return figure


def chart_on(axes: Axes, chart: Chart) -> None:
    """Draw a chart on axes."""
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
        for i, (name, level) in enumerate((lines or {}).items()):
            across(level, color="0.3", lw=1, ls=("--", ":", "-.")[i % 3], label=name)
    if bars and chart.levels:
        axes.legend(fontsize=7, frameon=False)
    if chart.x_scale == "doubling":
        axes.set_xscale("log", base=2)
        ticks = sorted({x for series in chart.series for x in series.x})
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.minorticks_off()
    if chart.x_names:
        axes.set_xticks(range(len(chart.x_names)), chart.x_names)
        if max(map(len, chart.x_names)) > 6:
            axes.set_xticks(axes.get_xticks(), chart.x_names, rotation=60, ha="right")
        axes.set_xlim(-0.5, len(chart.x_names) - 0.5)
    if chart.x_scale == "log":
        axes.set_xscale("log", base=2)
    if chart.x_scale == "percent":
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    if chart.y_scale == "log":
        axes.set_yscale("log")
    if chart.y_scale == "small":
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_ylim(bottom=-0.02)
        ticks = [y for y in (0, 0.25, 0.5, 1, 2, 4, 8, 16, 32) if y < axes.get_ylim()[1]]
        axes.set_yticks(ticks, [f"{y:g}" for y in ticks])
    draw.plain_axes(axes, chart.x, chart.y, chart.title, title_size=10 if chart.file else 9)


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
        lw=series.width,
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
            draw.cell_text(axes, i, j, text, colour, 6)
    for written in axes.texts:
        written.set_in_layout(False)  # measuring hundreds of them takes seconds
