"""Figures of ``rank``: cumulative shares, the map of effective ranks, overlaps, shared widths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.analyses.rank.result import RankResult, SharedProjections
from headscope.analyses.rank.view import NAMES
from headscope.show import drawing as draw
from headscope.stats.ranks import ControlStatistics, MatrixRank

_CONTROL = {"gaussian": draw.VERMILION, "fresh": draw.GREEN}
_SYMBOL = {"sigma2": r"$\sigma^2$", "sigma": r"$\sigma$"}
_ACROSS = 6  # Panels beside each other in the figure of overlaps.


def rank_figures(result: RankResult) -> dict[str, Figure]:
    """Draw every figure that the result has data for, by file name."""
    figures = {f"cumulative_{name}": _cumulative(result, name) for name in ("qk", "ov")}
    figures["effective_rank"] = _effective_rank(result)
    figures["overlap"] = _overlap(result)
    if result.shared is not None:
        figures["shared_projections"] = _shared(result.shared, draw.model_name(result))
    return figures


def _cumulative(result: RankResult, name: str) -> Figure:
    """Share of the k largest singular values: heads on the left, layers on the right."""
    figure = draw.new_figure(8.5, 3.8)
    left, right = figure.subplots(1, 2, sharey=True)
    share = result.settings["share"]
    _draw(left, result, [getattr(head, name) for head in result.heads], name, "heads")
    _draw(right, result, [getattr(layer, name) for layer in result.layers], name, "layers")
    for axes, title in ((left, "each head"), (right, "all heads of a layer concatenated")):
        draw.plain_axes(axes, "k", title=title, title_size=9)
    left.set_ylabel(f"share of {_SYMBOL[share]} in the k largest", fontsize=8)
    figure.suptitle(f"{NAMES[name]} of {draw.model_name(result)}", fontsize=10)
    right.legend(loc="lower right", fontsize=7, frameon=False)
    return figure


def _draw(
    axes: Axes, result: RankResult, found: Sequence[MatrixRank], name: str, kind: str
) -> None:
    share = result.settings["share"]
    curves = [_curve(item.singular_values, share) for item in found if any(item.singular_values)]
    for curve in curves:
        axes.plot(range(len(curve)), curve, color=draw.SKY, lw=0.6, alpha=0.6)
    longest = max(map(len, curves), default=1)
    if curves:
        whole = [np.pad(c, (0, longest - len(c)), constant_values=1.0) for c in curves]
        axes.plot(range(longest), np.mean(whole, axis=0), color=draw.BLUE, lw=2.2, label="mean")
    for control_name, control in result.controls.items():
        for geometry in control.geometries[:1] if control else ():
            statistics: ControlStatistics = getattr(geometry, kind)[name]
            curve = _curve(statistics.singular_values, share)
            axes.plot(
                range(len(curve)),
                curve,
                color=_CONTROL[control_name],
                lw=1.6,
                ls="--" if control_name == "gaussian" else (0, (1, 1.5)),
                label=f"{control_name} control",
            )
    axes.axhline(0.9, color=draw.GREY, lw=0.6, zorder=0)
    axes.text(longest - 1, 0.905, "90%", fontsize=6.5, color="#666666", ha="right", va="bottom")
    axes.set_xlim(0, longest - 1)
    axes.set_ylim(0, 1.01)


def _curve(singular_values: Sequence[float], share: str) -> np.ndarray:
    """Cumulative share at k = 0, 1, ..., from 0 to 1."""
    sigma = np.array(singular_values)
    part = (sigma / sigma.max()) ** (2 if share == "sigma2" else 1)
    return np.concatenate([[0.0], part.cumsum() / part.sum()])


def _effective_rank(result: RankResult) -> Figure:
    row_of = {(layer.stack, layer.layer): row for row, layer in enumerate(result.layers)}
    values = {
        (row_of[head.stack, head.layer], head.head): head.qk.effective_rank for head in result.heads
    }
    gaussian = result.controls["gaussian"]
    control = gaussian.geometries[0].heads["qk"].effective_rank if gaussian else None
    beside = "" if control is None else f"; a Gaussian head has {control:.1f}"
    return draw.heat_map(
        draw.head_grid(values, len(result.layers)),
        names=[layer.name for layer in result.layers],
        title=f"Effective rank of W_Q W_K^T, {draw.model_name(result)}{beside}",
        legend=f"exp(entropy of {_SYMBOL['sigma']})",
        digits=1,
    )


def _overlap(result: RankResult) -> Figure:
    """Heads x heads, a panel a layer: queries above, keys below."""
    layers = [layer for layer in result.layers if layer.heads]
    across = min(_ACROSS, max(1, len(layers)))
    down = -(-len(layers) // across)
    figure = draw.new_figure(1.6 * across + 0.9, 3.3 * max(1, down) + 0.6)
    grid: Any = figure.subplots(2 * max(1, down), across, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    top = max((_largest(layer.overlap.query, layer.overlap.key) for layer in layers), default=1.0)
    image = None
    for i, layer in enumerate(layers):
        row, column = 2 * (i // across), i % across
        panels = (("queries", layer.overlap.query), ("keys", layer.overlap.key))
        for axes, (what, overlap) in zip(grid[row : row + 2, column], panels, strict=True):
            axes.set_axis_on()
            shown = np.array(overlap)
            np.fill_diagonal(shown, np.nan)
            image = axes.imshow(shown, cmap="viridis", vmin=0, vmax=top)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"{layer.name} {what}", fontsize=7)
    if image is not None:
        bar = draw.small_colour_bar(figure, image, grid, "mean cos² of principal angles", 0.02)
        gaussian = result.controls["gaussian"]
        control = gaussian.geometries[0].overlap["query"] if gaussian else None
        if control is not None:
            bar.axhline(control, color="white", lw=1.5)
            at_its_edge = bar.get_yaxis_transform()
            bar.text(1.3, control, "Gaussian", fontsize=6, va="center", transform=at_its_edge)
    figure.suptitle(f"Do heads of {draw.model_name(result)} read the same subspace?", fontsize=10)
    return figure


def _largest(*overlaps: Sequence[Sequence[float]]) -> float:
    """Largest overlap of two different heads."""
    return max(
        (v for o in overlaps for i, row in enumerate(o) for j, v in enumerate(row) if i != j),
        default=1.0,
    )


def _shared(shared: SharedProjections, model: str) -> Figure:
    """Error of the scores on the left, fidelity of the model on the right, by width."""
    x = [item.width for item in shared.widths]
    figure = draw.new_figure(8.5, 3.6)
    left, right = figure.subplots(1, 2)
    for field, style, colour, label in (
        ("score_error", "o-", draw.BLUE, "shared projections"),
        ("truncated_score_error", "s-", draw.PURPLE, "each head cut, equal parameters"),
        ("control_score_error", "--", draw.VERMILION, "shared, Gaussian control"),
    ):
        values = [getattr(item, field) for item in shared.widths]
        left.plot(x, values, style, color=colour, label=label)
    left.set_ylim(0, None)
    for field, style, colour in (
        ("fidelity", "o-", draw.BLUE),
        ("truncated_fidelity", "s-", draw.PURPLE),
    ):
        right.plot(x, [getattr(item, field) for item in shared.widths], style, color=colour)
        bounds = [getattr(i, f"{field}_interval") or (np.nan, np.nan) for i in shared.widths]
        low, high = np.array(bounds).T
        right.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
    for axes, caption in (
        (left, "relative error of the scores' matrices"),
        (right, "cosine to the model's own output"),
    ):
        draw.plain_axes(axes, "width r of the shared W_Q and W_K", caption)
        if shared.knee is not None:
            axes.axvline(shared.knee, color=draw.GREY, lw=0.8, ls=":", zorder=0)
    if shared.knee is not None:
        top = left.get_ylim()[1]
        left.text(shared.knee, top, " knee", fontsize=7, va="top", color="#666666")
    left.legend(fontsize=7, frameon=False)
    figure.suptitle(f"Heads of {model} made to share projections", fontsize=10)
    return figure
