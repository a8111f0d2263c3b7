"""What is shown of ``prune``: the answer, the curves, stacks, single heads, and what was saved."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headscope.core.heads import place_name
from headscope.core.roles import role_name, role_of
from headscope.core.safe_text import visible
from headscope.pruning.result import (
    Area,
    AreaGap,
    Curve,
    DropLook,
    HeadEffect,
    MaxDrop,
    Point,
    PruneResult,
    SpeedResult,
)
from headscope.removal.metric_words import (
    METRIC_NAMES,
    SHORT_NAMES,
    amount,
    change_words,
    number,
    percent,
    span,
)
from headscope.show import blocks as b
from headscope.show.cells import csv_text, model_line, model_name, p_text, plural, to_csv
from headscope.show.folders import folder_files, names_of
from headscope.show.page.parts import Card, Place, Scale
from headscope.show.terminal import terminal
from headscope.show.view import KeyNumber, View, next_step
from headscope.stats.estimate import Estimate

STACK_NAMES = {
    "encoder": "the encoder's self-attention",
    "decoder": "the decoder's self-attention",
    "cross": "cross-attention",
}
#: What opens a folder, by what its result says.
_OPENS = {
    "import headscope": "headscope.load (transformers too, after headscope.register())",
    "trust_remote_code": "AutoModel.from_pretrained(..., trust_remote_code=True)",
    "transformers": "AutoModel.from_pretrained",
}
_COLOURS = (b.BLUE, b.VERMILION, b.GREEN, b.PURPLE, b.ORANGE, b.SKY, b.BLACK, "#B8860B")
_MOST_ALONE = 8  # Heads named in the table of heads removed alone: those that hurt most.
_MOST_QUERIES = 8  # Queries named in a sentence; all of them are in the JSON.
#: Metrics beside a task's value that stand in a table of their own.
_OTHERS = (
    *("exact_match", "bleu", "bleu_characters", "ndcg_at_10", "recall_at_10", "top_10_changed"),
    *("kendall_tau", "word_accuracy"),
)
_MOST_COLUMNS = 11  # Columns of shares of heads removed at most.


def blocks(result: PruneResult) -> Iterator[b.Block]:
    """Show the answer first, then every table behind it."""
    yield b.Text(verdict(result), "lead")
    if result.speed is not None:
        yield b.Text(speed_sentence(result.speed))
    yield b.Text(stacks_sentence(result))
    for warning in result.warnings:
        yield b.Text(f"Warning: {visible(warning)}", "warning")
    yield from _removed_map(result)
    yield from _curves(result)
    yield from b.behind(_tables(result))
    yield from _kept(result)
    yield b.Text(_run_lines(result), "soft", on=b.TERMINAL)
    if not result.saved:
        yield next_step(result, "keep a smaller model:", "prune {} --fraction 0.5 --save smaller")


def _tables(result: PruneResult) -> Iterator[b.Block]:
    """Show what stands behind the answer."""
    if result.stacks:
        yield from _stacks(result)
    yield from _other_metrics(result)
    if result.max_drop is not None:
        yield from _search(result, result.max_drop)
    yield from _survivors(result)
    yield from _single_heads(result)
    yield from _scores(result)


def _removed_map(result: PruneResult) -> Iterator[b.HeadMarks]:
    """Mark the heads that the first sentence's point removes."""
    leading = leading_point(result)
    if leading is None or not result.scores or not leading[1].heads_removed:
        return
    gone = {place_name(place) for place in leading[1].heads_removed}
    marks: dict[tuple[str, int], tuple[str, str]] = {}
    for layer, row in zip(result.scores[0].names, result.scores[0].values, strict=True):
        for head in (i for i, score in enumerate(row) if score is not None):
            marks[layer, head] = ("-", "dim") if f"{layer}H{head}" in gone else ("kept", "bold")
    method = _name(leading[0].method, leading[0].repair)
    legend = f"kept and removed (-) at {leading[1].fraction:.0%} by {method}"
    yield b.HeadMarks(marks, legend)


