"""The tables and figures of ``prune`` behind its answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headscope.analyses.classify.roles import role_name, role_of
from headscope.pruning.result import Area, AreaGap, Curve, HeadEffect, MaxDrop, PruneResult, way
from headscope.pruning.sentences import changed_sentence, chosen_curves, leading_areas
from headscope.removal.metric_words import METRIC_NAMES, amount, number, span
from headscope.show import blocks as b
from headscope.show.cells import model_name, p_text
from headscope.stats.estimate import Estimate

_COLOURS = (b.BLUE, b.VERMILION, b.GREEN, b.PURPLE, b.ORANGE, b.SKY, b.BLACK, "#B8860B")
_MOST_ALONE = 8  # Heads named in the table of heads removed alone: those that hurt most.
#: Metrics besides a task's value that stand in a table of their own.
_OTHERS = (
    "exact_match",
    "bleu",
    "bleu_characters",
    "ndcg_at_10",
    "recall_at_10",
    "top_10_changed",
    "kendall_tau",
    "word_accuracy",
)
_MOST_COLUMNS = 11  # Columns of shares of heads removed at most.


def curves_blocks(result: PruneResult) -> Iterator[b.Block]:
    """Show the metric by share of heads removed, with intervals, as a table and as a figure."""
    metric = result.metric
    shares = sorted({round(p.fraction, 3) for c in result.curves for p in c.points})
    many = len(shares) > 6
    shown = _spaced(shares)
    rows = []
    for curve in result.curves:
        values = {round(point.fraction, 3): point.value.value for point in curve.points}
        cells = (number(values.get(share), metric, short=True) for share in shown)
        rows.append([_short_name(curve), *cells])
    title = f"{metric} by share of heads removed (random: mean of its draws)"
    heads = ("chosen by", *(f"{share:.0%}" for share in shown))
    table = b.text_table(heads, rows, title)
    yield table if many else replace(table, on=b.TERMINAL)
    if not many:
        yield from b.behind([_points_table(metric, {"": result.curves})])
    methods = dict.fromkeys(curve.method for curve in chosen_curves(result.curves))
    colours = dict(zip(methods, itertools.cycle(_COLOURS), strict=False))
    dashes = {"none": "--", "scale": ":", "surgeon": "-"}
    alone = len({curve.repair for curve in result.curves}) == 1
    series = []
    for curve in result.curves:
        name = curve.name
        dash = "-" if alone else dashes[curve.repair]
        if curve.method == "random":
            draws = max((len(point.draws) for point in curve.points), default=0)
            name = f"random: mean and range of {draws} draws"
            dash = "-"
        series.append(_series(curve, name, colours.get(curve.method, b.GREY), dash))
    yield _chart(
        result,
        f"Heads removed from {model_name(result)}: {result.task}",
        "heads removed",
        series,
        "curves",
        f"{metric} by share of heads removed, one line for each method; the numbers are in "
        "curves.csv.",
    )


def stacks_blocks(result: PruneResult) -> Iterator[b.Block]:
    """Show each stack pruned alone, the areas under the curves, and which are apart."""
    metric = result.metric
    stacks = [stack.stack for stack in result.stacks]
    sizes = ", ".join(f"{stack.stack} {stack.n_heads}" for stack in result.stacks)
    title = f"Each stack pruned alone, the others whole (heads: {sizes})"
    yield _points_table(metric, {stack.stack: stack.curves for stack in result.stacks}, title)
    if result.areas:
        rows = [
            [area.stack, _short_name(area), *_cells(area.inner, metric), ""]
            for area in result.areas
        ]
        rows += [
            [
                f"{gap.stack} - {gap.other}",
                _short_name(gap),
                *_cells(gap.inner, metric, signed=True),
                "*" if gap.is_apart else "",
            ]
            for gap in result.gaps
            if stacks.index(gap.stack) < stacks.index(gap.other)
        ]
        title = "Area under each curve from the first to the last head removed, and differences"
        yield b.text_table(("stack", "chosen by", f"mean {metric}", "95%", ""), rows, title)
        yield b.Text(
            "Intervals (95%): paired bootstrap over examples; for random heads Student's t over "
            "draws.\n* the interval excludes 0",
            "soft",
        )
    series = []
    areas_shown = {area.stack: area for area in leading_areas(result)}
    for stack, colour in zip(result.stacks, (b.BLUE, b.GREEN, b.VERMILION), strict=False):
        random = [c for c in stack.curves if c.method == "random"]
        series += [_series(c, f"{stack.stack}, random heads", colour, ":") for c in random[:1]]
        for curve in chosen_curves(stack.curves)[:1]:
            label = f"{stack.stack}, {curve.name}"
            if (area := areas_shown.get(stack.stack)) is not None:
                label += f": area {number(area.inner.value, metric)} ({span(area.inner, metric)})"
            series.append(_series(curve, label, colour, "-"))
    yield _chart(
        result,
        f"Heads removed from one stack of {model_name(result)}: {result.task}",
        "heads of that stack removed",
        series,
        "stacks",
        f"{metric} by share of one stack's heads removed; the numbers are in curves.csv.",
    )


def other_metrics(result: PruneResult) -> Iterator[b.Block]:
    """Show a task's other metrics, such as what decoding tells; draws of random heads have none."""
    full = result.baseline.metrics
    names = [name for name in _OTHERS if name in full and name != result.metric]
    if not names:
        return

    def cells(metrics: Mapping[str, float]) -> list[str]:
        return [number(metrics.get(name), name, short=True) for name in names]

    rows = [["", "full model", "", *cells(full)]]
    for stack, curves in [(result.stack, result.curves)] + [
        (stack.stack, stack.curves) for stack in result.stacks
    ]:
        rows += [
            [stack, _short_name(curve), f"{point.fraction:.0%}", *cells(point.metrics or {})]
            for curve in chosen_curves(curves)
            for point in curve.points
            if point.heads_removed
        ]
    what = ", ".join(METRIC_NAMES[name] for name in names)
    title = f"{'Greedy decoding' if result.task == 'seq2seq' else 'Also'}: {what}"
    yield b.text_table(("stack", "chosen by", "removed", *names), rows, title)
    yield b.Text(changed_sentence(result))


