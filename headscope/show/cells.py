"""What the terminal tables and CSV files of all commands share: columns, numbers, intervals."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    import pandas

__all__ = [
    "csv_text",
    "frame_csv",
    "interval_text",
    "make_table",
    "model_line",
    "p_text",
    "ratio_text",
    "share_text",
    "tiny",
]


def make_table(*columns: str) -> Table:
    """Start a plain table whose first column is text and whose others are numbers."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    return table


def model_line(result: Any, heads: int | None = None) -> str:
    """Say which model a result is of, and how well our attention equals its own.

    ``heads`` counts all heads, for a model whose layers have different numbers of them.
    """
    model, check = result.provenance["model"], result.validation
    proof = (
        "not validated (--no-validate)"
        if check.passed is None
        else f"our attention equals the model's to {tiny(check.max_abs_hidden)}"
    )
    size = f" x {model['n_heads']} heads" if heads is None else f", {heads} heads"
    return f"Model   {model['id']}: {model['family']}, {model['n_layers']} layers{size}; {proof}"


def frame_csv(frame: pandas.DataFrame) -> str:
    """Write a frame as CSV, without its index."""
    text: str = frame.to_csv(index=False, lineterminator="\n")
    return text


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write rows as CSV with a header line."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()


def tiny(value: float | None) -> str:
    """Write a small number with two digits, or a dash where there is none."""
    return "-" if value is None else f"{value:.1e}"


def ratio_text(value: float | None) -> str:
    """Write a number of any size: three digits, or powers of ten where those would be zeros."""
    return share_text(value) if value is None or abs(value) >= 0.001 or value == 0 else tiny(value)


def interval_text(interval: Sequence[float]) -> str:
    """Write a 95% interval."""
    return f"{interval[0]:.3f}-{interval[1]:.3f}"


def p_text(p: float) -> str:
    """Write a p-value."""
    return "<1e-9" if p < 1e-9 else f"{p:.1e}"


def share_text(value: float | None) -> str:
    """Write a rate with three digits, or a dash where there is none."""
    return "-" if value is None else f"{value:.3f}"