def _run_lines(result: PruneResult) -> str:
    """Say on which model and data the result was measured, a line each."""
    metric, data, model = result.metric, result.data, result.provenance.get("model", {})
    lines = [model_line(result, result.n_heads).plain]
    if result.shared_layers:
        lines.append("        Layers share their weights: a head is removed from all of them.")
    removed = (p.heads_removed for c in result.curves for p in c.points if p.heads_removed)
    if result.stack == "all":
        each = "; then each stack alone" if result.stacks else ""
        lines.append(f"Stack   all: the heads of all stacks in one ranking{each}")
    elif result.stack != "encoder" or len(next(removed, ((),))[0]) == 3:
        lines.append(f"Stack   {result.stack}: {STACK_NAMES[result.stack]}")
    lines.append(f"Task    {result.task}: {METRIC_NAMES[metric]}")
    pooling, origin = model.get("pooling"), model.get("pooling_from")
    usual = origin != "option" and pooling in (None, "mean", "mean, normalize")
    if result.task in ("fidelity", "similarity", "retrieval") and not usual:
        source = "as asked for" if origin == "option" else f"as the model's {origin} says"
        lines.append(f"Pooling {pooling}, {source}")
    drawn = f"; {data.drawn}" if data.drawn else ""
    counts = f"{data.examples:,} examples, {data.skipped:,} skipped"
    lines.append(f"Data    {data.name}: {counts}{drawn}")
    if (calibration := result.calibration) is not None:
        how = "with labels" if calibration.labels else "no labels used"
        lines.append(f"Chosen  on {calibration.name}: {calibration.examples:,} examples, {how}")
    full = f"Full    {number(result.baseline.value, metric)}"
    if result.baseline.ci:
        full += f" (95% interval {span(result.baseline.ci, metric)})"
    if result.measured_examples != data.examples:
        full += f", on the {result.measured_examples:,} examples that were tested on"
    return "\n".join([*lines, full])


def verdict(result: PruneResult) -> str:
    """Say what is left of the metric at one point, which was settled before it was measured.

    That is the number that ``max_drop`` confirmed, the model that is kept, the heads that were
    named, or else :func:`leading_point`. What may be lost is the bad end of the paired interval.
    """
    metric = result.metric
    name = SHORT_NAMES.get(metric, metric)
    if (search := result.max_drop) is not None:
        part = search.confirmed
        text = (
            f"{search.count} of {result.n_heads} heads ({search.count / result.n_heads:.0%}) are "
            f"confirmed to cost at most {amount(search.wanted, metric)}: {name} "
            f"{number(part.baseline, metric)} -> {number(part.value, metric)} without them "
            f"({_name(search.method, search.repair)}); "
            f"{change_words(metric, part.difference, part.ci, part.level)}. "
        )
        return text + scheme_words(metric, search, result.data.examples)
    leading = leading_point(result)
    if leading is None:
        return "Nothing was removed."
    curve, point = leading
    heads = f"{len(point.heads_removed)} of {result.n_heads}"
    repair = "" if curve.repair == "none" else f"repair {curve.repair}"
    by = f"{curve.method}{repair and f', {repair}'}"
    if result.task == "fidelity" and curve.method != "manual":
        # The full model is at 1 by definition: what is lost is plain from the value itself.
        random = None if curve.method == "random" else _random_beside(result, point)
        return (
            f"With {heads} heads removed ({by}) the pooled states keep a cosine of "
            f"{number(point.value, metric)} to the full model's "
            f"({'draws' if point.draws else '95%'}: {span(point.ci, metric)})"
            f"{'' if random is None else f'; random heads: {number(random.value, metric)}'}."
        )
    if curve.method == "manual":
        text = f"Without these {heads} heads{repair and f' ({repair})'}"
    elif curve.method == "random":
        text = f"With {heads} heads removed at random"
    else:
        text = f"With {heads} heads removed ({by})"
    text += f": {name} {number(result.baseline.value, metric)} -> {number(point.value, metric)}"
    if curve.method == "random":
        return f"{text}, mean of {len(point.draws)} draws ({span(point.ci, metric)})."
    return f"{text}; {change_words(metric, point.difference, point.difference_ci, point.level)}."