def search_blocks(result: PruneResult, search: MaxDrop) -> Iterator[b.Block]:
    """Show what was settled beforehand, every number that was tested, and how sure it is."""
    metric = result.metric
    if search.near:
        rows = [[way(n.method, n.repair), str(n.heads), f"{n.distance:.4g}"] for n in search.near]
        yield b.text_table(
            ("way to prune", "heads", "squared distance"),
            rows,
            "Settled beforehand on the calibration data, without labels: the way whose outputs "
            "stay nearest to the whole model's",
        )
    rows = [
        [
            str(test.heads),
            number(test.lost, metric),
            number(test.most_lost, metric),
            "confirmed" if test.allowed else "refused",
        ]
        for test in search.looks
    ]
    yield b.text_table(
        ("heads", "loss", "at most (95%)", ""),
        rows,
        f"Heads that cost at most {amount(search.wanted, metric)}: {search.count} of "
        f"{result.n_heads} by {way(search.method, search.repair)}, on "
        f"{result.measured_examples:,} examples",
    )
    numbers = ", ".join(map(str, search.sequence))
    yield b.Text(
        f"Numbers of heads in the order settled beforehand: {numbers}. The first that is refused "
        "ends the tests. At most 1 in 40 runs like this one confirms a number that costs more (as "
        "far as the intervals hold). A larger number may be allowed too: it was not tested.",
        "soft",
    )


def survivors(result: PruneResult) -> Iterator[b.Block]:
    """Show which kinds of heads are left, for the first curve that knows."""
    curve = next((c for c in result.curves if c.points[-1].roles_left is not None), None)
    if curve is None:
        return
    points = [(p, p.roles_left) for p in curve.points if p.roles_left is not None]
    start = points[0][1]
    if result.roles:
        shown = _spaced(points)
        rows = [[role_name(role), *(str(left.get(role, 0)) for _, left in shown)] for role in start]
        rows.append(["all heads", *(str(result.n_heads - len(p.heads_removed)) for p, _ in shown)])
        yield b.text_table(
            ("heads removed", *(f"{point.fraction:.0%}" for point, _ in shown)),
            rows,
            f"Which kinds of heads are left ({curve.method}; roles from {result.roles_from}; a "
            "head can have several)",
        )
    if len(curve.points) < 3 or not start:
        return
    x = [point.fraction for point, _ in points]
    series = []
    for i, (role, count) in enumerate(start.items()):
        if count:
            y = [100 * left[role] / count for _, left in points]
            name = f"{role_name(role)} ({count})"
            colour = role_of(role).colour
            series.append(b.Series(name, x, y, colour=colour, marker="osd^v<>P"[i % 8]))
    evenly = b.Series("heads taken evenly", (0, 1), (100, 0), "line", b.GREY, "", "--", width=0.8)
    yield b.Chart(
        f"Which heads of {model_name(result)} are left by {curve.method}",
        "heads removed",
        "heads of that role left, %",
        [*series, evenly],
        "Share of the heads of each role that is left, by share of all heads removed; the numbers "
        "are in prune.json.",
        "survivors",
        x_scale="percent",
    )


