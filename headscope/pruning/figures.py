"""Figures of ``prune``: curves, survivors by role, scores, single heads."""

from __future__ import annotations

import itertools

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.core.heads import layer_name
from headscope.core.roles import role_name, role_of
from headscope.pruning import words
from headscope.pruning.result import Curve, HeadScores, PruneResult
from headscope.pruning.words import METRIC_NAMES, chosen_curves, leading_areas
from headscope.show import drawing as draw

_PALETTE = (draw.BLUE, draw.VERMILION, draw.GREEN, draw.PURPLE, draw.ORANGE, draw.SKY, draw.BLACK)
#: For the eighth method; random heads are grey.
_BROWN = "#B8860B"
_LINES = {"none": "--", "scale": "-", "mean": "-.", "refit": ":"}


def curve_figure(result: PruneResult) -> Figure:
    """Metric against share of heads removed, with intervals; the full model as a line."""
    figure = draw.new_figure(7.5, 4.6)
    axes = figure.add_subplot()
    methods = dict.fromkeys(curve.method for curve in chosen_curves(result))
    colours = dict(zip(methods, itertools.cycle((*_PALETTE, _BROWN)), strict=False))
    repairs = {curve.repair for curve in result.curves}
    for curve in result.curves:
        _draw(axes, curve, colours.get(curve.method, "#888888"), alone=len(repairs) == 1)
    axes.axhline(result.baseline.value, color="black", lw=0.8)
    draw.note(axes, "full model", (1.0, result.baseline.value), (0, 3), ha="right")
    axes.set_xlim(-0.01, 1.01)
    title = f"Heads removed from {draw.model_name(result)}: {result.task}"
    _finish(axes, METRIC_NAMES[result.metric], title)
    axes.legend(fontsize=7, frameon=False, loc="best", handlelength=3.5)
    return figure


def _finish(axes: Axes, y: str, title: str) -> None:
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    draw.plain_axes(axes, "heads removed", y, title)
    axes.grid(alpha=0.25, lw=0.5)


def _draw(axes: Axes, curve: Curve, colour: str, *, alone: bool) -> None:
    x = [point.fraction for point in curve.points]
    y = [point.value for point in curve.points]
    low, high = zip(
        *(point.ci or (point.value, point.value) for point in curve.points), strict=True
    )
    random, name = curve.method == "random", curve.name
    if random:
        n = max((len(point.draws) for point in curve.points), default=0)
        name = f"random: mean and range of {n} draws"
    style = "-" if random or alone else _LINES[curve.repair]
    axes.plot(x, y, style, color=colour, label=name, marker="o", ms=3, lw=1.4)
    if len(x) > 1:
        axes.fill_between(x, low, high, color=colour, alpha=0.2 if random else 0.12, lw=0)
    else:
        axes.vlines(x, low, high, color=colour, lw=1)


def stack_figure(result: PruneResult) -> Figure | None:
    """Each stack's curve by the first method, with its interval and the range of random heads."""
    areas = {area.stack: area for area in leading_areas(result)}
    if not result.stacks:
        return None
    figure = draw.new_figure(7.5, 4.6)
    axes = figure.add_subplot()
    for stack, colour in zip(result.stacks, (draw.BLUE, draw.GREEN, draw.VERMILION), strict=False):
        chosen = next((c for c in stack.curves if c.method != "random"), None)
        random = next((c for c in stack.curves if c.method == "random"), None)
        if random is not None:
            _draw_stack(axes, random, colour, f"{stack.stack}, random heads", beside=True)
        if chosen is not None:
            name = f"{stack.stack}, {chosen.name}"
            if (area := areas.get(stack.stack)) is not None:
                value, ci = area.compared
                ends = words.span(ci, result.metric)
                name += f": area {words.number(value, result.metric)} ({ends})"
            _draw_stack(axes, chosen, colour, name, beside=False)
    axes.axhline(result.baseline.value, color="black", lw=0.8)
    draw.note(axes, "full model", (1.0, result.baseline.value), (0, 3), ha="right")
    axes.set_xlim(-0.01, 1.01)
    title = f"Heads removed from one stack of {draw.model_name(result)}: {result.task}"
    _finish(axes, METRIC_NAMES[result.metric], title)
    axes.set_xlabel("heads of that stack removed", fontsize=8)
    axes.legend(fontsize=7, frameon=False, loc="best", handlelength=3.5)
    return figure


def _draw_stack(axes: Axes, curve: Curve, colour: str, name: str, *, beside: bool) -> None:
    """Draw a curve with its interval, or random heads as a dotted mean with their range."""
    x = [point.fraction for point in curve.points]
    y = [point.value for point in curve.points]
    low, high = zip(
        *(point.ci or (point.value, point.value) for point in curve.points), strict=True
    )
    style, width = (":", 1.0) if beside else ("-", 1.6)
    axes.plot(x, y, style, color=colour, label=name, marker=None if beside else "o", ms=3, lw=width)
    if beside:
        axes.vlines(x, low, high, color=colour, lw=1, alpha=0.5)
    else:
        axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)


def survivor_figure(result: PruneResult) -> Figure | None:
    """Share of the heads of each role that is left, against the share of all heads removed."""
    curve = next((c for c in result.curves if len(c.points) > 2 and c.points[-1].roles_left), None)
    if curve is None:
        return None
    figure = draw.new_figure(7.0, 4.2)
    axes = figure.add_subplot()
    points = [point for point in curve.points if point.roles_left is not None]
    start = points[0].roles_left or {}
    x = [point.fraction for point in points]
    for i, (role, count) in enumerate(start.items()):
        if count:
            y = [(point.roles_left or {})[role] / count for point in points]
            marker, label = "osd^v<>P"[i % 8], f"{role_name(role)} ({count})"
            colour = role_of(role).colour
            axes.plot(x, y, color=colour, marker=marker, ms=3.5, lw=1.4, label=label)
    axes.plot([0, 1], [1, 0], color=draw.GREY, lw=0.8, ls="--", label="heads taken evenly")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    title = f"Which heads of {draw.model_name(result)} survive {curve.method}"
    _finish(axes, "heads of that role left", title)
    axes.legend(fontsize=7, frameon=False)
    return figure


def score_map(result: PruneResult, scores: HeadScores) -> Figure:
    """Layers x heads of one method, as shares of its largest absolute score."""
    largest = max((abs(v) for row in scores.values for v in row if v is not None), default=0.0)
    unit = largest or 1.0
    shares = [[None if v is None else v / unit for v in row] for row in scores.values]
    return draw.heat_map(
        shares,
        title=f"{scores.method}: heads of {draw.model_name(result)}",
        legend=f"score / {unit:.3g}",
        names=scores.names,
    )


def ablation_map(result: PruneResult) -> Figure:
    """Layers x heads: change of the metric when the head alone is removed."""
    places = list(dict.fromkeys((row.stack, row.layer) for row in result.ablation))
    rows = {place: i for i, place in enumerate(places)}
    return draw.heat_map(
        draw.head_grid({(rows[r.stack, r.layer], r.head): r.difference for r in result.ablation}),
        title=f"Each head of {draw.model_name(result)} removed alone",
        legend=f"change of {result.metric}",
        digits=3 if result.metric in ("cosine", "loss") else 2,
        names=[layer_name(layer, stack) for stack, layer in places],
    )