def scheme_words(metric: str, search: MaxDrop, of: int) -> str:
    """Say what a search settled beforehand, on how many of the ``of`` examples it tested what.

    Two sentences, for the headline and for cards.
    """
    refused = ", ".join(_refusal(metric, look) for look in search.refusals)
    examples = f"all {of:,} examples"
    if search.left_out:
        examples = (
            f"the {search.confirmed.examples:,} of {of:,} examples that share no sentence with "
            "what heads were chosen on"
        )
    n = len(search.sequence)
    order = f"the order of {n} numbers of heads" if n > 1 else "the number of heads"
    end = f"up to the first refusal: {refused}" if refused else "and none was refused"
    return (
        f"Which heads go, the repair and {order} were settled beforehand, without these examples. "
        f"The numbers were tested one after the other, each on {examples}, {end}."
    )


def _refusal(metric: str, look: DropLook) -> str:
    """``41 heads (up to 0.62 points, 95%)``."""
    lost = f"up to {amount(look.most_lost, metric)}"
    if look.most_lost < 0:
        lost = f"a gain of {amount(-look.most_lost, metric)} or more"
    return f"{look.heads} heads ({lost}, {percent(look.level)})"


def leading_point(result: PruneResult) -> tuple[Curve, Point] | None:
    """Return the curve and the point that are spoken of; their values have no say in the choice.

    The model that is kept; else, of the method and repair that were named first, the point nearest
    to half of the heads. None where nothing was removed anywhere.
    """
    kept = result.kept
    curves = _chosen(result.curves) or list(result.curves)
    if kept is not None:
        curves = [result.curve(kept.method, kept.repair)]
    for curve in curves:
        points = [point for point in curve.points if point.heads_removed]
        if points:
            return curve, min(points, key=lambda point: abs(point.fraction - 0.5))
    return None


def stacks_sentence(result: PruneResult) -> str:
    """Say which stack's curve is lowest, and whether it is apart from the others."""
    areas, metric = _leading_areas(result), result.metric
    if not areas:
        return ""
    method, repair = areas[0].method, areas[0].repair
    lowest = min(areas, key=lambda area: result.sign * area.compared[0])
    others = []
    for gap in result.gaps:
        if (gap.method, gap.repair, gap.other) == (method, repair, lowest.stack):
            change, interval = _change(*gap.compared, metric)
            doubt = "" if _is_apart(gap) else "; not clearly different"
            others.append(f"{STACK_NAMES[gap.stack]} {change} ({interval}{doubt})")
    return (
        f"Stack by stack ({_name(method, repair)}), {STACK_NAMES[lowest.stack]} is the costliest "
        f"to prune: mean {metric} {number(lowest.compared[0], metric)}; compared with that, "
        f"{' and '.join(others)}."
    )


def _curves(result: PruneResult) -> Iterator[b.Block]:
    """Show the metric by share of heads removed, with intervals, as a table and as a figure."""
    metric = result.metric
    shares = sorted({round(p.fraction, 3) for c in result.curves for p in c.points})
    many = len(shares) > 6
    shown = _spaced(shares)
    rows = []
    for curve in result.curves:
        values = {round(point.fraction, 3): point.value for point in curve.points}
        cells = (number(values.get(share), metric, short=True) for share in shown)
        rows.append([_short_name(curve.method, curve.repair), *cells])
    title = f"{metric} by share of heads removed (random: mean of its draws)"
    heads: tuple[str, ...] = ("chosen by", *(f"{share:.0%}" for share in shown))
    table = b.text_table(heads, rows, title)
    yield table if many else replace(table, on=b.TERMINAL)
    if not many:
        level = percent(max((p.level for c in result.curves for p in c.points), default=0.95))
        rows = [
            [
                _short_name(curve.method, curve.repair),
                f"{point.fraction:.0%}",
                number(point.value, metric),
                _ends(point.ci, metric),
                "-" if point.p_value is None else number(point.difference, metric, signed=True),
                _ends(point.difference_ci, metric, signed=True),
                p_text(point.p_value),
            ]
            for curve in result.curves
            for point in curve.points
            if point.heads_removed
        ]
        heads = ("chosen by", "removed", metric, "95%", "change", level, "p")
        yield from b.behind([b.text_table(heads, rows)])
    methods = dict.fromkeys(curve.method for curve in _chosen(result.curves))
    colours = dict(zip(methods, itertools.cycle(_COLOURS), strict=False))
    dashes = {"none": "--", "scale": ":", "surgeon": "-"}
    alone = len({curve.repair for curve in result.curves}) == 1
    series = []
    for curve in result.curves:
        name, dash = curve.name, "-" if alone else dashes[curve.repair]
        if curve.method == "random":
            draws = max((len(point.draws) for point in curve.points), default=0)
            name, dash = f"random: mean and range of {draws} draws", "-"
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


