"""The certificate as a terminal table and CSV."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from headscope.results.validate import LayerCheck, ProbeSize, ValidationResult
from headscope.show.cells import decimal, fields_csv, make_table, tiny


def validation_report(result: ValidationResult) -> Iterator[RenderableType]:
    """Show the certificate as two tables and a verdict."""
    limit = result.tolerance
    table = make_table(("layer", "calls", "max |pattern - model's|", "max |out - model's|"))
    for check in result.layers:
        differences = tiny(check.max_abs_pattern), tiny(check.max_abs_out)
        table.add_row(f"{check.stack} {check.layer}", str(check.calls), *differences)
    table.add_section()
    table.add_row("tolerance", "1", f"{limit['pattern']:.1e}", f"{limit['out']:.1e}")
    yield table
    if result.probes:
        yield from _recomputed(result)
    yield Text(
        f"Last hidden state: max difference {tiny(result.max_abs_hidden_eager)} from eager, "
        f"{tiny(result.max_abs_hidden_sdpa)} from SDPA (tolerance "
        f"{limit['hidden']:.1e}), over {result.sequences} sequences, "
        f"{result.tokens} tokens, {result.padded} padded positions."
    )
    if result.probes:
        yield Text(f"Probes: {'; '.join(map(_probe, result.probes))}.")
    model = result.provenance.get("model", {}).get("id", "The model")
    if result.passed:
        yield Text(f"PASSED: headscope's attention reproduces {model}.", style="bold green")
    else:
        yield Text(f"FAILED: {'; '.join(result.reasons)}.", style="bold red")


def _recomputed(result: ValidationResult) -> Iterator[RenderableType]:
    """Show what recomputing from recorded q, k, v and z in float32 or better says."""
    limit = result.tolerance
    rounding, scale = decimal(limit["rounding"], 2), f"{limit['scale']:.1e} + 5 errors"
    fitted = ("fitted scale - 1", "standard error")
    table = make_table(("layer", "mean |pattern - exact| x n", "in roundings", *fitted))
    for check in result.layers:
        of_pattern = tiny(check.mean_abs_pattern), decimal(check.rounding_pattern, 2)
        table.add_row(_name(check), *of_pattern, *_fit(check.scale, check.scale_error))
    table.add_section()
    table.add_row("tolerance", "", rounding, scale, "")
    yield table
    others = ("|z - pattern v| in roundings", *fitted, "|out - z W_O| in roundings")
    table = make_table(("layer", *others))
    for check in result.layers:
        of_z = decimal(check.rounding_z, 2), *_fit(check.z_scale, check.z_scale_error)
        table.add_row(_name(check), *of_z, decimal(check.rounding_out, 2))
    table.add_section()
    table.add_row("tolerance", rounding, scale, "", rounding)
    yield table


def _name(check: LayerCheck) -> str:
    return f"{check.stack} {check.layer}"


def _fit(scale: float | None, error: float | None) -> tuple[str, str]:
    return ("too flat to tell" if scale is None else f"{scale - 1:+.1e}"), tiny(error)


def _probe(probe: ProbeSize) -> str:
    many = f"{probe.sequences} sequences" if probe.sequences > 1 else "one sequence"
    return f"{many} of up to {probe.length} tokens, {probe.name}"


def validation_csv(result: ValidationResult) -> str:
    """One line per layer."""
    return fields_csv([field.name for field in dataclasses.fields(LayerCheck)], result.layers)
