"""What is shown of ``validate``: the certificate, layer by layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from headscope.models.validation import LayerCheck, ValidationResult
from headscope.show import blocks as b
from headscope.show.cells import fields_csv, tiny
from headscope.show.terminal import terminal
from headscope.show.view import View

__all__ = ["VIEW"]


def blocks(result: ValidationResult) -> Iterator[b.Block]:
    """Show the differences of every layer, and the verdict."""
    limit, checks = result.tolerance, {f"{c.stack} {c.layer}": c for c in result.layers}
    yield b.Table(
        (
            ("layer", 0, str),
            ("calls", 1, str),
            ("max |pattern - model's|", 2, tiny),
            ("max |out - model's|", 3, tiny),
        ),
        [
            *((name, c.calls, c.max_abs_pattern, c.max_abs_out) for name, c in checks.items()),
            ("tolerance", 1, limit["pattern"], limit["out"]),
        ],
    )
    if result.probes:  # recomputed from recorded q, k, v and z in float32 or better
        rounding, scale = limit["rounding"], f"{limit['scale']:.1e} + 5 errors"
        rows: list[tuple[object, ...]] = []
        for name, c in checks.items():
            of_pattern = (c.mean_abs_pattern, c.rounding_pattern, c.scale, c.scale_error)
            rows.append(
                (name, *of_pattern, c.rounding_z, c.z_scale, c.z_scale_error, c.rounding_out)
            )
        rows.append(("tolerance", "", rounding, scale, "", rounding, scale, "", rounding))
        yield b.Table(
            (
                ("layer", 0, str),
                ("mean |pattern - exact| x n", 1, tiny),
                ("in roundings", 2, 2),
                ("fitted scale - 1", 3, _scale),
                ("standard error", 4, tiny),
            ),
            rows,
        )
        yield b.Table(
            (
                ("layer", 0, str),
                ("|z - pattern v| in roundings", 5, 2),
                ("fitted scale - 1", 6, _scale),
                ("standard error", 7, tiny),
                ("|out - z W_O| in roundings", 8, 2),
            ),
            rows,
        )
    text = (
        f"Last hidden state: max difference {tiny(result.max_abs_hidden_eager)} from eager, "
        f"{tiny(result.max_abs_hidden_sdpa)} from SDPA (tolerance {limit['hidden']:.1e}), over "
        f"{result.sequences} sequences, {result.tokens} tokens, {result.padded} padded positions."
    )
    probes = []
    for probe in result.probes:
        many = f"{probe.sequences} sequences" if probe.sequences > 1 else "one sequence"
        probes.append(f"{many} of up to {probe.length} tokens, {probe.name}")
    yield b.Text(f"{text}\nProbes: {'; '.join(probes)}." if probes else text)
    if result.passed:
        model = result.provenance.get("model", {}).get("id", "The model")
        yield b.Text(f"PASSED: headscope's attention reproduces {model}.", "passed")
    else:
        yield b.Text(f"FAILED: {'; '.join(result.reasons)}.", "failed")


def _scale(scale: float | None) -> str:
    return "too flat to tell" if scale is None else f"{scale - 1:+.1e}"


def _csv(result: ValidationResult) -> str:
    return fields_csv([field.name for field in dataclasses.fields(LayerCheck)], result.layers)


VIEW = View(
    human=lambda result: terminal(blocks(result)),
    csv=_csv,
    files=lambda result: {"validate.csv": _csv(result).encode()},
)
