"""What all figures share; made without pyplot, and no setting of matplotlib is left changed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.scale import LinearScale, LogScale, ScaleBase, SymmetricalLogScale
from matplotlib.text import Text as MplText

from headscope.show.blocks import BLUE, GREY, VERMILION
from headscope.show.cells import model_name
from headscope.show.style import WIDTHS, FigureStyle, figure_style

__all__ = ["BLUE", "GREY", "VERMILION", "model_name"]  # for those who draw with this module

Array = np.ndarray


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
            with mpl.rc_context(rc=plain):  # type: ignore[arg-type]  # keys are literals there
                files[f"{name}.{kind}"] = _printed(figure, kind)
    return files


def _printed(figure: Figure, kind: str) -> bytes:
    """Print a figure by its canvas: ``savefig`` would place everything once more for each file."""
    drawn = io.BytesIO()
    if kind == "png":
        FigureCanvasAgg(figure).print_png(drawn)  # type: ignore[no-untyped-call]
    elif kind == "svg":
        FigureCanvasSVG(figure).print_svg(drawn, metadata={"Date": None})  # type: ignore[no-untyped-call]
    else:
        FigureCanvasPdf(figure).print_pdf(drawn, metadata={"CreationDate": None})  # type: ignore[no-untyped-call]
    return drawn.getvalue()


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
    """Return how far up values lie, from 0 to 1, on an axis that just spans ``shown``."""
    ends = scale.get_transform().transform(np.array([shown.min(), shown.max()]))
    place = scale.get_transform().transform(values) - ends[0]
    return np.asarray(place / ((ends[1] - ends[0]) or 1.0))


def swarm(heights: Array) -> Array:
    """Move dots sideways, no further than needed, until none of a column lies on another.

    Parameters
    ----------
    heights : array, (n,)
        Where they are, in diameters.
    """
    shifts = np.zeros(len(heights))
    placed: list[int] = []
    for i in np.argsort(heights, kind="stable").tolist():
        for step in range(4 * len(heights)):
            shifts[i] = (step + 1) // 2 * 0.5 * (-1) ** step
            if all(np.hypot(shifts[i] - shifts[j], heights[i] - heights[j]) >= 1 for j in placed):
                break
        placed.append(i)
    return shifts


def cell_text(axes: Axes, layer: int, head: int, text: str, colour: str, size: float) -> None:
    """Write into the middle of a head's cell."""
    axes.text(head, layer, text, ha="center", va="center", fontsize=size, color=colour)
