"""Terminal tables of ``prune``, drawn from its result; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from headscope.pruning import words
from headscope.pruning.kept_result import SpeedResult
from headscope.pruning.result import (
    Curve,
    DropLook,
    DropPart,
    EvenPrice,
    HeadEffect,
    MaxDrop,
    Point,
    PruneResult,
)
from headscope.pruning.words import decoded_report, number, stacks_report
from headscope.show.cells import csv_text, make_table, model_line, p_text, plural

_MOST_ALONE = 8  # Heads named in the table of heads removed alone: those that hurt most.
_MOST_COLUMNS = 11  # Columns of shares of heads removed at most.


def prune_report(result: PruneResult) -> Iterator[RenderableType]:
    """Show what was run, the curves, what survives, the tables of single heads, what was kept."""
    yield from _header(result)
    yield from _curves(result)
    yield from stacks_report(result)
    yield from decoded_report(result)
    if result.max_drop is not None:
        yield from max_drop_report(result, result.max_drop)
    yield from even_report(result)
    yield from _survivors(result)
    yield from _single_heads(result)
    yield from _kept(result)
    yield Text("\n" + words.verdict(result), style="bold")
    for sentence in (words.stacks_sentence(result), words.even_sentence(result)):
        if sentence is not None:
            yield Text(sentence, style="bold")
    for warning in result.warnings:
        yield Text(f"Warning: {warning}", style="yellow")


def _header(result: PruneResult) -> Iterator[Text]:
    yield model_line(result, result.n_heads)
    if result.shared_layers:
        yield Text("        Layers share their weights: one decision for a head of all layers.")
    if (line := words.stack_line(result)) is not None:
        yield Text(f"Stack   {result.stack}: {line}")
    yield Text(f"Task    {result.task}: {words.METRIC_NAMES[result.metric]}")
    if (line := words.pooling_line(result)) is not None:
        yield Text(f"Pooling {line}")
    data = result.data
    yield Text(f"Data    {data.name}: {data.examples:,} examples, {data.skipped:,} skipped")
    if (chosen := result.calibration) is not None:
        how = "with labels" if chosen.labels else "no labels used"
        yield Text(f"Chosen  on {chosen.name}: {chosen.examples:,} examples, {how}")
    full, interval = number(result.baseline.value, result.metric), result.baseline.ci
    half = result.measured_examples
    where = "" if half == data.examples else f", on the {half:,} that had no say in the choice"
    known = f" (95% interval {words.span(interval, result.metric)})" if interval else ""
    yield Text(f"Full    {full}{known}{where}")


def _curves(result: PruneResult) -> Iterator[RenderableType]:
    yield Text("")
    fractions = sorted({round(p.fraction, 3) for c in result.curves for p in c.points})
    if len(fractions) > 6:
        yield _wide(result, fractions)
        yield Text(
            "columns: share of heads removed; 'random' is the mean of its draws.\nIntervals and "
            "paired differences are in the CSV and JSON.",
            style="dim",
        )
        return
    level = words.percent(max((p.level for c in result.curves for p in c.points), default=0.95))
    yield make_table(
        ("removed by", "heads", result.metric, "95%", "change", level, "p"),
        (
            _point_cells(result, curve, point)
            for curve in result.curves
            for point in curve.points
            if point.heads_removed
        ),
    )


def _point_cells(result: PruneResult, curve: Curve, point: Point) -> list[str]:
    def range_of(ci: tuple[float, ...] | None, signed: bool = False) -> str:
        if ci is None:
            return "-"
        return " ".join(number(v, result.metric, signed=signed, short=True) for v in ci)

    known = point.p_value is not None
    return [
        words.short_name(curve.method, curve.repair),
        f"{point.fraction:.0%}",
        number(point.value, result.metric),
        range_of(point.ci),
        number(point.difference, result.metric, signed=True) if known else "-",
        range_of(point.difference_ci, signed=True),
        p_text(point.p_value),
    ]


def _wide(result: PruneResult, fractions: list[float]) -> RenderableType:
    """One row per curve, one column per fraction."""
    shown = _spaced(fractions)
    table = make_table(("removed", *(f"{fraction:.0%}" for fraction in shown)))
    for curve in result.curves:
        known = {round(point.fraction, 3): point.value for point in curve.points}
        cells = (number(known.get(f), result.metric, short=True) for f in shown)
        table.add_row(words.short_name(curve.method, curve.repair), *cells)
    return table


def _spaced(items: Sequence[Any]) -> Sequence[Any]:
    """Leave out items, evenly, until they fit."""
    return items[:: max(1, -(-len(items) // _MOST_COLUMNS))]


def _survivors(result: PruneResult) -> Iterator[RenderableType]:
    """Which kinds of heads are left, for the first curve that knows."""
    curve = next((c for c in result.curves if c.points[-1].roles_left is not None), None)
    if curve is None or not result.roles:
        return
    yield Text(
        f"\nWhich kinds survive ({curve.method}; roles from {result.roles_from}; a head can have "
        "several):"
    )
    points = _spaced([(p, p.roles_left) for p in curve.points if p.roles_left is not None])
    table = make_table(("heads left", *(f"{point.fraction:.0%}" for point, _ in points)))
    for role in points[0][1]:
        table.add_row(role, *(str(left.get(role, 0)) for _, left in points))
    table.add_row("all", *(str(result.n_heads - len(p.heads_removed)) for p, _ in points))
    yield table


def _single_heads(result: PruneResult) -> Iterator[RenderableType]:
    """Heads removed alone, and heads left alone in their layers."""
    if result.ablation:
        ranked = sorted(result.ablation, key=lambda row: result.sign * row.difference)
        changes = [result.sign * row.difference for row in ranked if row.significant]
        worse, better = sum(x < 0 for x in changes), sum(x > 0 for x in changes)
        yield Text(
            f"\nEach head removed alone: {worse} of {len(ranked)} make the model "
            f"significantly worse, {better} better (Benjamini-Hochberg, q = 0.05). Most harmful:"
        )
        yield _rows_table("head", result, ranked[:_MOST_ALONE])
    if result.kept_alone:
        yield Text(
            "\nAll heads of one layer removed but the best (chosen on the calibration data):"
        )
        yield _rows_table("head left", result, result.kept_alone)


def _rows_table(name: str, result: PruneResult, rows: Sequence[HeadEffect]) -> RenderableType:
    cells = (
        (
            row.name,
            number(row.value, result.metric),
            number(row.difference, result.metric, signed=True),
            words.span(row.difference_ci, result.metric, signed=True),
            p_text(row.p_adjusted),
            "*" if row.significant else "",
        )
        for row in rows
    )
    return make_table((name, result.metric, "change", "95% interval", "adj. p", ""), cells)


def _kept(result: PruneResult) -> Iterator[RenderableType]:
    if result.kept is not None:
        yield Text("\n" + words.kept_sentence(result, result.kept))
    for saved in result.saved:
        yield Text(words.saved_sentence(saved, result.metric))
    for exported in result.exported:
        yield Text(words.exported_sentence(exported, result.metric))
    for failed in result.failed:
        yield Text(words.failed_sentence(failed), style="yellow")
    if result.speed is not None:
        yield Text("")
        yield from speed_report(result.speed)


_TIMES = ("times as fast", "expected", "attention", "expected")


def speed_report(result: SpeedResult) -> Iterator[RenderableType]:
    """Show how long both models take, and how many times as fast the smaller one is."""
    less = 1 - result.parameters_pruned / result.parameters_full
    yield Text(
        f"Speed   {result.heads_full} against {result.heads_pruned} heads, {less:.1%} fewer "
        f"parameters; {result.threads} {plural(result.threads, 'thread')}, {result.device}, "
        f"{result.dtype}, {result.implementation}"
    )
    table = make_table(("tokens", "full ms", "pruned", *_TIMES))
    for row in result.rows:
        table.add_row(
            f"{row.batch_size} x {row.length}",
            *(f"{time:.1f}" for time in (row.full_ms, row.pruned_ms)),
            *_times(row.ratio, row.predicted_ratio),
            *_times(row.attention_ratio, row.attention_predicted_ratio),
        )
    yield table
    yield Text(
        "times as fast: time of the full model / time of the pruned one, medians of interleaved "
        "passes;\nexpected: by the multiplications",
        style="dim",
    )
    if result.onnxruntime is not None:
        yield from _graphs(result)


def _graphs(result: SpeedResult) -> Iterator[RenderableType]:
    """Show the same of the graphs."""
    yield Text(f"\nThe same as ONNX graphs, onnxruntime {result.onnxruntime} on the CPU")
    found = [(row, row.onnx) for row in result.rows if row.onnx is not None]
    small = any(times.int8_ms is not None for _, times in found)
    int8 = ("int8",) if small else ()
    table = make_table(("tokens", "full ms", "pruned", *int8, *_TIMES))
    for row, times in found:
        every = (times.full_ms, times.pruned_ms, *((times.int8_ms or 0.0,) if small else ()))
        table.add_row(
            f"{row.batch_size} x {row.length}",
            *(f"{time:.1f}" for time in every),
            *_times(times.ratio, row.predicted_ratio),
            *_times(times.attention_ratio, row.attention_predicted_ratio),
        )
    yield table


def _times(*ratios: float) -> list[str]:
    """Turn times of the pruned model over the full one's into how many times as fast it is."""
    return [f"{1 / ratio:.2f}" if ratio > 0 else "-" for ratio in ratios]