def _stacks(result: PruneResult) -> Iterator[b.Block]:
    """Show each stack pruned alone, the areas under the curves, and which are apart."""
    metric, stacks = result.metric, [stack.stack for stack in result.stacks]
    columns = [title for stack in stacks for title in (stack, "95%")]
    sizes = ", ".join(f"{stack.stack} {stack.n_heads}" for stack in result.stacks)
    rows = []
    for name, share, points in _points_by_share({s.stack: s.curves for s in result.stacks}):
        row = [_short_name(*name), f"{share:.0%}"]
        for point in map(points.get, stacks):
            row += ["-", "-"]
            if point is not None:
                row[-2:] = number(point.value, metric, short=True), _ends(point.ci, metric)
        rows.append(row)
    title = f"Each stack pruned alone, the others whole (heads: {sizes}): {metric}"
    yield b.text_table(("chosen by", "removed", *columns), rows, title)
    if result.areas:
        areas = {(area.stack, area.method, area.repair): area for area in result.areas}
        gaps = {(gap.stack, gap.other, gap.method, gap.repair): gap for gap in result.gaps}
        pairs = list(itertools.combinations(stacks, 2))
        values, differences = [], []
        for name in dict.fromkeys((area.method, area.repair) for area in result.areas):
            values.append([_short_name(*name)])
            differences.append([_short_name(*name)])
            for mean, ci in (areas[stack, *name].compared for stack in stacks):
                values[-1] += [number(mean, metric), _ends(ci, metric)]
            for gap in (gaps[*pair, *name] for pair in pairs):
                text = number(gap.compared[0], metric, signed=True, short=True)
                ends = _ends(gap.compared[1], metric, signed=True)
                differences[-1].append(f"{text}{'*' if _is_apart(gap) else ''} {ends}")
        inner = all(area.inner is not None for area in result.areas)
        over = "from the first to the last head removed" if inner else "over all shares removed"
        title = f"Area under each curve: mean {metric} {over}"
        yield b.text_table(("chosen by", *columns), values, title)
        yield b.text_table(("difference of areas", *(f"{x} - {y}" for x, y in pairs)), differences)
        yield b.Text(
            "Intervals (95%): paired bootstrap over examples; for random heads Student's t over "
            "draws.\n* the interval excludes 0",
            "soft",
        )
    series, areas_shown = [], {area.stack: area for area in _leading_areas(result)}
    for stack, colour in zip(result.stacks, (b.BLUE, b.GREEN, b.VERMILION), strict=False):
        random = [c for c in stack.curves if c.method == "random"]
        series += [_series(c, f"{stack.stack}, random heads", colour, ":") for c in random[:1]]
        for curve in _chosen(stack.curves)[:1]:
            label = f"{stack.stack}, {curve.name}"
            if (area := areas_shown.get(stack.stack)) is not None:
                mean, ci = area.compared
                label += f": area {number(mean, metric)} ({span(ci, metric)})"
            series.append(_series(curve, label, colour, "-"))
    yield _chart(
        result,
        f"Heads removed from one stack of {model_name(result)}: {result.task}",
        "heads of that stack removed",
        series,
        "stacks",
        f"{metric} by share of one stack's heads removed; the numbers are in curves.csv.",
    )


