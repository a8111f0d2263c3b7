"""The tables and figures of ``prune`` behind its answer.

In the order in which they are shown: the curves, each stack alone, other metrics, the tests of a
bounded loss, the scores of heads. A curve is one method with one repair, a point of it the model
without some share of its heads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headscope.pruning.result import Area, AreaGap, Curve, MaxDrop, Point, PruneResult, way
from headscope.pruning.sentences import changed_sentence, chosen_curves, leading_areas
from headscope.removal.metric_words import METRIC_NAMES, amount, number, with_interval
from headscope.show import blocks as b
from headscope.show.cells import interval_text, model_name, p_text
from headscope.stats.estimate import Estimate

_COLOURS = (b.BLUE, b.VERMILION, b.GREEN, b.PURPLE, b.ORANGE, b.SKY, b.BLACK, "#B8860B")
#: Of each stack: the colour of chosen heads, and of random ones.
_STACK_COLOURS = ((b.BLUE, b.SKY), (b.GREEN, "#80BA5A"), (b.VERMILION, b.ORANGE))
_DASHES = {"none": "--", "scale": ":", "surgeon": "-"}
#: Metrics besides a task's value that stand in a table of their own.
_OTHER_METRICS = (
    "exact_match",
    "bleu",
    "bleu_characters",
    "ndcg_at_10",
    "recall_at_10",
    "top_10_changed",
    "kendall_tau",
    "word_accuracy",
)
_MOST_COLUMNS = 11  # Columns of shares of heads removed, at most.
_FEW_SHARES = 6  # Up to so many shares, a table shows every point with its interval.


# --- the metric by share of heads removed ---------------------------------------------------------


def curves_blocks(result: PruneResult) -> Iterator[b.Block]:
    """Show the metric by share of heads removed, with intervals, as a table and as a figure."""
    shares: set[float] = set()
    for curve in result.curves:
        shares |= {round(point.fraction, 3) for point in curve.points}
    table = _shares_table(result, sorted(shares))
    if len(shares) > _FEW_SHARES:
        yield replace(table, on=b.ASKED | b.PAGE)
    else:
        yield replace(table, on=b.ASKED)
        yield from b.behind([_points_table(result.metric, result.curves)])
    yield _chart(
        result,
        title=f"What is left of {model_name(result)} without some of its heads ({result.task})",
        x="heads removed",
        series=_curves_series(result.curves),
        file="curves",
        alt=f"{result.metric} by share of heads removed, one line for each method; the numbers are "
        "in curves.csv.",
    )


def _shares_table(result: PruneResult, shares: Sequence[float]) -> b.Table:
    """Write the metric, a row for each curve and a column for each share of heads removed."""
    metric = result.metric
    shown = spaced(shares)  # as many as fit
    rows = []
    for curve in result.curves:
        values = {round(point.fraction, 3): point.value.value for point in curve.points}
        cells = [number(values.get(share), metric, short=True) for share in shown]
        rows.append([_short_name(curve), *cells])
    columns = ("chosen by", *(f"{share:.0%}" for share in shown))
    title = f"{metric} by share of heads removed"
    if any(curve.method == "random" for curve in result.curves):
        title += " (random: mean of its draws)"
    return b.text_table(columns, rows, title)


def _points_table(metric: str, curves: Sequence[Curve]) -> b.Table:
    """Write every point of some curves, a row each, with its change."""
    rows = [_point_cells(curve, point, metric) for curve, point in _points_of(curves)]
    return b.text_table(_point_columns(metric), rows)


def _points_of(curves: Sequence[Curve]) -> Iterator[tuple[Curve, Point]]:
    """Yield the points where heads were removed, each with its curve."""
    for curve in curves:
        for point in curve.points:
            if point.heads_removed:
                yield curve, point


def _point_columns(metric: str) -> tuple[str, ...]:
    """Name the columns of :func:`_point_cells`."""
    return ("chosen by", "removed", metric, "95%", "change", "95%", "p")


def _point_cells(curve: Curve, point: Point, metric: str) -> list[str]:
    """Write a point: who chose its heads, how many, the metric and its change."""
    value, interval = _cells(point.value, metric)
    change, interval_of_change = _cells(point.difference, metric, signed=True)
    return [
        _short_name(curve),
        f"{point.fraction:.0%}",
        value,
        interval,
        change,
        interval_of_change,
        p_text(point.p_value),
    ]


def _curves_series(curves: Sequence[Curve]) -> list[b.Series]:
    """Draw each method with each repair in its own colour; dashes tell repairs apart, too."""
    colours = itertools.cycle(_COLOURS)  # more than there are ways to choose, then from the first
    one_repair = len({curve.repair for curve in curves}) == 1
    series = []
    for curve in curves:
        if curve.method == "random":
            draws = max((len(point.draws) for point in curve.points), default=0)
            name = f"random: mean and range of {draws} draws"
            series.append(_series(curve, name, b.GREY, "-"))
        else:
            dash = "-" if one_repair else _DASHES[curve.repair]
            series.append(_series(curve, curve.name, next(colours), dash))
    return series


# --- each stack alone -----------------------------------------------------------------------------


def stacks_blocks(result: PruneResult) -> Iterator[b.Block]:
    """Show each stack pruned alone, the areas under the curves, and which are apart."""
    metric = result.metric
    rows = []
    for one_stack in result.stacks:
        for curve, point in _points_of(one_stack.curves):
            rows.append([one_stack.stack, *_point_cells(curve, point, metric)])
    sizes = ", ".join(f"{one_stack.stack} {one_stack.n_heads}" for one_stack in result.stacks)
    # The metric's name stands in the title: as a column it would leave no room for intervals.
    title = f"Each stack pruned alone, the others whole (heads: {sizes}): {metric}"
    yield b.text_table(("stack", *_point_columns("value")), rows, title)
    if result.areas:
        yield _areas_table(result)
        yield b.Text(
            "Intervals (95%): paired bootstrap over examples; for random heads Student's t over "
            "draws.\n* the interval excludes 0",
            "soft",
        )
    yield _chart(
        result,
        title=f"Heads removed from one stack of {model_name(result)}: {result.task}",
        x="heads of that stack removed",
        series=_stacks_series(result),
        file="stacks",
        alt=f"{metric} by share of one stack's heads removed; the numbers are in curves.csv.",
    )


def _areas_table(result: PruneResult) -> b.Table:
    """Write the area under every stack's curves, and the gap between each two stacks once."""
    metric = result.metric
    rows = [
        [area.stack, _short_name(area), *_cells(area.inner, metric), ""] for area in result.areas
    ]
    order = [one_stack.stack for one_stack in result.stacks]
    for gap in result.gaps:
        if order.index(gap.stack) < order.index(gap.other):
            cells = _cells(gap.inner, metric, signed=True)
            mark = "*" if gap.is_apart else ""
            rows.append([f"{gap.stack} - {gap.other}", _short_name(gap), *cells, mark])
    title = "Area under each curve from the first to the last head removed, and differences"
    return b.text_table(("stack", "chosen by", f"mean {metric}", "95%", ""), rows, title)


