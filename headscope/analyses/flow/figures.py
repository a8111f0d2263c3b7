"""Figures of ``flow``: what z holds by layer, and the map of trees."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.analyses.flow.result import FlowResult, Trees
from headscope.analyses.flow.view import TARGETS
from headscope.show import drawing as draw

_COLOURS = {
    "whole": draw.BLACK,
    "directions": draw.GREY,
    "token": draw.SKY,
    "value": draw.BLUE,
    "gaussian": draw.GREEN,
    "other": draw.ORANGE,
}


def recovery_by_layer(result: FlowResult) -> Figure:
    """Spectra of W_V on the left, held-out R^2 on the right: a dot for each head, lines of means.

    Dashed: random weights; dotted: Gaussian entries.
    """
    figure = draw.new_figure(10.0, 4.6)
    left, right = figure.subplots(1, 2)
    _spectra(left, result)
    names = list(dict.fromkeys(head.layer_name for head in result.heads))
    for i, target in enumerate(_COLOURS):
        points = [(names.index(h.layer_name), _value(h.recovery, target)) for h in result.heads]
        x, y = np.array(points, dtype=float).T
        shift = 0.12 * (i - (len(_COLOURS) - 1) / 2)
        right.scatter(x + shift, y, s=5, color=_COLOURS[target], alpha=0.45, lw=0)
        means = [_mean(y[x == layer]) for layer in range(len(names))]
        label = TARGETS[target]
        right.plot(range(len(names)), means, color=_COLOURS[target], lw=1.6, label=label)
        if result.control is not None:
            control = _value(result.control.recovery, target)
            right.axhline(control, color=_COLOURS[target], lw=1, ls="--")
    right.axhline(0, color="0.6", lw=0.8)
    right.set_xticks(range(len(names)), names)
    draw.plain_axes(right, "layer", "share of variance recovered (held-out $R^2$)", title_size=9)
    why = "" if not result.not_measured else "; the text is too short for some"
    right.set_title(f"what a linear readout recovers (dashed: random weights){why}", fontsize=9)
    handles = right.get_legend_handles_labels()[0]
    draw.legend_beside(figure, "outside lower center", 3, handles=handles)
    figure.suptitle(f"What heads pass on of what they read, {draw.model_name(result)}", fontsize=10)
    return figure


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _value(recovery: object, target: str) -> float:
    value = getattr(recovery, target).value
    return float("nan") if value is None else float(value)


def _spectra(axes: Axes, result: FlowResult) -> None:
    """Draw cumulative squares of the singular values of W_V against the share of d_head."""
    for head in result.heads:
        _cumulative(axes, head.w_v.singular_values, color=draw.BLUE, lw=0.5, alpha=0.4)
    for name, style in (("gaussian", ":"), ("fresh", "--")):
        for control in result.spectra.get(name, ()):
            _cumulative(axes, control.w_v.singular_values, color="black", lw=1.4, ls=style)
    axes.plot([0, 1], [0, 1], color="0.7", lw=0.8)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    draw.plain_axes(axes, "share of d_head", "share of the sum of $\\sigma^2$")
    axes.set_title("W_V of every head (black: dotted Gaussian, dashed untrained)", fontsize=9)


def _cumulative(axes: Axes, sigma: tuple[float, ...], **style: object) -> None:
    squares = np.square(np.array(sigma, dtype=float))
    if squares.sum() > 0:
        x = np.arange(len(squares) + 1) / len(squares)
        axes.plot(x, np.concatenate([[0], squares.cumsum() / squares.sum()]), **style)  # type: ignore[arg-type]


def tree_map(result: FlowResult, trees: Trees) -> Figure:
    """Layers x heads: attachment of each head's largest trees in its better direction."""
    names = list(dict.fromkeys(head.layer_name for head in result.heads))
    cells = {
        (names.index(head.layer_name), head.head): head.trees.uas[head.trees.direction].value
        for head in result.heads
        if head.trees is not None
    }
    beside = ", ".join(
        f"{name} {found.value:.2f}"
        for name, found in trees.baselines.items()
        if found.value is not None
    )
    combined = trees.combination.uas.value or 0.0
    return draw.heat_map(
        draw.head_grid(cells, len(names)),
        names=names,
        title=f"Unlabelled attachment of each head's largest trees, {draw.model_name(result)}\n"
        f"{len(trees.combination.heads)} heads added up {combined:.2f}; {beside}",
        legend="UAS, the gold root given",
    )