def _other_metrics(result: PruneResult) -> Iterator[b.Block]:
    """Show a task's other metrics, such as what decoding tells; draws of random heads have none."""
    full = result.baseline.metrics
    names = [name for name in _OTHERS if name in full and name != result.metric]
    if not names:
        return

    def values(metrics: Mapping[str, float] | None) -> str:
        if not metrics:
            return "-"
        return " / ".join(number(metrics.get(name), name, short=True) for name in names)

    parts = {result.stack: _chosen(result.curves)}
    parts |= {stack.stack: _chosen(stack.curves) for stack in result.stacks}
    rows = []
    for name, share, points in _points_by_share(parts):
        cells = (values(points[stack].metrics if stack in points else None) for stack in parts)
        rows.append([_short_name(*name), f"{share:.0%}", *cells])
    what = " / ".join(METRIC_NAMES[name] for name in names)
    title = f"{'Greedy decoding' if result.task == 'seq2seq' else 'Also'}, {what}: full model "
    yield b.text_table(("chosen by", "removed", *parts), rows, title + values(full))
    yield b.Text(changed_sentence(result))


def changed_sentence(result: PruneResult) -> str:
    """Name the queries whose first ten documents changed, at the point that headlines speak of."""
    leading = leading_point(result)
    if leading is None or leading[1].changed is None:
        return ""
    point, names = leading[1], leading[1].changed
    few = ", ".join(visible(name) for name in names[:_MOST_QUERIES])
    more = f" and {len(names) - _MOST_QUERIES:,} more" if len(names) > _MOST_QUERIES else ""
    return (
        f"With {len(point.heads_removed)} of {result.n_heads} heads removed {len(names):,} of "
        f"{result.measured_examples:,} queries find other documents among their first "
        f"ten{': ' if names else ''}{few}{more}."
    )


def _search(result: PruneResult, search: MaxDrop) -> Iterator[b.Block]:
    """Show what was settled beforehand, every number that was tested, and how sure it is."""
    metric = result.metric
    if search.near:
        rows = [[_name(n.method, n.repair), str(n.heads), f"{n.distance:.4g}"] for n in search.near]
        yield b.text_table(
            ("way to prune", "heads", "squared distance"),
            rows,
            "Settled beforehand on the calibration data, without labels: the way whose outputs "
            "stay nearest to the whole model's",
        )
    rows = [
        [
            *(_name(look.method, look.repair), str(look.heads), number(look.lost, metric)),
            *(number(look.most_lost, metric), percent(look.level)),
            "confirmed" if look.allowed else "refused",
        ]
        for look in search.looks
    ]
    yield b.text_table(
        ("", "heads", "loss", "at most", "level", ""),
        rows,
        f"Heads that cost at most {amount(search.wanted, metric)}: {search.count} of "
        f"{result.n_heads}, on {search.confirmed.examples:,} examples",
    )
    numbers = ", ".join(map(str, search.sequence))
    yield b.Text(
        f"Numbers of heads in the order settled beforehand: {numbers}. The first that is refused "
        "ends the tests. At most 1 in 40 runs like this one confirms a number that costs more (as "
        "far as the intervals hold). A larger number may be allowed too: it was not tested.",
        "soft",
    )


def _survivors(result: PruneResult) -> Iterator[b.Block]:
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
    x, series = [point.fraction for point, _ in points], []
    for i, (role, count) in enumerate(start.items()):
        if count:
            y = [100 * left[role] / count for _, left in points]
            name, colour = f"{role_name(role)} ({count})", role_of(role).colour
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


def _single_heads(result: PruneResult) -> Iterator[b.Block]:
    """Show heads removed alone, and heads left alone in their layers."""
    metric = result.metric

    def table(name: str, effects: Sequence[HeadEffect], title: str) -> b.Table:
        rows = [
            [
                *(row.name, number(row.value, metric)),
                *_change(row.difference, row.difference_ci, metric),
                *(p_text(row.p_adjusted), "*" if row.significant else ""),
            ]
            for row in effects
        ]
        return b.text_table((name, metric, "change", "95% interval", "adj. p", ""), rows, title)

    if result.ablation:
        ranked = sorted(result.ablation, key=lambda row: result.sign * row.difference)
        changes = [result.sign * row.difference for row in ranked if row.significant]
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
            {(row.layer_name, row.head): row.difference for row in result.ablation},
            digits=3 if metric in ("cosine", "loss") else 2,
            file="ablation",
            on=b.NOWHERE,
        )
    if result.kept_alone:
        title = "All heads of one layer removed but the best (chosen on the calibration data)"
        yield table("head left", result.kept_alone, title)