def _stacks_series(result: PruneResult) -> list[b.Series]:
    """Draw for each stack its first chosen curve, named with its area, and its random one."""
    metric = result.metric
    area_of = {area.stack: area for area in leading_areas(result)}
    series = []
    for one_stack, (colour, pale) in zip(result.stacks, _STACK_COLOURS, strict=False):
        stack = one_stack.stack
        random = next((curve for curve in one_stack.curves if curve.method == "random"), None)
        if random is not None:
            series.append(_series(random, f"{stack}, random heads", pale, ":"))
        chosen = next(iter(chosen_curves(one_stack.curves)), None)
        if chosen is not None:
            name = f"{stack}, {chosen.name}"
            area = area_of.get(stack)
            if area is not None:
                name += f": area {with_interval(area.inner, metric)}"
            series.append(_series(chosen, name, colour, "-"))
    return series


# --- other metrics, a search, scores --------------------------------------------------------------


def other_metrics(result: PruneResult) -> Iterator[b.Block]:
    """Show a task's other metrics, such as BLEU of decoded texts; random heads have none."""
    full = result.baseline.metrics
    names = [name for name in _OTHER_METRICS if name in full and name != result.metric]
    if not names:
        return

    def cells(metrics: Mapping[str, float]) -> list[str]:
        return [number(metrics.get(name), name, short=True) for name in names]

    rows = [["", "full model", "", *cells(full)]]
    curves_of_stacks = [(result.stack, result.curves)]
    curves_of_stacks += [(one_stack.stack, one_stack.curves) for one_stack in result.stacks]
    for stack, curves in curves_of_stacks:
        for curve, point in _points_of(chosen_curves(curves)):
            removed = f"{point.fraction:.0%}"
            rows.append([stack, _short_name(curve), removed, *cells(point.metrics or {})])
    words = ", ".join(METRIC_NAMES[name] for name in names)
    title = f"Greedy decoding: {words}" if result.task == "seq2seq" else f"Also: {words}"
    yield b.text_table(("stack", "chosen by", "removed", *names), rows, title)
    yield b.Text(changed_sentence(result))


