"""Figures of ``symmetric``: a map of the heads, and heads changed against heads removed."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.results.symmetric import DrawnEffect, SymmetricResult
from headscope.show import drawing as draw
from headscope.show.symmetric import words

_WHOLE = {
    "pairs": (draw.SKY, "D"),
    "noise": (draw.GREEN, "^"),
    "signs": (draw.PURPLE, "P"),
    "even": (draw.GREY, "x"),
}


def symmetric_map(result: SymmetricResult) -> Figure:
    """Draw 1 - cosine of every head alone, in thousandths."""
    layers = list(dict.fromkeys(head.layer_name for head in result.heads))
    cells = {}
    for head in result.heads:
        value = None if head.symmetric is None else head.symmetric.cosine.value
        place = layers.index(head.layer_name), head.head
        cells[place] = None if value is None else 1000 * (1 - value)
    return draw.heat_map(
        draw.head_grid(cells, len(layers)),
        title=f"One head's scores made symmetric, {draw.model_name(result)}",
        legend="1000 x (1 - cosine to the model's own embedding)",
        digits=1,
        names=layers,
    )


def head_curves(result: SymmetricResult) -> Figure:
    """Draw the cosine against the number of heads: made symmetric, and removed.

    Bars are 95% intervals; other changes of all heads stand at the right end.
    """
    figure = draw.new_figure(6.6, 4.2)
    axes = figure.add_subplot()
    _curve(axes, result, "symmetric", draw.VERMILION, "scores symmetric")
    _curve(axes, result, "removed", draw.BLACK, "heads removed")
    n = len(result.heads)
    for name, (colour, marker) in _WHOLE.items():
        _point(axes, n, result.whole[name], colour, marker, words.CHANGES[name])
    draw.plain_axes(
        axes,
        "heads changed, drawn at random",
        "cosine to the model's own embedding",
        f"What symmetric scores cost, {draw.model_name(result)}",
    )
    axes.grid(axis="y", color="0.92", lw=0.8)
    draw.legend_beside(figure, "outside lower center", 2)
    return figure


def _curve(axes: Axes, result: SymmetricResult, name: str, colour: str, label: str) -> None:
    found = [(chosen.heads, getattr(chosen, name)) for chosen in result.sets]
    found.append((len(result.heads), result.whole[name]))
    values = [drawn.cosine.value for _, drawn in found]
    x = [count for count, _ in found]
    axes.plot([0, *x], [1.0, *values], color=colour, lw=1.5)
    for i, (count, drawn) in enumerate(found):
        _point(axes, count, drawn, colour, "o", label if i == 0 else "")


def _point(axes: Axes, x: int, found: DrawnEffect, colour: str, marker: str, label: str) -> None:
    value, interval = found.cosine.value, found.cosine.interval
    if value is None:
        return
    error = None
    if interval is not None:
        error = [[value - interval[0]], [interval[1] - value]]
    axes.errorbar(
        [x], [value], yerr=error, color=colour, marker=marker, ms=5, lw=1, ls="", label=label
    )