def _scores(result: PruneResult) -> Iterator[b.HeadMap]:
    """Draw the first method's scores, as shares of the largest absolute score."""
    for scores in result.scores[:1]:
        rows = dict(zip(scores.names, scores.values, strict=True))
        values = {(name, i): v for name, row in rows.items() for i, v in enumerate(row)}
        unit = max((abs(v) for v in values.values() if v is not None), default=0.0) or 1.0
        yield b.HeadMap(
            f"{scores.method}: heads of {model_name(result)}",
            f"score / {unit:.3g}",
            {place: None if v is None else v / unit for place, v in values.items()},
            digits=2,
            file="scores",
            on=b.NOWHERE,
        )


def _kept(result: PruneResult) -> Iterator[b.Text]:
    """Say which model was saved and why, and how fast it is."""
    if (kept := result.kept) is None or (saved := result.saved) is None:
        return
    count = round(kept.fraction * result.n_heads)
    text = f"Kept    {_name(kept.method, kept.repair)}: {count} of {result.n_heads} heads removed"
    if kept.candidates:
        digits = 4 if result.metric in ("cosine", "loss") else 2
        values = ", ".join(
            f"{_name(c.method, c.repair)} {c.value:.{digits}f}" for c in kept.candidates
        )
        text += f"; the best of {len(kept.candidates)} on the calibration data ({values})"
    yield b.Text(f"{text}.")
    yield b.Text(
        visible(
            f"Saved to {saved.folder}: heads removed for real; {_OPENS[saved.opens]} opens it. "
            f"Loaded again and measured: {result.metric} {number(saved.measured, result.metric)}, "
            f"on the curve {number(saved.value, result.metric)}; largest difference of any output "
            f"{saved.max_difference:.1e}."
        )
    )


def speed_sentence(speed: SpeedResult) -> str:
    """Say how many times as fast the saved model is, and how much smaller."""
    times = number_of_times(speed.speed)
    less = 1 - speed.parameters_pruned / speed.parameters_full
    return (
        f"It is {times} times as fast as the whole model (torch, batches of {speed.batch_size} "
        f"texts, {speed.threads} {plural(speed.threads, 'thread')}, {speed.device}), with "
        f"{less:.1%} fewer parameters."
    )


def number_of_times(speed: Estimate) -> str:
    """Write a ratio with its interval: ``1.42 (1.38 to 1.47)``."""
    text = f"{speed.value:.2f}"
    ends = speed.interval
    return text if ends is None else f"{text} ({ends[0]:.2f} to {ends[1]:.2f})"


def _chart(
    result: PruneResult, title: str, x: str, series: Sequence[b.Series], file: str, alt: str
) -> b.Chart:
    return b.Chart(
        *(title, x, METRIC_NAMES[result.metric], series, alt, file),
        levels={"full model": result.baseline.value},
        x_scale="percent",
        size=(7.5, 5.0),
    )


def _series(curve: Curve, name: str, colour: str, dash: Any) -> b.Series:
    """Draw a curve with its intervals, or the range of random heads, as a band."""
    x, y = [p.fraction for p in curve.points], [p.value for p in curve.points]
    band = [(p.ci[0], p.ci[1]) if p.ci else (p.value, p.value) for p in curve.points]
    if len(x) == 1:  # a band of no width
        bar = [Estimate(y[0], *band[0])]
        return b.Series(name, x, bar, "line", colour, dash=dash, band=band)
    return b.Series(name, x, y, "line", colour, dash=dash, band=band)


def _chosen(curves: Iterable[Curve]) -> list[Curve]:
    """Leave out random heads."""
    return [curve for curve in curves if curve.method != "random"]


