"""What is shown of ``validate``: the certificate, layer by layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from headscope.models.certificate.validation import EmbeddingCheck, LayerCheck, ValidationResult
from headscope.show import blocks as b
from headscope.show.cells import fields_csv, joined, tiny
from headscope.show.terminal import terminal
from headscope.show.view import View, next_step


def blocks(result: ValidationResult) -> Iterator[b.Block]:
    """Show the verdict, then the differences of every layer."""
    name = result.provenance.get("model", {}).get("id", "the model")
    if result.passed:
        yield b.Text(
            f"PASSED: headscope's attention gives the same numbers as {name}'s own, in every layer "
            f"(final states differ by {tiny(result.max_abs_hidden)} at most).",
            "passed",
        )
    else:
        yield b.Text(f"FAILED: {'; '.join(result.reasons)}.", "failed")
    limit = result.tolerance
    text = (
        "Largest difference of the final states: "
        f"{tiny(result.max_abs_hidden_eager)} from the model's eager run, "
        f"{tiny(result.max_abs_hidden_sdpa)} from its SDPA run "
        f"(tolerance {limit['hidden']:.1e}), over "
        f"{result.sequences} sequences, {result.tokens} tokens, {result.padded} padded positions."
    )
    probes = []
    for probe in result.probes:
        many = f"{probe.sequences} sequences" if probe.sequences > 1 else "one sequence"
        probes.append(f"{many} of up to {probe.length} tokens, {probe.name}")
    yield b.Text(f"{text}\nCompared on {joined(probes, 'and on')}." if probes else text)
    if result.embedding is not None:
        yield b.Text(" ".join(_of_embeddings(result.embedding)))
    if result.passed:
        yield next_step(result, "what each head does:", "classify {}")
    else:
        yield next_step(result, "the differences of each layer:", "validate {} --verbose")
    checks = {f"{c.stack} {c.layer}": c for c in result.layers}
    rows: list[tuple[object, ...]] = [
        (name, c.calls, c.max_abs_pattern, c.max_abs_out) for name, c in checks.items()
    ]
    rows.append(("tolerance", 1, limit["pattern"], limit["out"]))
    titles = ("layer", "calls", "max |pattern - model's|", "max |out - model's|")
    yield b.Table(
        list(zip(titles, range(4), (str, str, tiny, tiny), strict=True)), rows, on=b.VERBOSE
    )
    if result.probes:  # recomputed from recorded q, k, v and z in float32 or better
        rounding = limit["rounding"]
        scale = f"{limit['scale']:.1e} + 5 errors"
        layer = ("layer", 0, str)
        scaled = "fitted scale - 1"
        rows = [
            (name, c.mean_abs_pattern, c.rounding_pattern, c.scale, c.scale_error)
            for name, c in checks.items()
        ]
        rows.append(("tolerance", "", rounding, scale, ""))
        pattern = (("mean |pattern - exact| x n", 1, tiny), ("in roundings", 2, 2))
        yield b.Table(
            (layer, *pattern, (scaled, 3, _scale), ("standard error", 4, tiny)), rows, on=b.VERBOSE
        )
        rows = [
            (name, c.rounding_z, c.z_scale, c.z_scale_error, c.rounding_out)
            for name, c in checks.items()
        ]
        rows.append(("tolerance", rounding, scale, "", rounding))
        z = ("|z - pattern v| in roundings", 1, 2)
        out = ("|out - z W_O| in roundings", 4, 2)
        yield b.Table(
            (layer, z, (scaled, 2, _scale), ("standard error", 3, tiny), out), rows, on=b.VERBOSE
        )


def _of_embeddings(check: EmbeddingCheck) -> Iterator[str]:
    """Yield sentences on the folder's embedding settings, and on how its embeddings compare."""
    yield from check.settings
    if check.not_compared is not None:
        yield f"Not compared with SentenceTransformer.encode: {check.not_compared}."
    else:
        also = ", and a text that is too long is cut to the same tokens" if check.cut_alike else ""
        yield (
            f"Embeddings of {check.texts} texts differ from those of SentenceTransformer.encode by "
            f"{tiny(check.max_abs)} at most{also}."
        )


def _scale(scale: float | None) -> str:
    return "too flat to tell" if scale is None else f"{scale - 1:+.1e}"


def _csv(result: ValidationResult) -> str:
    return fields_csv([field.name for field in dataclasses.fields(LayerCheck)], result.layers)


VIEW = View(
    human=lambda result: terminal(blocks(result)),
    csv=_csv,
    files=lambda result: {"validate.csv": _csv(result).encode()},
    blocks=blocks,
)
