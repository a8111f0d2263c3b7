"""The benchmark's table: how many times as fast, beside what the multiplications predict."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from headscope.results.speed import SpeedResult
from headscope.show.cells import make_table, plural

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
