"""What is shown of ``validate``: the certificate, layer by layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from headscope.models.validation import LayerCheck, ValidationResult
from headscope.show import blocks as b
from headscope.show.cells import fields_csv, tiny
from headscope.show.terminal import terminal
from headscope.show.view import View


def blocks(result: ValidationResult) -> Iterator[b.Block]:
    """Show the verdict, and the differences of every layer."""
    if result.passed:
        model = result.provenance.get("model", {}).get("id", "The model")
        yield b.Text(f"PASSED: headscope's attention reproduces {model}.", "passed")
    else:
        yield b.Text(f"FAILED: {'; '.join(result.reasons)}.", "failed")
    limit, checks = result.tolerance, {f"{c.stack} {c.layer}": c for c in result.layers}
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
    rows: list[tuple[object, ...]] = [
        (name, c.calls, c.max_abs_pattern, c.max_abs_out) for name, c in checks.items()
    ]
    rows.append(("tolerance", 1, limit["pattern"], limit["out"]))
    titles = ("layer", "calls", "max |pattern - model's|", "max |out - model's|")
    yield b.Table(list(zip(titles, range(4), (str, str, tiny, tiny), strict=True)), rows)
    if result.probes:  # recomputed from recorded q, k, v and z in float32 or better
        rounding, scale = limit["rounding"], f"{limit['scale']:.1e} + 5 errors"
        layer, scaled = ("layer", 0, str), "fitted scale - 1"
        rows = [
            (name, c.mean_abs_pattern, c.rounding_pattern, c.scale, c.scale_error)
            for name, c in checks.items()
        ]
        rows.append(("tolerance", "", rounding, scale, ""))
        pattern = (("mean |pattern - exact| x n", 1, tiny), ("in roundings", 2, 2))
        yield b.Table((layer, *pattern, (scaled, 3, _scale), ("standard error", 4, tiny)), rows)
        rows = [
            (name, c.rounding_z, c.z_scale, c.z_scale_error, c.rounding_out)
            for name, c in checks.items()
        ]
        rows.append(("tolerance", rounding, scale, "", rounding))
        z = ("|z - pattern v| in roundings", 1, 2)
        out = ("|out - z W_O| in roundings", 4, 2)
        yield b.Table((layer, z, (scaled, 2, _scale), ("standard error", 3, tiny), out), rows)


def _scale(scale: float | None) -> str:
    return "too flat to tell" if scale is None else f"{scale - 1:+.1e}"


def _csv(result: ValidationResult) -> str:
    return fields_csv([field.name for field in dataclasses.fields(LayerCheck)], result.layers)


VIEW = View(
    human=lambda result: terminal(blocks(result)),
    csv=_csv,
    files=lambda result: {"validate.csv": _csv(result).encode()},
)