def max_drop_report(result: PruneResult, found: MaxDrop) -> Iterator[RenderableType]:
    """Show both halves, one head more, and every model that was tried."""
    name = words.version_name(found.method, found.repair)
    yield Text(
        f"\nA number of heads that is confirmed to cost at most "
        f"{words.amount(found.wanted, result.metric)}: {found.count} of {result.n_heads}, {name}"
    )
    columns = ("", "heads", "examples", result.metric, "change", "interval", "level")
    table = make_table(columns)
    for text, part in _parts(result, found):
        table.add_row(text, *_cells(result, part))
    yield table
    yield Text(f"Tried   {'; '.join(_tried(found.looks))}")
    for sentence in words.search_notes(result, found):
        yield Text(sentence, style="dim")


def _parts(result: PruneResult, found: MaxDrop) -> Iterator[tuple[str, DropPart]]:
    yield "chosen on one half", found.chosen
    if found.refused is not None:
        yield "refused by the other", found.refused
    yield "confirmed on the other", found.confirmed
    if (more := found.one_more) is not None:
        whole = (result.measured_examples, result.baseline.value)
        one_more = DropPart(more.heads, *whole, more.value, more.difference, more.ci, 0.95)
        where = "the same" if found.measured_on == "confirming" else "both halves"
        yield f"one more, {where}", one_more


