"""What is shown of ``validate``: the certificate, layer by layer.

The certificate, a :class:`ValidationResult`, compares our attention with the model's own, on
*probes*: small batches, each with a name. :func:`blocks` lists everything that the terminal and the
page show (``b`` is :mod:`headscope.show.blocks`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from headscope.models.certificate.validation import (
    NOISE_FACTOR,
    EmbeddingCheck,
    LayerCheck,
    ValidationResult,
)
from headscope.show import blocks as b
from headscope.show.cells import fields_csv, joined, tiny
from headscope.show.terminal import terminal
from headscope.show.view import View, next_step


def blocks(result: ValidationResult) -> Iterator[b.Block]:
    """Show the verdict, then the differences of every layer."""
    if result.passed:
        name = result.provenance.get("model", {}).get("id", "the model")
        yield b.Text(
            f"PASSED: headscope's attention gives the same numbers as {name}'s own, in every layer "
            f"(final states differ by {tiny(result.max_abs_hidden)} at most).",
            "passed",
        )
        yield b.Text(_own_differences(result), "control")
    else:
        yield b.Text(f"FAILED: {result.refusal}.", "failed")
        yield b.Text("\n".join(result.reasons), on=b.VERBOSE | b.PAGE)
    yield b.Text(_compared_on(result))
    if result.embedding is not None:
        yield b.Text(" ".join(_embedding_sentences(result.embedding)))
    if result.passed:
        yield next_step(result, "what each head does:", "classify {}")
    else:
        yield next_step(result, "the differences of each layer:", "validate {} --verbose")
    yield _local_differences(result)
    yield _differences(result)
    if result.probes:
        yield _exact_patterns(result)
        yield _exact_outputs(result)


def _own_differences(result: ValidationResult) -> str:
    """Say how far the model's own runs are from each other, as a control of the answer."""
    runs = "eager" if result.sdpa_differs is not None else "eager or SDPA"
    if result.noise_hidden == 0:
        return f"The model's own runs ({runs}, padded otherwise) do not differ."
    return (
        f"The model's own runs ({runs}, padded otherwise) differ from each other by "
        f"{tiny(result.noise_hidden)} at most."
    )


def _compared_on(result: ValidationResult) -> str:
    """Say how far everything is from the model's own, which bound decides, and on what texts."""
    sdpa = f", {tiny(result.max_abs_hidden_sdpa)} from its SDPA run"
    if result.sdpa_differs is not None or result.max_abs_hidden_sdpa is None:
        sdpa = ""  # Not comparable, or, in Gemma 2, no such run
    allowed = result.allowed("hidden", result.noise_hidden)
    text = (
        f"{_local_sentence(result)}\n"
        "Whole runs: largest difference of the final states "
        f"{tiny(result.max_abs_hidden_eager)} from the model's eager run{sdpa} "
        f"(allowed: {allowed:.1e}, {_bound_words(result)}), over "
        f"{result.sequences} sequences, {result.tokens} tokens, {result.padded} padded positions."
    )
    if result.sdpa_differs is not None:
        text += (
            "\nThe model's SDPA run is not compared: it computes something else than its eager "
            f"attention ({result.sdpa_differs:.0f} roundings in a layer, on the same inputs)."
        )
    if result.expert_choices:
        text += (
            "\nEvery run uses the experts that the model's eager run chose: rounding alone would "
            f"have chosen otherwise in {result.expert_choices_otherwise:,} of "
            f"{result.expert_choices:,} choices."
        )
    if not result.probes:
        return text
    probes = []
    for probe in result.probes:
        sequences = f"{probe.sequences} sequences" if probe.sequences > 1 else "one sequence"
        probes.append(f"{sequences} of up to {probe.length} tokens, {probe.name}")
    return f"{text}\nCompared on {joined(probes, 'and on')}."


def _local_sentence(result: ValidationResult) -> str:
    """Say how far layers are from the model's, each on the model's own inputs to it."""
    gaps = [gap for check in result.layers for gap in (check.local_pattern, check.local_out)]
    largest = max((gap for gap in gaps if gap is not None), default=None)
    limit = result.tolerance["local"]
    number = "not comparable" if largest is None else f"at most {largest:.2g} roundings off"
    return f"Each layer, on the model's own inputs to it: {number} (allowed: {limit:g})."


def _bound_words(result: ValidationResult) -> str:
    """Say which bound decides on the final states: a fixed one, or the model's own rounding."""
    if result.allowed("hidden", result.noise_hidden) <= result.tolerance["hidden"]:
        return "whatever the model"
    return f"{NOISE_FACTOR:g} x the {tiny(result.noise_hidden)} by which its own runs differ"


# --- tables of layers -----------------------------------------------------------------------------


def _layer_rows(result: ValidationResult, *fields: str) -> list[tuple[object, ...]]:
    """Return a row of every layer's check: the layer's name, then the ``fields``.

    With the fields ``calls`` and ``max_abs_out``: [("encoder 0", 1, 2.4e-7), ("encoder 1", ...)].
    """
    rows: list[tuple[object, ...]] = []
    for check in result.layers:
        values = [getattr(check, field) for field in fields]
        rows.append((f"{check.stack} {check.layer}", *values))
    return rows


