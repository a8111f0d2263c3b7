"""Terminal tables of ``prune``, drawn from its result; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from headscope.results.points import Curve, Point
from headscope.results.prune import HeadEffect, PruneResult
from headscope.show.cells import make_table, model_line, p_text
from headscope.show.prune import words
from headscope.show.prune.beside import decoded_report, stacks_report
from headscope.show.prune.max_drop import even_report, max_drop_report
from headscope.show.prune.speed import speed_report
from headscope.show.prune.words import number

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
