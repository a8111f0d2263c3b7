"""The benchmark's table: measured ratios beside those that the multiplications predict."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from headscope.results.speed import SpeedResult, SpeedRow
from headscope.show.cells import make_table, plural


def speed_report(result: SpeedResult) -> Iterator[RenderableType]:
    """Show how long both models take, and how much of the predicted saving arrives."""
    less = 1 - result.parameters_pruned / result.parameters_full
    yield Text(
        f"Speed   {result.heads_full} against {result.heads_pruned} heads, {less:.1%} fewer "
        f"parameters; {result.threads} {plural(result.threads, 'thread')}, {result.device}, "
        f"{result.dtype}, {result.implementation}"
    )
    columns = ("tokens", "full ms", "pruned", "time", "FLOPs", "attention", "FLOPs", "got")
    yield make_table(columns, map(_cells, result.rows))
    yield Text(
        "time: pruned / full, medians of interleaved passes; FLOPs: what the multiplications "
        "predict;\ngot: measured saving of the attention part / predicted saving",
        style="dim",
    )


def _cells(row: SpeedRow) -> Iterator[str]:
    yield f"{row.batch_size} x {row.length}"
    yield f"{row.full_ms:.1f}"
    yield f"{row.pruned_ms:.1f}"
    whole, attention = (row.ratio, row.predicted_ratio), row.attention_ratio
    yield from (f"{x:.2f}x" for x in (*whole, attention, row.attention_predicted_ratio))
    got = row.attention_saving_reached
    yield "-" if got is None else f"{got:.0%}"