def search_blocks(result: PruneResult, search: MaxDrop) -> Iterator[b.Block]:
    """Show what was settled beforehand, every number of heads that was tested, and how sure it is.

    ``search`` is the result's ``max_drop``.
    """
    metric = result.metric
    if search.near:
        rows = [
            [
                way(candidate.method, candidate.repair),
                str(candidate.heads),
                f"{candidate.distance:.4g}",
            ]
            for candidate in search.near
        ]
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


def scores_map(result: PruneResult) -> Iterator[b.HeadMap]:
    """Draw the first method's scores, as shares of the largest absolute score."""
    if not result.scores:
        return
    scores = result.scores[0]
    values: dict[tuple[str, int], float] = {}
    for layer, row in zip(scores.names, scores.values, strict=True):
        for head, score in enumerate(row):
            if score is not None:
                values[layer, head] = score
    largest = max((abs(score) for score in values.values()), default=0.0)
    unit = largest if largest > 0 else 1.0
    yield b.HeadMap(
        f"In which order heads of {model_name(result)} go, by {scores.method}: lowest first",
        "score, as a share of the largest",
        {head: score / unit for head, score in values.items()},
        digits=2,
        file="scores",
        on=b.NOWHERE,
    )


# --- what the tables and figures share ------------------------------------------------------------


def _chart(
    result: PruneResult, *, title: str, x: str, series: Sequence[b.Series], file: str, alt: str
) -> b.Chart:
    """Draw the metric by share of heads removed, with the full model as a level."""
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
    x = [point.fraction for point in curve.points]
    y = []
    band = []
    for point in curve.points:
        value = point.value.value or 0.0  # 0 where it is not known
        y.append(value)
        band.append(point.value.interval or (value, value))
    if len(x) == 1:  # a band would have no width: draw a bar
        low, high = band[0]
        bar = [Estimate(y[0], low, high)]
        return b.Series(name, x, bar, "line", colour, dash=dash, band=band)
    return b.Series(name, x, y, "line", colour, dash=dash, band=band)


def spaced(items: Sequence[Any]) -> Sequence[Any]:
    """Leave out items, evenly, until they fit into a table's columns: of 20 every second one."""
    step = math.ceil(len(items) / _MOST_COLUMNS)
    return items[:: max(1, step)]


def _cells(estimate: Estimate | None, metric: str, *, signed: bool = False) -> tuple[str, str]:
    """Write a value, and its interval with a digit less: ``82.03``, ``[79.8, 84.2]``."""
    if estimate is None:
        return "-", "-"
    value = number(estimate.value, metric, signed=signed)
    short = partial(number, metric=metric, signed=signed, short=True)
    return value, interval_text(estimate.interval, short)


def _short_name(curve: Curve | Area | AreaGap) -> str:
    """Name a curve shortly enough for a column: ``imp.-token +scale``."""
    name = way(curve.method, curve.repair)
    return name.replace("importance", "imp.").replace(" + ", " +")
