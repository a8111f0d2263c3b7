"""What all figures share; made without pyplot, and no setting of matplotlib is left changed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["figure_files", "heat_map", "label_grid", "model_name", "new_figure"]


def new_figure(width: float, height: float) -> Figure:
    """Start a figure of this many inches."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def figure_files(figures: Mapping[str, Figure]) -> dict[str, bytes]:
    """Draw each figure as ``NAME.png`` and ``NAME.svg``; the same figure gives the same bytes."""
    files: dict[str, bytes] = {}
    for name, figure in figures.items():
        for kind in ("png", "svg"):
            buffer = io.BytesIO()
            date = {"Date": None} if kind == "svg" else None
            with mpl.rc_context({"svg.hashsalt": "headscope"}):  # fixed ids in SVG files
                figure.savefig(buffer, format=kind, metadata=date)
            files[f"{name}.{kind}"] = buffer.getvalue()
    return files


def model_name(result: Any) -> str:
    """Return the last part of the model's path or id."""
    return str(result.provenance["model"]["id"]).rstrip("/").rpartition("/")[2]


def label_grid(axes: Axes, n_layers: int, n_heads: int) -> None:
    """Turn axes into a grid of layers x heads, one cell a head."""
    axes.set_xticks(range(n_heads), [f"H{i}" for i in range(n_heads)], fontsize=7)
    axes.set_yticks(range(n_layers), [f"L{i}" for i in range(n_layers)], fontsize=7)
    axes.set_xticks(np.arange(-0.5, n_heads), minor=True)
    axes.set_yticks(np.arange(-0.5, n_layers), minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="both", length=0)


def heat_map(
    values: Sequence[Sequence[float | None]],
    *,
    title: str,
    legend: str,
    limits: tuple[float, float] | None = None,
    digits: int = 2,
) -> Figure:
    """Draw layers x heads, each cell with its number; a value of None (no such head) stays empty.

    Parameters
    ----------
    values : (n_layers, n_heads)
    title, legend : str
        Above the map, and beside its colour bar.
    limits : (float, float), optional
        Ends of the colour scale; the extremes of the values by default.
    digits : int
        After the decimal point.
    """
    grid = np.array([[np.nan if v is None else v for v in row] for row in values], dtype=float)
    n_layers, n_heads = grid.shape
    figure = new_figure(max(5.0, 1.8 + 0.55 * n_heads), 1.2 + 0.5 * n_layers)
    axes = figure.add_subplot()
    low, high = limits or (float(np.nanmin(grid)), float(np.nanmax(grid)))
    image = axes.imshow(grid, aspect="auto", cmap="viridis", vmin=low, vmax=high)
    label_grid(axes, n_layers, n_heads)
    for (layer, head), value in np.ndenumerate(grid):
        if np.isfinite(value):
            dark = value < (low + high) / 2
            axes.text(
                head,
                layer,
                f"{value:.{digits}f}",
                ha="center",
                va="center",
                fontsize=6.5,
                color="white" if dark else "black",
            )
    bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02)
    bar.set_label(legend, fontsize=7)
    bar.ax.tick_params(labelsize=7)
    axes.set_title(title, fontsize=10)
    return figure
