"""The certificate as a terminal table and CSV."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from headscope.report.cells import csv_text, make_table, tiny
from headscope.results import ValidationResult

__all__ = ["validation_csv", "validation_report"]


def validation_report(result: ValidationResult) -> Iterator[RenderableType]:
    """Show the certificate as a table and a verdict."""
    table = make_table("layer", "calls", "max |pattern - model's|", "max |out - model's|")
    for check in result.layers:
        table.add_row(
            f"{check.stack} {check.layer}",
            str(check.calls),
            tiny(check.max_abs_pattern),
            tiny(check.max_abs_out),
        )
    table.add_section()
    table.add_row(
        "tolerance", "1", f"{result.tolerance['pattern']:.1e}", f"{result.tolerance['out']:.1e}"
    )
    yield table
    yield Text(
        f"Last hidden state: max difference {tiny(result.max_abs_hidden_eager)} from eager, "
        f"{tiny(result.max_abs_hidden_sdpa)} from SDPA (tolerance "
        f"{result.tolerance['hidden']:.1e}), over {result.sequences} sequences, "
        f"{result.tokens} tokens, {result.padded} padded positions."
    )
    model = result.provenance.get("model", {}).get("id", "The model")
    if result.passed:
        yield Text(f"PASSED: headscope's attention reproduces {model}.", style="bold green")
    else:
        yield Text(f"FAILED: {'; '.join(result.reasons)}.", style="bold red")


def validation_csv(result: ValidationResult) -> str:
    """One line per layer."""
    return csv_text(
        ("stack", "layer", "calls", "max_abs_pattern", "max_abs_out"),
        (
            (c.stack, c.layer, c.calls, c.max_abs_pattern, c.max_abs_out)
            for c in result.layers
        ),
    )  # fmt: skip
