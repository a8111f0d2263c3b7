"""The benchmark's table: measured ratios beside those that the multiplications predict."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from headscope.results.speed import SpeedResult
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
    table = make_table(columns)
    for row in result.rows:
        whole = (row.ratio, row.predicted_ratio)
        attention = (row.attention_ratio, row.attention_predicted_ratio)
        got = row.attention_saving_reached
        table.add_row(
            f"{row.batch_size} x {row.length}",
            *(f"{time:.1f}" for time in (row.full_ms, row.pruned_ms)),
            *(f"{ratio:.2f}x" for ratio in (*whole, *attention)),
            "-" if got is None else f"{got:.0%}",
        )
    yield table
    yield Text(
        "time: pruned / full, medians of interleaved passes; FLOPs: what the multiplications "
        "predict;\ngot: measured saving of the attention part / predicted saving",
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
    columns = ("tokens", "full ms", "pruned", *int8, "time", "FLOPs", "attention", "FLOPs", "got")
    table = make_table(columns)
    for row, times in found:
        every = (times.full_ms, times.pruned_ms, *((times.int8_ms or 0.0,) if small else ()))
        whole = (times.ratio, row.predicted_ratio)
        attention = (times.attention_ratio, row.attention_predicted_ratio)
        got = row.onnx_saving_reached
        table.add_row(
            f"{row.batch_size} x {row.length}",
            *(f"{time:.1f}" for time in every),
            *(f"{ratio:.2f}x" for ratio in (*whole, *attention)),
            "-" if got is None else f"{got:.0%}",
        )
    yield table
