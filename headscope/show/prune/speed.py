"""The benchmark's table: measured ratios beside those that the multiplications predict."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from headscope.results.speed import SpeedResult
from headscope.show.cells import make_table

__all__ = ["speed_report"]


def speed_report(result: SpeedResult) -> Iterator[RenderableType]:
    """Show how long both models take, and how much of the predicted saving arrives."""
    less = 1 - result.parameters_pruned / result.parameters_full
    yield Text(
        f"Speed   {result.heads_full} against {result.heads_pruned} heads, {less:.1%} fewer "
        f"parameters; {result.threads} thread{'s' * (result.threads != 1)}, {result.device}, "
        f"{result.dtype}, {result.implementation}"
    )
    table = make_table("tokens", "full ms", "pruned", "time", "FLOPs", "attention", "FLOPs", "got")
    for row in result.rows:
        table.add_row(
            f"{row.batch_size} x {row.length}",
            f"{row.full_ms:.1f}",
            f"{row.pruned_ms:.1f}",
            f"{row.ratio:.2f}x",
            f"{row.predicted_ratio:.2f}x",
            f"{row.attention_ratio:.2f}x",
            f"{row.attention_predicted_ratio:.2f}x",
            _share(row.attention_saving_reached),
        )
    yield table
    yield Text(
        "time: pruned / full, medians of interleaved passes; FLOPs: what the multiplications "
        "predict;\ngot: measured saving of the attention part / predicted saving",
        style="dim",
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