def _cells(result: PruneResult, part: DropPart) -> tuple[str, ...]:
    return (
        str(part.heads),
        f"{part.examples:,}",
        number(part.value, result.metric),
        number(part.difference, result.metric, signed=True),
        words.span(part.ci, result.metric, signed=True),
        words.percent(part.level),
    )


def _tried(looks: tuple[DropLook, ...]) -> Iterator[str]:
    """Yield what was asked of each candidate on each half: ``fisher-joint: 36 no, 18 yes``."""
    asked: dict[str, list[str]] = {}
    for look in looks:
        name = words.version_name(look.method, look.repair)
        where = name if look.part == "choosing" else "confirming"
        asked.setdefault(where, []).append(f"{look.heads} {'yes' if look.allowed else 'no'}")
    return (f"{where}: {', '.join(answers)}" for where, answers in asked.items())


def looks_csv(found: MaxDrop) -> str:
    """One line for every model that was tried on a half."""
    header = ("method", "repair", "heads", "part", "lost", "most_lost", "level", "allowed")
    rows = [[getattr(look, name) for name in header] for look in found.looks]
    return csv_text(header, rows)


def even_report(result: PruneResult) -> Iterator[RenderableType]:
    """Show what it costs that every layer loses the same number of heads."""
    if not result.even:
        return
    yield Text("\nThe same number of heads from every layer (even), and as many from any (uneven):")
    columns = ("removed by", "a layer", "heads", "even", "uneven", "difference", "95% interval")
    yield make_table(columns, (_price_cells(result, price) for price in result.even))


def _price_cells(result: PruneResult, price: EvenPrice) -> tuple[str, ...]:
    return (
        words.short_name(price.method, price.repair),
        str(price.per_layer),
        str(price.heads),
        number(price.value, result.metric),
        number(price.uneven, result.metric),
        number(price.difference, result.metric, signed=True),
        words.span(price.ci, result.metric, signed=True),
    )


def even_csv(result: PruneResult) -> str:
    """One line for every even model."""
    names = ("method", "repair", "per_layer", "heads", "value", "uneven", "difference")
    rows = [
        [*(getattr(price, name) for name in names), *(price.ci or (None, None))]
        for price in result.even
    ]
    return csv_text((*names, "low", "high"), rows)
