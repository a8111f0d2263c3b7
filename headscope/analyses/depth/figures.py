"""Figures of ``depth``: the residual by layer, and what each part protects."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headscope.analyses.depth.result import Curve, DepthCurves, DepthResult
from headscope.analyses.depth.view import PART_NAMES, VARIANTS, WAYS
from headscope.show import drawing as draw

_COLOURS = {
    "full": draw.BLACK,
    "full-without-layernorm": draw.PURPLE,
    "attention+skip": draw.BLUE,
    "attention+ffn": draw.ORANGE,
    "attention": draw.VERMILION,
}
_PART_COLOURS = {"skip": draw.BLUE, "ffn": draw.ORANGE, "layernorm": draw.PURPLE}


def ratio_curves(result: DepthResult, *, log: bool = False) -> Figure:
    """Ratio by layer, one line a variant with a band of one standard deviation; control dashed.

    On a logarithmic axis the fall of attention alone can be followed down to the precision of the
    arithmetic; what lies in the grey zone is rounding.
    """
    figure = draw.new_figure(7.0, 4.6)
    axes = figure.add_subplot()
    for name, colour in _COLOURS.items():
        _curve(axes, result, name, colour)
        if result.control is not None:
            points = np.arange(len(result.control.variants[name]))
            axes.plot(points, _array(result.control.variants[name]), color=colour, lw=1, ls="--")
    if log:
        axes.set_yscale("log")
        _shade_rounding(axes, result)
    else:
        axes.set_ylim(bottom=0)
    n_layers = len(result.variants["full"]) - 1
    axes.set_xticks(range(n_layers + 1), ["embed.", *(f"L{i}" for i in range(n_layers))])
    title = f"What is left of the tokens' differences, {draw.model_name(result)}"
    draw.plain_axes(axes, "after layer", title=title)
    axes.set_ylabel("||res(H)|| / ||H||", fontsize=9)
    axes.grid(axis="y", color="0.92", lw=0.8)
    draw.legend_beside(figure, "outside lower center", 3, handles=_legend(result))
    return figure


def _curve(axes: Axes, result: DepthResult, name: str, colour: str) -> None:
    mean, std = _array(result.variants[name]), np.nan_to_num(_array(result.std[name]))
    points = np.arange(len(mean))
    axes.plot(points, mean, color=colour, lw=1.8, marker="o", ms=3)
    # Where one standard deviation reaches below zero only the upper half has a place on a log axis.
    low = np.where(std < mean, mean - std, mean)
    axes.fill_between(points, low, mean + std, color=colour, alpha=0.18, lw=0)


def _shade_rounding(axes: Axes, result: DepthResult) -> None:
    lowest = min(v for v in _every_value(result) if v > 0)
    bottom = min(lowest / 3, result.floor / 3)
    axes.set_ylim(bottom=bottom)
    axes.axhspan(bottom, result.floor, color="0.88", lw=0, zorder=0)
    text, across = f" rounding of {result.provenance['dtype']}", axes.get_yaxis_transform()
    axes.text(0.01, result.floor, text, fontsize=7, color="0.35", va="top", transform=across)


def _every_value(result: DepthResult) -> list[float]:
    curves: list[DepthCurves] = [result, *([result.control] if result.control else [])]
    return [v for c in curves for curve in c.variants.values() for v in curve if v is not None]


def _legend(result: DepthResult) -> list[Line2D]:
    handles = [
        Line2D([], [], color=colour, marker="o", ms=3, label=VARIANTS[name])
        for name, colour in _COLOURS.items()
    ]
    if result.control is not None:
        handles.append(Line2D([], [], color="0.4", lw=1, ls="--", label="random weights"))
    return handles


def protection_bars(result: DepthResult) -> Figure:
    """Share of the full model's residual that each part protects, by layer, 95% intervals.

    Above, what is lost when the part is taken out of the full model; below, what is gained when it
    is put beside attention alone. A dash is the control.
    """
    n_layers = len(result.variants["full"]) - 1
    figure = draw.new_figure(max(6.0, 1.5 + 0.6 * n_layers), 5.4)
    for axes, way in zip(figure.subplots(2, 1, sharex=True), WAYS, strict=True):
        for i, part in enumerate(_PART_COLOURS):
            _bars(axes, result, way, part, np.arange(1, n_layers + 1) + 0.27 * (i - 1))
        axes.axhline(0, color="black", lw=0.8)
        draw.plain_axes(axes, y="share of the full\nmodel's residual")
        axes.set_title(WAYS[way], fontsize=8, loc="left")
        axes.grid(axis="y", color="0.92", lw=0.8)
        axes.set_axisbelow(True)
    axes.set_xticks(range(1, n_layers + 1), [f"L{i}" for i in range(n_layers)])
    axes.set_xlabel("after layer", fontsize=8)
    figure.suptitle(f"What each part of a layer protects, {draw.model_name(result)}", fontsize=10)
    draw.legend_beside(figure, "outside lower center", 4)
    return figure


def _bars(axes: Axes, result: DepthResult, way: str, part: str, x: np.ndarray) -> None:
    colour, label = _PART_COLOURS[part], PART_NAMES[part].removeprefix("the ")
    found = next(p for p in result.protected if (p.part, p.way) == (part, way))
    mean, low, high = (_array(curve)[1:] for curve in (found.mean, found.low, found.high))
    error = np.nan_to_num(np.stack([mean - low, high - mean]))
    axes.bar(x, mean, width=0.25, color=colour, yerr=error, error_kw={"lw": 1}, label=label)
    if result.control is not None:
        same = next(p for p in result.control.protected if (p.part, p.way) == (part, way))
        name = "random weights" if part == "layernorm" else ""
        axes.hlines(_array(same.mean)[1:], x - 0.13, x + 0.13, color="black", lw=1.5, label=name)


def _array(curve: Curve) -> np.ndarray:
    return np.array(curve, dtype=float)  # None becomes NaN
