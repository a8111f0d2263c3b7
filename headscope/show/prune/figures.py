"""Figures of ``prune``: curves, survivors by role, scores, single heads."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.results import Curve, HeadScores, PruneResult
from headscope.results.roles import role_of
from headscope.show.drawing import heat_map, model_name, new_figure
from headscope.show.prune.words import METRIC_NAMES

__all__ = ["ablation_map", "curve_figure", "score_map", "survivor_figure"]

#: Okabe & Ito 2008; random is grey.
_PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#B8860B",
)
_LINES = {"none": "--", "scale": "-", "refit": ":"}


def curve_figure(result: PruneResult) -> Figure:
    """Metric against share of heads removed, with intervals; the full model as a line."""
    figure = new_figure(7.5, 4.6)
    axes = figure.add_subplot()
    methods = list(dict.fromkeys(c.method for c in result.curves if c.method != "random"))
    colours = {method: _PALETTE[i % len(_PALETTE)] for i, method in enumerate(methods)}
    repairs = {curve.repair for curve in result.curves}
    for curve in result.curves:
        _draw(axes, curve, colours.get(curve.method, "#888888"), alone=len(repairs) == 1)
    axes.axhline(result.baseline.value, color="black", lw=0.8)
    axes.annotate(
        "full model",
        (1.0, result.baseline.value),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=7,
    )
    axes.set_xlim(-0.01, 1.01)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    axes.set_xlabel("heads removed", fontsize=8)
    axes.set_ylabel(METRIC_NAMES[result.metric], fontsize=8)
    axes.tick_params(labelsize=7)
    axes.set_title(f"Heads removed from {model_name(result)}: {result.task}", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.5)
    axes.legend(fontsize=7, frameon=False, loc="best", handlelength=3.5)
    return figure


def _draw(axes: Axes, curve: Curve, colour: str, *, alone: bool) -> None:
    x = [point.fraction for point in curve.points]
    y = [point.value for point in curve.points]
    low, high = zip(*(point.ci for point in curve.points), strict=True)
    random = curve.method == "random"
    name = curve.method if curve.repair == "none" else f"{curve.method} + {curve.repair}"
    if random:
        n = max((len(point.draws) for point in curve.points), default=0)
        name = f"random: mean and range of {n} draws"
    style = "-" if random or alone else _LINES[curve.repair]
    axes.plot(x, y, style, color=colour, label=name, marker="o", ms=3, lw=1.4)
    if len(x) > 1:
        axes.fill_between(x, low, high, color=colour, alpha=0.2 if random else 0.12, lw=0)
    else:
        axes.vlines(x, low, high, color=colour, lw=1)


def survivor_figure(result: PruneResult) -> Figure | None:
    """Share of the heads of each role that is left, against the share of all heads removed."""
    curve = next((c for c in result.curves if len(c.points) > 2 and c.points[-1].roles_left), None)
    if curve is None:
        return None
    figure = new_figure(7.0, 4.2)
    axes = figure.add_subplot()
    points = [point for point in curve.points if point.roles_left is not None]
    start = points[0].roles_left or {}
    x = [point.fraction for point in points]
    for i, (role, count) in enumerate(start.items()):
        if count:
            y = [(point.roles_left or {})[role] / count for point in points]
            axes.plot(
                x,
                y,
                color=role_of(role).colour,
                marker="osd^v<>P"[i % 8],
                ms=3.5,
                lw=1.4,
                label=f"{role} ({count})",
            )
    axes.plot([0, 1], [1, 0], color="#999999", lw=0.8, ls="--", label="heads taken evenly")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("heads removed", fontsize=8)
    axes.set_ylabel("heads of that role left", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.set_title(f"Which heads of {model_name(result)} survive {curve.method}", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.5)
    axes.legend(fontsize=7, frameon=False)
    return figure


def score_map(result: PruneResult, scores: HeadScores) -> Figure:
    """Layers x heads of one method, as shares of its largest absolute score."""
    largest = max((abs(v) for row in scores.values for v in row if v is not None), default=0.0)
    unit = largest or 1.0
    shares = [[None if v is None else v / unit for v in row] for row in scores.values]
    return heat_map(
        shares,
        title=f"{scores.method}: heads of {model_name(result)}",
        legend=f"score / {unit:.3g}",
    )


def ablation_map(result: PruneResult) -> Figure:
    """Layers x heads: change of the metric when the head alone is removed."""
    n_layers = max(row.layer for row in result.ablation) + 1
    n_heads = max(row.head for row in result.ablation) + 1
    grid: list[list[float | None]] = [[None] * n_heads for _ in range(n_layers)]
    for row in result.ablation:
        grid[row.layer][row.head] = row.difference
    return heat_map(
        grid,
        title=f"Each head of {model_name(result)} removed alone",
        legend=f"change of {result.metric}",
        digits=3 if result.metric in ("cosine", "loss") else 2,
    )