def _local_differences(result: ValidationResult) -> b.Table:
    """Show how far each layer is from the model's on the model's own inputs, in roundings."""
    rows = _layer_rows(result, "calls", "local_pattern", "local_out")
    rows.append(("allowed", 1, result.tolerance["local"], result.tolerance["local"]))
    # Of each column: its title, the index of its value in a row, and how the value is written.
    columns: list[b.Column] = [
        ("layer", 0, str),
        ("calls", 1, str),
        ("pattern, in roundings", 2, 2),
        ("out, in roundings", 3, 2),
    ]
    return b.Table(columns, rows, on=b.VERBOSE)


def _differences(result: ValidationResult) -> b.Table:
    """Show how far patterns and outputs of whole runs are apart in every layer."""
    rows: list[tuple[object, ...]] = [
        (
            f"{check.stack} {check.layer}",
            check.max_abs_pattern,
            result.allowed("pattern", check.noise_pattern),
            check.max_abs_out,
            result.allowed("out", check.noise_out),
        )
        for check in result.layers
    ]
    columns: list[b.Column] = [
        ("layer", 0, str),
        ("max |pattern - model's|", 1, tiny),
        ("allowed", 2, tiny),
        ("max |out - model's|", 3, tiny),
        ("allowed", 4, tiny),
    ]
    return b.Table(columns, rows, on=b.VERBOSE)


def _exact_patterns(result: ValidationResult) -> b.Table:
    """Show how far patterns are from exact ones, and the scale of the scores that fits them best.

    The exact ones are recomputed from recorded q and k, in float32 or better. A *rounding* is the
    difference that rounding to the model's dtype explains.
    """
    fields = ("mean_abs_pattern", "rounding_pattern", "scale", "scale_error")
    rows = _layer_rows(result, *fields)
    rows.append(("tolerance", "", result.tolerance["rounding"], _scale_limit(result), ""))
    columns: list[b.Column] = [
        ("layer", 0, str),
        ("mean |pattern - exact| x n", 1, tiny),
        ("in roundings", 2, 2),  # written with two decimals
        ("fitted scale - 1", 3, _scale),
        ("standard error", 4, tiny),
    ]
    return b.Table(columns, rows, on=b.VERBOSE)


def _exact_outputs(result: ValidationResult) -> b.Table:
    """Show how far z (pattern v) and outputs (z W_O) are from exact ones, as for patterns."""
    rows = _layer_rows(result, "rounding_z", "z_scale", "z_scale_error", "rounding_out")
    rounding = result.tolerance["rounding"]
    rows.append(("tolerance", rounding, _scale_limit(result), "", rounding))
    columns: list[b.Column] = [
        ("layer", 0, str),
        ("|z - pattern v| in roundings", 1, 2),
        ("fitted scale - 1", 2, _scale),
        ("standard error", 3, tiny),
        ("|out - z W_O| in roundings", 4, 2),
    ]
    return b.Table(columns, rows, on=b.VERBOSE)


def _scale(scale: float | None) -> str:
    """Write how far a fitted scale is from 1; patterns that are all but even fit any scale."""
    return "too flat to tell" if scale is None else f"{scale - 1:+.1e}"


def _scale_limit(result: ValidationResult) -> str:
    """Say how far a fitted scale may be from 1."""
    return f"{result.tolerance['scale']:.1e} + 5 errors"


# --- embeddings -----------------------------------------------------------------------------------


def _embedding_sentences(check: EmbeddingCheck) -> Iterator[str]:
    """Yield sentences on the folder's embedding settings, and on how its embeddings compare."""
    yield from check.settings
    other = "CrossEncoder.predict" if check.scores else "SentenceTransformer.encode"
    if check.not_compared is not None:
        yield f"Not compared with {other}: {check.not_compared}."
    else:
        also = ", and a text that is too long is cut to the same tokens" if check.cut_alike else ""
        measured = f"Embeddings of {check.texts} texts"
        if check.scores:
            measured = f"Scores of {check.texts} pairs"
        yield (f"{measured} differ from those of {other} by {tiny(check.max_abs)} at most{also}.")
    if check.padding_shifts is not None:
        yield (
            "That is so for texts encoded one at a time: in a batch, encode pads on the left as "
            "the tokenizer says, and this model counts its positions from the padding, so encode's "
            f"own embeddings move by up to {tiny(check.padding_shifts)}; set padding_side to right."
        )


def _csv(result: ValidationResult) -> str:
    """Write the check of every layer."""
    return fields_csv([field.name for field in dataclasses.fields(LayerCheck)], result.layers)


VIEW = View(
    human=lambda result: terminal(blocks(result), writes_files=False),
    csv=_csv,
    files=lambda result: {"validate.csv": _csv(result).encode()},
    blocks=blocks,
)