def _random_beside(result: PruneResult, point: Point) -> Point | None:
    """Return the point of as many random heads."""
    points = (p for c in result.curves if c.method == "random" for p in c.points)
    return next((p for p in points if p.fraction == point.fraction), None)


def _leading_areas(result: PruneResult) -> list[Area]:
    """Return every stack's area under the first curve that chooses heads."""
    first = next(iter(_chosen(result.curves)), None)
    name = (first.method, first.repair) if first is not None else ("random", "none")
    return [area for area in result.areas if (area.method, area.repair) == name]


def _is_apart(gap: AreaGap) -> bool:
    """Whether the interval of a gap excludes 0."""
    _, (low, high) = gap.compared
    return low > 0 or high < 0


def _points_by_share(
    parts: Mapping[str, Sequence[Curve]],
) -> Iterator[tuple[tuple[str, str], float, dict[str, Point]]]:
    """Yield method and repair, the share of heads removed, and each part's point there."""
    shares: dict[tuple[str, str], dict[float, dict[str, Point]]] = {}
    for part, curves in parts.items():
        for curve in curves:
            points = shares.setdefault((curve.method, curve.repair), {})
            for point in curve.points:
                if point.heads_removed:
                    points.setdefault(round(point.fraction, 3), {})[part] = point
    for name, points in shares.items():
        for share, at_share in sorted(points.items(), key=lambda item: item[0]):
            yield name, share, at_share


