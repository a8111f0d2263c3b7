"""Terminal tables and CSV of ``prune``, drawn from its result; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields

from rich.console import RenderableType
from rich.text import Text

from headscope.results import (
    Curve,
    HeadEffect,
    Point,
    PruneResult,
)
from headscope.show.cells import csv_text, frame_csv, make_table, model_line, p_text
from headscope.show.prune.speed import speed_report
from headscope.show.prune.words import (
    METRIC_NAMES,
    kept_sentence,
    number,
    saved_sentence,
    survivor_sentence,
    verdict,
)

__all__ = ["curves_csv", "effects_csv", "prune_report", "scores_csv"]

#: Heads named in the table of heads removed alone: those that hurt most.
_MOST_ALONE = 8


def prune_report(result: PruneResult) -> Iterator[RenderableType]:
    """Show what was run, the curves, what survives, the tables of single heads, what was kept."""
    yield from _header(result)
    yield from _curves(result)
    yield from _survivors(result)
    yield from _alone(result)
    yield from _kept_alone(result)
    yield from _kept(result)
    yield Text("\n" + verdict(result), style="bold")
    for warning in result.warnings:
        yield Text(f"Warning: {warning}", style="yellow")


def _header(result: PruneResult) -> Iterator[Text]:
    yield Text(model_line(result, result.n_heads))
    if result.shared_layers:
        yield Text("        Layers share their weights: one decision for a head of all layers.")
    yield Text(f"Task    {result.task}: {METRIC_NAMES[result.metric]}")
    data = result.data
    yield Text(f"Data    {data.name}: {data.examples:,} examples, {data.skipped:,} skipped")
    if (chosen := result.calibration) is not None:
        how = "with labels" if chosen.labels else "no labels used"
        yield Text(f"Chosen  on {chosen.name}: {chosen.examples:,} examples, {how}")
    low, high = (number(value, result.metric) for value in result.baseline.ci)
    yield Text(
        f"Full    {number(result.baseline.value, result.metric)} (95% interval {low} to {high})"
    )


# --- curves -----------------------------------------------------------------------------------


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
    table = make_table("removed by", "heads", result.metric, "95%", "change", "95%", "p")
    for curve in result.curves:
        for point in curve.points:
            if point.heads_removed:
                table.add_row(*_point_cells(result, curve, point))
    yield table


def _point_cells(result: PruneResult, curve: Curve, point: Point) -> list[str]:
    def range_of(ci: tuple[float, ...] | None, signed: bool = False) -> str:
        if ci is None:
            return "-"
        return " ".join(number(v, result.metric, signed=signed, short=True) for v in ci)

    known = point.p_value is not None
    return [
        _name(curve),
        f"{point.fraction:.0%}",
        number(point.value, result.metric),
        range_of(point.ci),
        number(point.difference, result.metric, signed=True) if known else "-",
        range_of(point.difference_ci, signed=True),
        p_text(point.p_value) if point.p_value is not None else "-",
    ]


def _name(curve: Curve) -> str:
    """Short enough for a column: ``imp.-token +scale``."""
    repair = f" +{curve.repair}" if curve.repair != "none" else ""
    return f"{curve.method.replace('importance', 'imp.')}{repair}"


def _wide(result: PruneResult, fractions: list[float]) -> RenderableType:
    """One row per curve, one column per fraction (at most eleven)."""
    shown = fractions if len(fractions) <= 11 else fractions[:: (len(fractions) + 10) // 11]
    table = make_table("removed", *[f"{fraction:.0%}" for fraction in shown])
    for curve in result.curves:
        by_fraction = {round(point.fraction, 3): point for point in curve.points}
        cells = [
            number(by_fraction[f].value, result.metric, short=True) if f in by_fraction else "-"
            for f in shown
        ]
        table.add_row(_name(curve), *cells)
    return table


def _survivors(result: PruneResult) -> Iterator[RenderableType]:
    """Which kinds of heads are left, for the first curve that knows."""
    curve = next((c for c in result.curves if c.points[-1].roles_left is not None), None)
    if curve is None or not result.roles:
        return
    yield Text("\n" + survivor_sentence(result, curve))
    points = [p for p in curve.points if p.roles_left is not None]
    points = points if len(points) <= 11 else points[:: (len(points) + 10) // 11]
    table = make_table("heads left", *[f"{point.fraction:.0%}" for point in points])
    roles = list(points[0].roles_left or {})
    for role in roles:
        table.add_row(role, *[str((point.roles_left or {}).get(role, 0)) for point in points])
    lost = [len(point.heads_removed) for point in points]
    table.add_row("all", *[str(result.n_heads - count) for count in lost])
    yield table


# --- single heads -----------------------------------------------------------------------------


def _alone(result: PruneResult) -> Iterator[RenderableType]:
    if not result.ablation:
        return
    sign = 1 if result.higher_is_better else -1
    ranked = sorted(result.ablation, key=lambda row: sign * row.difference)
    worse = sum(row.significant and sign * row.difference < 0 for row in result.ablation)
    better = sum(row.significant and sign * row.difference > 0 for row in result.ablation)
    yield Text(
        f"\nEach head removed alone: {worse} of {len(result.ablation)} make the model "
        f"significantly worse, {better} better (Benjamini-Hochberg, q = 0.05). Most harmful:"
    )
    yield _rows_table("head", result, ranked[:_MOST_ALONE])


def _kept_alone(result: PruneResult) -> Iterator[RenderableType]:
    if not result.kept_alone:
        return
    yield Text("\nAll heads of one layer removed but the best (chosen on the calibration data):")
    yield _rows_table("head left", result, result.kept_alone)


def _rows_table(name: str, result: PruneResult, rows: Sequence[HeadEffect]) -> RenderableType:
    table = make_table(name, result.metric, "change", "95% interval", "adj. p", "")
    for row in rows:
        low, high = (number(value, result.metric, signed=True) for value in row.difference_ci)
        table.add_row(
            row.name,
            number(row.value, result.metric),
            number(row.difference, result.metric, signed=True),
            f"{low} to {high}",
            p_text(row.p_adjusted),
            "*" if row.significant else "",
        )
    return table


def _kept(result: PruneResult) -> Iterator[RenderableType]:
    if result.kept is not None:
        yield Text("\n" + kept_sentence(result, result.kept))
    for saved in result.saved:
        yield Text(saved_sentence(saved, result.metric))
    if result.speed is not None:
        yield Text("")
        yield from speed_report(result.speed)


# --- CSV --------------------------------------------------------------------------------------


def curves_csv(result: PruneResult) -> str:
    """One line per method, repair and fraction."""
    return frame_csv(result.to_frame())


def scores_csv(result: PruneResult) -> str:
    """One line per head, one column per method."""
    rows = []
    first = result.scores[0].values
    for layer, row in enumerate(first):
        for head, value in enumerate(row):
            if value is not None:
                rows.append(
                    (layer, head, *[scores.values[layer][head] for scores in result.scores])
                )
    return csv_text(("layer", "head", *[scores.method for scores in result.scores]), rows)


def effects_csv(rows: Sequence[HeadEffect]) -> str:
    """One line per head removed alone, or left alone in its layer."""
    header = []
    for field in fields(HeadEffect):
        header += (
            [f"{field.name}_low", f"{field.name}_high"] if "ci" in field.name else [field.name]
        )
    lines = []
    for row in rows:
        line: list[object] = []
        for value in asdict(row).values():
            line += list(value) if isinstance(value, tuple) else [value]
        lines.append(line)
    return csv_text(header, lines)
