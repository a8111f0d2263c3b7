"""The figure of ``explain``: scores, pattern, the other direction, and what every head adds."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.results.explain import ExplainResult, Matrix
from headscope.show import drawing as draw
from headscope.show.explain import words
from headscope.show.explain.grids import score_text, weight_text

#: Tokens that are shown, and up to how many each cell has its number.
_MOST, _NUMBERED = 24, 16


def steps_figure(result: ExplainResult) -> Figure:
    """Draw the explained head's matrices, queries down and keys across, and the heads' shares."""
    steps = {step.key: step for step in result.steps}
    figure = draw.new_figure(11.0, 9.5)
    axes = figure.subplots(2, 2)
    _square(axes[0, 0], result, steps["scores"].matrix("scores"))
    _square(axes[0, 1], result, steps["softmax"].matrix("pattern"))
    _square(axes[1, 0], result, steps["mask"].matrix("other direction"))
    _shares(axes[1, 1], result, steps["mix"].matrix("heads"))
    figure.suptitle(f"{result.name} of {draw.model_name(result)} on one sentence", fontsize=11)
    return figure


def _square(axes: Axes, result: ExplainResult, matrix: Matrix) -> None:
    names = [_literal(name[:14]) for name in words.token_names(result)[:_MOST]]
    n = len(names)
    values = np.array([row[:n] for row in matrix.values[:n]], dtype=float)  # None becomes NaN
    weights = matrix.name != "scores"
    low, high = (0.0, 1.0) if weights else (float(np.nanmin(values)), float(np.nanmax(values)))
    axes.imshow(values, cmap="Blues", vmin=low, vmax=high if high > low else low + 1)
    axes.set_xticks(range(n), names, fontsize=7, rotation=60, ha="right")
    axes.set_yticks(range(n), names, fontsize=7)
    axes.set_title(f"{words.matrix_title(result, matrix)} (queries down)", fontsize=9)
    for (i, j), value in np.ndenumerate(values):
        if n <= _NUMBERED and np.isfinite(value):
            text = weight_text(value) if weights else score_text(value)
            colour = "white" if value > (low + high) / 2 else "black"
            if text != ".":
                draw.cell_text(axes, i, j, text, colour, 6)
    for text_inside in axes.texts:
        text_inside.set_in_layout(False)  # measuring hundreds of them takes seconds


def _literal(name: str) -> str:
    """Keep matplotlib from reading a token as mathematics."""
    return name.replace("$", r"\$")


def _shares(axes: Axes, result: ExplainResult, table: Matrix) -> None:
    shares = [row[0] or 0.0 for row in table.values]
    places = range(len(shares))
    colours = [draw.ORANGE if name == result.name else draw.SKY for name in table.rows]
    axes.barh(places, [100 * share for share in shares], color=colours)
    axes.set_yticks(places, table.rows, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(100 / result.n_heads, color="0.3", lw=1, ls="--", label="even shares")
    axes.axvline(0, color="black", lw=0.8)
    title = "what each head adds"
    draw.plain_axes(axes, "share of the layer's attention output, %", title=title, title_size=9)
    axes.legend(fontsize=7, frameon=False)
