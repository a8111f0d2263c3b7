"""Figures of ``rank``: cumulative shares, the map of effective ranks, overlaps, shared widths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.results import ControlStatistics, MatrixRank, RankResult
from headscope.show.drawing import heat_map, model_name, new_figure
from headscope.show.rank.words import NAMES

__all__ = ["rank_figures"]

_HEAD, _MEAN = "#56B4E9", "#0072B2"
_CONTROL = {"gaussian": "#D55E00", "fresh": "#009E73"}
_SYMBOL = {"sigma2": r"$\sigma^2$", "sigma": r"$\sigma$"}
#: Panels beside each other in the figure of overlaps.
_ACROSS = 6


def rank_figures(result: RankResult) -> dict[str, Figure]:
    """Draw every figure that the result has data for, by file name."""
    figures = {f"cumulative_{name}": _cumulative(result, name) for name in ("qk", "ov")}
    figures["effective_rank"] = _effective_rank(result)
    figures["overlap"] = _overlap(result)
    if result.shared is not None:
        figures["shared_projections"] = _shared(result)
    return figures


# --- cumulative shares ------------------------------------------------------------------------


def _cumulative(result: RankResult, name: str) -> Figure:
    """Share of the k largest singular values: heads on the left, layers on the right."""
    figure = new_figure(8.5, 3.8)
    left, right = figure.subplots(1, 2, sharey=True)
    share = result.settings["share"]
    _draw(left, result, [getattr(head, name) for head in result.heads], name, "heads")
    _draw(right, result, [getattr(layer, name) for layer in result.layers], name, "layers")
    left.set_title("each head", fontsize=9)
    right.set_title("all heads of a layer concatenated", fontsize=9)
    left.set_ylabel(f"share of {_SYMBOL[share]} in the k largest", fontsize=8)
    figure.suptitle(f"{NAMES[name]} of {model_name(result)}", fontsize=10)
    right.legend(loc="lower right", fontsize=7, frameon=False)
    return figure


def _draw(
    axes: Axes, result: RankResult, found: Sequence[MatrixRank], name: str, kind: str
) -> None:
    share = result.settings["share"]
    curves = [_curve(item.singular_values, share) for item in found if any(item.singular_values)]
    for curve in curves:
        axes.plot(range(len(curve)), curve, color=_HEAD, lw=0.6, alpha=0.6)
    longest = max(map(len, curves), default=1)
    if curves:
        whole = [np.pad(c, (0, longest - len(c)), constant_values=1.0) for c in curves]
        axes.plot(range(longest), np.mean(whole, axis=0), color=_MEAN, lw=2.2, label="mean")
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
    axes.axhline(0.9, color="#999999", lw=0.6, zorder=0)
    axes.text(longest - 1, 0.905, "90%", fontsize=6.5, color="#666666", ha="right", va="bottom")
    axes.set_xlabel("k", fontsize=8)
    axes.set_xlim(0, longest - 1)
    axes.set_ylim(0, 1.01)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _curve(singular_values: Sequence[float], share: str) -> Any:
    """Cumulative share at k = 0, 1, ..., from 0 to 1."""
    sigma = np.array(singular_values)
    part = (sigma / sigma.max()) ** (2 if share == "sigma2" else 1)
    return np.concatenate([[0.0], part.cumsum() / part.sum()])


# --- maps -------------------------------------------------------------------------------------


def _effective_rank(result: RankResult) -> Figure:
    n_layers = max(layer.layer for layer in result.layers) + 1
    n_heads = max((head.head for head in result.heads), default=0) + 1
    values: list[list[float | None]] = [[None] * n_heads for _ in range(n_layers)]
    for head in result.heads:
        values[head.layer][head.head] = head.qk.effective_rank
    gaussian = result.controls["gaussian"]
    control = gaussian.geometries[0].heads["qk"].effective_rank if gaussian else None
    beside = "" if control is None else f"; a Gaussian head has {control:.1f}"
    return heat_map(
        values,
        title=f"Effective rank of W_Q W_K^T, {model_name(result)}{beside}",
        legend=f"exp(entropy of {_SYMBOL['sigma']})",
        digits=1,
    )


def _overlap(result: RankResult) -> Figure:
    """Heads x heads, a panel a layer: queries above, keys below."""
    layers = [layer for layer in result.layers if layer.heads]
    across = min(_ACROSS, max(1, len(layers)))
    down = -(-len(layers) // across)
    figure = new_figure(1.6 * across + 0.9, 3.3 * max(1, down) + 0.6)
    grid: Any = figure.subplots(2 * max(1, down), across, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    top = max((_largest(layer.overlap.query, layer.overlap.key) for layer in layers), default=1.0)
    image = None
    for i, layer in enumerate(layers):
        row, column = 2 * (i // across), i % across
        for below, (what, overlap) in enumerate(
            (("queries", layer.overlap.query), ("keys", layer.overlap.key))
        ):
            axes = grid[row + below, column]
            axes.set_axis_on()
            shown = np.array(overlap)
            np.fill_diagonal(shown, np.nan)
            image = axes.imshow(shown, cmap="viridis", vmin=0, vmax=top)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"L{layer.layer} {what}", fontsize=7)
    if image is not None:
        bar = figure.colorbar(image, ax=grid, fraction=0.02, pad=0.02)
        bar.set_label("mean cos² of principal angles", fontsize=7)
        bar.ax.tick_params(labelsize=7)
        gaussian = result.controls["gaussian"]
        control = gaussian.geometries[0].overlap["query"] if gaussian else None
        if control is not None:
            bar.ax.axhline(control, color="white", lw=1.5)
            bar.ax.text(
                1.3,
                control,
                "Gaussian",
                fontsize=6,
                va="center",
                transform=bar.ax.get_yaxis_transform(),
            )
    figure.suptitle(f"Do heads of {model_name(result)} read the same subspace?", fontsize=10)
    return figure


def _largest(*overlaps: Sequence[Sequence[float]]) -> float:
    """Largest overlap of two different heads."""
    return max(
        (v for o in overlaps for i, row in enumerate(o) for j, v in enumerate(row) if i != j),
        default=1.0,
    )


# --- shared projections -----------------------------------------------------------------------


def _shared(result: RankResult) -> Figure:
    shared = result.shared
    widths = shared.widths if shared else ()
    x = [item.width for item in widths]
    figure = new_figure(8.5, 3.6)
    left, right = figure.subplots(1, 2)
    left.plot(x, [i.score_error for i in widths], "o-", color=_MEAN, label="shared projections")
    left.plot(
        x,
        [i.truncated_score_error for i in widths],
        "s-",
        color="#CC79A7",
        label="each head cut, equal parameters",
    )
    left.plot(
        x,
        [i.control_score_error for i in widths],
        "--",
        color=_CONTROL["gaussian"],
        label="shared, Gaussian control",
    )
    left.set_ylabel("relative error of the scores' matrices", fontsize=8)
    left.set_ylim(0, None)
    right.plot(x, [i.fidelity for i in widths], "o-", color=_MEAN)
    right.plot(x, [i.truncated_fidelity for i in widths], "s-", color="#CC79A7")
    for color, name in ((_MEAN, "fidelity_interval"), ("#CC79A7", "truncated_fidelity_interval")):
        bounds = [getattr(item, name) or (np.nan, np.nan) for item in widths]
        low, high = np.array(bounds).T
        right.fill_between(x, low, high, color=color, alpha=0.2, lw=0)
    right.set_ylabel("cosine to the model's own output", fontsize=8)
    knee = shared.knee if shared else None
    for axes in (left, right):
        axes.set_xlabel("width r of the shared W_Q and W_K", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        if knee is not None:
            axes.axvline(knee, color="#999999", lw=0.8, ls=":", zorder=0)
    if knee is not None:
        left.text(knee, left.get_ylim()[1], " knee", fontsize=7, va="top", color="#666666")
    left.legend(fontsize=7, frameon=False)
    figure.suptitle(f"Heads of {model_name(result)} made to share projections", fontsize=10)
    return figure