def single_heads(result: PruneResult) -> Iterator[b.Block]:
    """Show heads removed alone, and heads left alone in their layers."""
    metric = result.metric

    def table(name: str, effects: Sequence[HeadEffect], title: str) -> b.Table:
        rows = [
            [
                row.name,
                number(row.value.value, metric),
                number(row.difference.value, metric, signed=True),
                span(row.difference, metric, signed=True),
                p_text(row.p_adjusted),
                "*" if row.significant else "",
            ]
            for row in effects
        ]
        return b.text_table((name, metric, "change", "95% interval", "adj. p", ""), rows, title)

    if result.ablation:

        def gain(row: HeadEffect) -> float:
            return result.sign * (row.difference.value or 0.0)

        ranked = sorted(result.ablation, key=gain)
        changes = [gain(row) for row in ranked if row.significant]
        yield table(
            "head",
            ranked[:_MOST_ALONE],
            f"Each head removed alone: {sum(x < 0 for x in changes)} of {len(ranked)} make the "
            f"model significantly worse, {sum(x > 0 for x in changes)} better (Benjamini-Hochberg, "
            "q = 0.05). Most harmful:",
        )
        yield b.HeadMap(
            f"Each head of {model_name(result)} removed alone",
            f"change of {metric}",
            {(row.layer_name, row.head): row.difference.value for row in result.ablation},
            digits=3 if metric in ("cosine", "loss") else 2,
            file="ablation",
            on=b.NOWHERE,
        )
    if result.kept_alone:
        title = "All heads of one layer removed but the best (chosen on the calibration data)"
        yield table("head left", result.kept_alone, title)


def scores_map(result: PruneResult) -> Iterator[b.HeadMap]:
    """Draw the first method's scores, as shares of the largest absolute score."""
    for scores in result.scores[:1]:
        rows = dict(zip(scores.names, scores.values, strict=True))
        values = {(name, i): v for name, row in rows.items() for i, v in enumerate(row)}
        unit = max((abs(v) for v in values.values() if v is not None), default=0.0) or 1.0
        yield b.HeadMap(
            f"{scores.method}: heads of {model_name(result)}",
            f"score / {unit:.3g}",
            {head: None if v is None else v / unit for head, v in values.items()},
            digits=2,
            file="scores",
            on=b.NOWHERE,
        )


def _chart(
    result: PruneResult, title: str, x: str, series: Sequence[b.Series], file: str, alt: str
) -> b.Chart:
    return b.Chart(
        title,
        x,
        METRIC_NAMES[result.metric],
        series,
        alt,
        file,
        levels={"full model": result.baseline.value.value or 0.0},
        x_scale="percent",
        size=(7.5, 5.0),
    )


def _series(curve: Curve, name: str, colour: str, dash: Any) -> b.Series:
    """Draw a curve with its intervals, or the range of random heads, as a band."""
    x = [p.fraction for p in curve.points]
    y = [p.value.value or 0.0 for p in curve.points]
    band = [p.value.interval or (value, value) for p, value in zip(curve.points, y, strict=True)]
    if len(x) == 1:  # a band of no width
        bar = [Estimate(y[0], *band[0])]
        return b.Series(name, x, bar, "line", colour, dash=dash, band=band)
    return b.Series(name, x, y, "line", colour, dash=dash, band=band)


def _points_table(metric: str, parts: Mapping[str, Sequence[Curve]], title: str = "") -> b.Table:
    """Write every point of the curves of some stacks, with its change; the stack if it has a name.

    One row a method, repair and share of heads removed.
    """
    rows = [
        [
            *([stack] if stack else []),
            _short_name(curve),
            f"{point.fraction:.0%}",
            *_cells(point.value, metric),
            *_cells(point.difference, metric, signed=True),
            p_text(point.p_value),
        ]
        for stack, curves in parts.items()
        for curve in curves
        for point in curve.points
        if point.heads_removed
    ]
    heads = ("chosen by", "removed", metric, "95%", "change", "95%", "p")
    return b.text_table(("stack", *heads) if any(parts) else heads, rows, title)


def _spaced(items: Sequence[Any]) -> Sequence[Any]:
    """Leave out items, evenly, until they fit."""
    return items[:: max(1, -(-len(items) // _MOST_COLUMNS))]


def _cells(estimate: Estimate | None, metric: str, *, signed: bool = False) -> tuple[str, str]:
    """Write a value, and both ends of its interval shortly."""
    if estimate is None:
        return "-", "-"
    ends = (number(end, metric, signed=signed, short=True) for end in estimate.interval or ())
    return number(estimate.value, metric, signed=signed), " ".join(ends) or "-"


def _short_name(curve: Curve | Area | AreaGap) -> str:
    """Name a curve shortly enough for a column: ``imp.-token +scale``."""
    name = way(curve.method, curve.repair)
    return name.replace("importance", "imp.").replace(" + ", " +")