def _spaced(items: Sequence[Any]) -> Sequence[Any]:
    """Leave out items, evenly, until they fit."""
    return items[:: max(1, -(-len(items) // _MOST_COLUMNS))]


def _ends(ci: Sequence[float] | None, metric: str, signed: bool = False) -> str:
    """Write both ends of an interval shortly."""
    return " ".join(number(end, metric, signed=signed, short=True) for end in ci or ()) or "-"


def _change(difference: float, ci: Sequence[float] | None, metric: str) -> tuple[str, str]:
    """Write a change of the metric, and its interval."""
    return number(difference, metric, signed=True), span(ci, metric, signed=True)


def _name(method: str, repair: str) -> str:
    """Name a method with its repair: ``fisher + scale``."""
    return method if repair == "none" else f"{method} + {repair}"


def _short_name(method: str, repair: str) -> str:
    """Name a curve shortly enough for a column: ``imp.-token +scale``."""
    added = f" +{repair}" if repair != "none" else ""
    return f"{method.replace('importance', 'imp.')}{added}"


def cards(result: PruneResult, places: Sequence[Place]) -> Iterator[Card]:
    """Rank of every known head, when it is removed first, and what the model is without it.

    The page has a place for each head of one stack: the encoder, or the only one that was pruned.
    """
    here = "encoder" if result.stack == "all" else result.stack
    scores: dict[Place, float] = {}
    for first in result.scores[:1]:
        for (stack, layer), row in zip(first.places, first.values, strict=True):
            if stack == here:  # a row counts the heads that its layer still has
                heads = [place for place in places if place[0] == layer]
                scores |= zip(heads, [v for v in row if v is not None], strict=False)
    order = sorted(scores, key=lambda place: -scores[place])
    ranks = {place: rank for rank, place in enumerate(order, start=1)}
    removed: dict[Place, tuple[float, str]] = {}
    for curve in _chosen(result.curves)[:1]:
        for point in sorted(curve.points, key=lambda p: p.fraction):
            for *stack_of, layer, head in point.heads_removed:
                if not stack_of or stack_of[0] == here:
                    removed.setdefault((layer, head), (point.fraction, curve.method))
    alone = {(row.layer, row.head): row for row in result.ablation if row.stack == here}
    for place in places:
        card = Card(*place, values={"importance": ranks.get(place)})
        if place in ranks:
            by = f"by {result.scores[0].method} (1 is kept longest)"
            card.facts.append(("Pruning rank", f"{ranks[place]} of {len(ranks)} {by}"))
        if place in removed:
            fraction, method = removed[place]
            text = f"at {fraction:.0%} of heads ({method})" if fraction else "never"
            card.facts.append(("First removed", text))
        if place in alone:
            effect, metric = alone[place], result.metric
            change, interval = _change(effect.difference, effect.difference_ci, metric)
            text = f"{change} {metric} ({interval}, adj. p {p_text(effect.p_adjusted)})"
            card.facts.append(("Removed alone", text))
        yield card


def key_numbers(result: PruneResult) -> Iterator[KeyNumber]:
    """What a search confirmed, and the point that the headline speaks of against random heads."""
    metric = result.metric
    if (search := result.max_drop) is not None:
        part = search.confirmed
        yield KeyNumber(
            f"heads confirmed to cost at most {amount(search.wanted, metric)} of {metric}",
            f"{search.count} of {result.n_heads}",
            change_words(metric, part.difference, part.ci, part.level),
            Estimate(search.count),
        )
    leading = leading_point(result)
    if leading is None or leading[0].method == "random":
        return
    curve, point = leading
    random = _random_beside(result, point)
    interval = f" [{span(point.ci, metric)}]" if point.ci else ""
    yield KeyNumber(
        f"{metric} with {point.fraction:.0%} of heads removed",
        f"{number(point.value, metric)}{interval} by {curve.name}",
        f"whole model {number(result.baseline.value, metric)}"
        + (f", random heads {number(random.value, metric)}" if random else ""),
        Estimate(point.value, *(point.ci or ())),
    )


def _files(result: PruneResult) -> dict[str, bytes]:
    """Return curves.csv, the other tables that there are, and the figures."""
    from headscope.show.figures import figures_of

    tables = {"curves": to_csv(result)}
    header: tuple[str, ...]
    rows: list[Sequence[Any]]
    if result.scores:
        layers = zip(*(scores.values for scores in result.scores), strict=True)
        rows = [
            (layer, head, stack, *values)
            for (stack, layer), by_method in zip(result.scores[0].places, layers, strict=True)
            for head, values in enumerate(zip(*by_method, strict=True))
            if values[0] is not None
        ]
        header = ("layer", "head", "stack", *(scores.method for scores in result.scores))
        tables["scores"] = csv_text(header, rows)
    if result.max_drop is not None:
        header = ("method", "repair", "heads", "lost", "most_lost", "level", "allowed")
        looks = result.max_drop.looks
        tables["max_drop"] = csv_text(header, [[getattr(x, n) for n in header] for x in looks])
    unknown = (None, None)
    if result.areas:
        header = ("stack", "less", "method", "repair", "area", "low", "high")
        rows = [
            (a.stack, "", a.method, a.repair, a.value, *a.ci, a.inner, *(a.inner_ci or unknown))
            for a in result.areas
        ]
        rows += [
            [
                *(g.stack, g.other, g.method, g.repair, g.difference, *g.ci),
                *(g.inner, *(g.inner_ci or unknown)),
            ]
            for g in result.gaps
        ]
        tables["areas"] = csv_text((*header, "inner", "inner_low", "inner_high"), rows)
    if result.ablation:
        header = ("layer", "head", "stack", "value", "ci_low", "ci_high", "difference")
        header += ("difference_ci_low", "difference_ci_high", "p_value", "p_adjusted")
        for name in ("ablation", "kept_alone"):
            rows = [
                [
                    *(x.layer, x.head, x.stack, x.value, *(x.ci or unknown), x.difference),
                    *(*(x.difference_ci or unknown), x.p_value, x.p_adjusted, x.significant),
                ]
                for x in getattr(result, name)
            ]
            tables[name] = csv_text((*header, "significant"), rows)
    return folder_files(tables, dict(figures_of(blocks(result))))


VIEW = View(
    lambda result: terminal(blocks(result)),
    _files,
    stale=names_of(
        *(
            "areas",
            "stacks",
            "scores",
            "survivors",
            "ablation",
            "kept_alone",
            "max_drop",
        )
    ),
    facts=cards,
    scales=(Scale("importance", "Pruning rank (1 is kept longest)"),),
    key_numbers=key_numbers,
    title="Pruning",
    blocks=blocks,
)
