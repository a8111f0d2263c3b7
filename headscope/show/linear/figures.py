"""Figures of ``linear``: coherence against error, and values read back from N keys."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.results.linear import LinearResult
from headscope.show import drawing as draw
from headscope.show.estimates import ranged
from headscope.show.linear import words

_PANELS = ("coherence", "coherence_centred", "entropy")
_READOUTS = {
    "sum": (draw.GREY, "x"),
    "scaled-sum": (draw.ORANGE, "s"),
    "least-squares": (draw.BLUE, "o"),
    "softmax": (draw.BLACK, "^"),
}


def coherence_scatter(result: LinearResult) -> Figure:
    """Draw every head's error against the coherence of its keys, and against its entropy."""
    figure = draw.new_figure(10.0, 3.8)
    layers = list(dict.fromkeys(head.layer_name for head in result.heads))
    panels = figure.subplots(1, len(_PANELS), sharey=True)
    for axes, name in zip(panels, _PANELS, strict=True):
        image = _scatter(axes, result, name, layers)
    panels[0].set_ylabel("error without softmax, best scale", fontsize=8)
    bar = draw.small_colour_bar(figure, image, panels, "layer", 0.03)
    bar.set_yticks(range(len(layers)), layers)
    figure.suptitle(
        f"Do alike keys make a linear head err? {draw.model_name(result)}, "
        f"{len(result.heads)} heads",
        fontsize=10,
    )
    return figure


def _scatter(axes: Axes, result: LinearResult, name: str, layers: list[str]) -> object:
    numbers = [getattr(head, name).value for head in result.heads]
    x = np.array(numbers, dtype=float)
    errors = [head.error("linear").scaled.value for head in result.heads]
    y = np.array(errors, dtype=float)
    colours = [layers.index(head.layer_name) for head in result.heads]
    most = max(len(layers) - 0.5, 0.5)
    image = axes.scatter(x, y, c=colours, cmap="viridis", s=16, vmin=-0.5, vmax=most)
    axes.axhline(1.0, color="0.6", lw=0.8, ls="--")
    row = next(row for row in result.correlations if row.number == name)
    title = f"Spearman within layers {ranged(row.spearman, 2)}"
    draw.plain_axes(axes, words.NUMBERS[name], title=title, title_size=8)
    if name != "entropy":
        axes.axvline(result.random_coherence, color="0.6", lw=0.8, ls=":")
    return image


def memory_curves(result: LinearResult) -> Figure:
    """Draw the error of reading values back against the number of keys, per readout.

    Points are measured on random keys, lines their closed forms; hollow points are own keys.
    """
    figure = draw.new_figure(6.6, 4.2)
    axes = figure.add_subplot()
    for readout, (colour, marker) in _READOUTS.items():
        rows = [row for row in result.memory if row.readout == readout]
        random = [row for row in rows if row.kind == "random"]
        own = [row for row in rows if row.kind == "own"]
        x = [row.keys for row in random]
        measured = [row.error.value for row in random]
        label = words.READOUTS[readout]
        axes.plot(x, measured, color=colour, marker=marker, ms=5, ls="", label=label)  # type: ignore[arg-type]
        expected = [row.expected for row in random]
        if all(value is not None for value in expected):
            axes.plot(x, expected, color=colour, lw=1)  # type: ignore[arg-type]
        values = [row.error.value for row in own]
        axes.plot(
            [row.keys for row in own],
            values,  # type: ignore[arg-type]
            color=colour,
            marker=marker,
            ms=6,
            ls=":",
            lw=1,
            markerfacecolor="none",
            label=f"{label}, own keys" if own else "",
        )
    axes.set_xscale("log", base=2)
    numbers = sorted({row.keys for row in result.memory})
    axes.set_xticks(numbers, [str(n) for n in numbers])
    axes.minorticks_off()
    axes.set_yscale("symlog", linthresh=1.0)  # the plain sum errs far more than the others
    axes.set_ylim(bottom=-0.02)
    ticks = [y for y in (0, 0.25, 0.5, 1, 2, 4, 8, 16, 32) if y < axes.get_ylim()[1]]
    axes.set_yticks(ticks, [f"{y:g}" for y in ticks])
    axes.axhline(0.5, color="0.6", lw=0.8, ls="--")
    width = result.memory[0].width if result.memory else 0
    title = f"Values stored under N keys of {width} dimensions, {draw.model_name(result)}"
    draw.plain_axes(axes, "N keys", "0.5 ||v - v^||^2 (0.5: nothing read back)", title)
    draw.legend_beside(figure, "outside lower center", 3)
    return figure
