"""Figures of ``spectrum``: cumulative curves, the map at k, and error against cost."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.analyses.spectrum.result import CheapPoint, EfficientResult, SpectrumResult
from headscope.analyses.spectrum.view import FORM_NAMES
from headscope.show import drawing as draw

_SYMBOLS = (r"$\sigma$", r"$\sigma^2$")
#: Controls: colours and dashes.
_CONTROLS = {
    "uniform": (draw.BLACK, (0, (1, 1))),
    "random-logits": (draw.VERMILION, (0, (4, 2))),
    "previous-token": (draw.PURPLE, (0, (6, 2, 1, 2))),
    "identity": (draw.BLUE, (0, (2, 3))),
    "random weights": (draw.GREEN, (0, (5, 1))),
}
_FORMS = {
    "truncated": (draw.BLACK, "o"),
    "bound": (draw.VERMILION, "*"),
    "random": (draw.ORANGE, "s"),
    "pooled": (draw.SKY, "D"),
    "window": (draw.GREEN, "^"),
    "window+global": (draw.BLUE, "v"),
    "window+global+random": (draw.PURPLE, "P"),
    "random-keys": (draw.GREY, "x"),
}


def spectrum_curves(result: SpectrumResult) -> Figure:
    """Draw cumulative shares: heads thin, layer means bold, controls dashed."""
    figure = draw.new_figure(10.0, 4.8)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name, label in zip(panels, ("curve", "curve_sq"), _SYMBOLS, strict=True):
        _curves(axes, result, name)
        x = "largest singular values counted"
        draw.plain_axes(axes, x, title=f"share of the sum of {label}", title_size=9)
    panels[0].set_ylabel("cumulative share", fontsize=8)
    draw.legend_beside(figure, "outside right center")
    figure.suptitle(
        f"Singular values of attention patterns, {draw.model_name(result)}: mean over "
        f"{result.sequences:,} sequences of {result.length} tokens",
        fontsize=10,
    )
    return figure


def _curves(axes: Axes, result: SpectrumResult, name: str) -> None:
    x = np.arange(1, result.length + 1)
    layers = list(dict.fromkeys(head.layer_name for head in result.heads))
    colours = mpl.colormaps["viridis"](np.linspace(0, 0.92, len(layers)))
    for layer, colour in zip(layers, colours, strict=True):
        curves = [np.array(getattr(h, name)) for h in result.heads if h.layer_name == layer]
        for curve in curves:
            axes.plot(x, curve, color=colour, lw=0.5, alpha=0.45)
        axes.plot(x, np.mean(curves, axis=0), color=colour, lw=2.2, label=f"{layer}, mean")
    for control, (colour, dashes) in _CONTROLS.items():
        source = {"random weights": result.random_weights, **result.controls}[control]
        if source is None:
            continue
        y = getattr(source, name)
        axes.plot(x, y, color=colour, lw=1.4, ls=dashes, label=f"control: {control}")
    axes.axvline(result.k, color="#777777", lw=0.8)
    draw.note(axes, f"k = {result.k}", (result.k, 0.01), (3, 0))
    at = max(1, result.length // 2)
    for head in result.heads:
        if head.name in result.verdict.not_low_rank:
            place = (at, getattr(head, name)[at - 1])
            draw.note(axes, head.name, place, (3, -2), fontsize=6.5, va="top")
    axes.set_xlim(1, result.length)
    axes.set_ylim(0, 1.02)


def share_map(result: SpectrumResult, *, squared: bool = False) -> Figure:
    """Layers x heads: share of the k largest, with the controls in the legend."""
    field = "share_sq_at_k" if squared else "share_at_k"
    names = list(dict.fromkeys(h.layer_name for h in result.heads))
    cells = {
        (names.index(head.layer_name), head.head): getattr(head, field).mean
        for head in result.heads
    }
    known = {name: getattr(control, field) for name, control in result.controls.items()}
    if result.random_weights is not None:
        known["random weights"] = getattr(result.random_weights, field).mean
    symbol = _SYMBOLS[squared]
    beside = ", ".join(f"{name} {value:.3f}" for name, value in known.items())
    return draw.heat_map(
        draw.head_grid(cells),
        names=names,
        title=f"Share of {symbol} in the {result.k} largest of {result.length}, "
        f"{draw.model_name(result)}\ncontrols: {beside}",
        legend=f"share of {symbol}",
        limits=(min(known["identity"], *cells.values()), 1.0),
    )


def cost_curves(result: SpectrumResult, found: EfficientResult) -> Figure:
    """Draw error of each head alone, and loss of fidelity with all replaced, against cost."""
    figure = draw.new_figure(10.0, 4.6)
    panels = figure.subplots(1, 2)
    for form in (form for form in _FORMS if form not in found.left_out):
        _draw_form(panels[0], form, found, "error")
        _draw_form(panels[1], form, found, "fidelity")
    _finish(panels[0], "relative error of z, mean over heads", found.points, "error")
    _finish(panels[1], "1 - cosine of the pooled last state", found.points, "fidelity")
    panels[0].set_title("each head alone", fontsize=9)
    panels[1].set_title("the model with all heads replaced", fontsize=9)
    draw.legend_beside(figure, "outside right center")
    figure.suptitle(
        f"What could replace attention in {draw.model_name(result)}: {found.sequences} sequences "
        f"of {result.length} tokens",
        fontsize=10,
    )
    return figure


def _draw_form(axes: Axes, form: str, found: EfficientResult, field: str) -> None:
    """Draw one form by its cost, with 95% bars where they are known."""
    sizes = [point for point in found.points if point.form == form]
    # What leaves no error has no place on a logarithmic axis.
    points = [point for point in sizes if _value(point, field) > 0]
    values = [_value(point, field) for point in points]
    halves = [getattr(point, f"{field}_half_width") for point in points]
    control, (colour, marker) = form in found.controls, _FORMS[form]
    exact = "" if len(points) == len(sizes) else ", then 0"
    axes.errorbar(
        [point.cost for point in points],
        values,
        yerr=None if None in halves else halves,
        label=f"{'control: ' if control else ''}{FORM_NAMES[form]}{exact}",
        color=colour,
        marker=marker,
        ms=4,
        lw=1.3,
        elinewidth=0.7,
        ls="--" if control else "-",
    )


def _value(point: CheapPoint, field: str) -> float:
    """Return the error of each head alone, or what the whole model's fidelity lacks to 1."""
    return point.error if field == "error" else 1.0 - point.fidelity.mean


def _finish(axes: Axes, what: str, points: tuple[CheapPoint, ...], field: str) -> None:
    """Label one panel and draw what uniform attention reaches at no cost."""
    uniform = next(point for point in points if point.form == "uniform")
    at = _value(uniform, field)
    axes.axhline(at, color="#444444", lw=1, ls=":", label="control: uniform attention")
    if field == "error":
        axes.axhline(1.0, color="#444444", lw=0.8, label="zeros in place of z")
    axes.set_xscale("log", base=2)
    ticks = [2.0**-i for i in range(5, 0, -1)]
    costs = [point.cost for point in points if point.cost > 0]
    axes.set_xlim(0.9 * min(costs), 1.1 * max(costs))
    axes.set_xticks(ticks, [f"1/{round(1 / t)}" for t in ticks])
    axes.set_yscale("log")  # bars that reach below zero end with the axis
    drawn = [value for value in (_value(point, field) for point in points) if value > 0]
    axes.set_ylim(bottom=0.5 * min(drawn, default=0.1))
    draw.plain_axes(axes, r"fraction of the $n^2$ scores", what)
    axes.grid(alpha=0.25, lw=0.5)
