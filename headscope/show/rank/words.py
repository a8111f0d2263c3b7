"""The sentences that say what ``rank`` found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headscope.results.rank import HeadRank, LayerRank, RankResult
from headscope.show.cells import mean_of

#: How the matrices are written.
NAMES = {"qk": "W_Q W_K^T", "ov": "W_V W_O", "w_q": "W_Q", "w_k": "W_K"}
#: Beyond this rtol the numerical rank says more about the stored type than about the matrix.
_COARSE = 0.1


def rank_sentence(result: RankResult) -> str:
    """Say how many dimensions heads and layers need, each beside its controls."""
    heads = mean_of(head.qk.dims["90"] for head in result.heads)
    layers = mean_of(layer.qk.dims["90"] for layer in result.layers)
    if heads is None or layers is None:
        return "Some W_Q W_K^T are zero: see the table."
    d_head = max(len(head.qk.singular_values) for head in result.heads)
    width = max(len(layer.qk.singular_values) for layer in result.layers)
    what = "sigma^2" if result.settings["share"] == "sigma2" else "sigma"
    return (
        f"For 90% of {what}, W_Q W_K^T of one head needs {heads:.1f} of {d_head} dimensions "
        f"({_controls(result, result.heads)}); all heads of a layer together {layers:.1f} of "
        f"{width} ({_controls(result, result.layers)}). Only the distance from a control is "
        "evidence."
    )


def _controls(result: RankResult, rows: Sequence[HeadRank | LayerRank]) -> str:
    means = control_means(result, rows)
    return ", ".join(f"{name} control {mean:.1f}" for name, mean in means.items())


def control_means(result: RankResult, rows: Sequence[HeadRank | LayerRank]) -> dict[str, float]:
    """Mean dims90 of each control over what was measured: pruned layers meet their own geometry."""
    means = {name: mean_of(dims90(result, name, row) for row in rows) for name in result.controls}
    return {name: mean for name, mean in means.items() if mean is not None}


def dims90(
    result: RankResult, control: str, row: HeadRank | LayerRank, matrix: str = "qk"
) -> float | None:
    """Return a control's dims90 for what ``row`` is: a head, or a layer's heads together."""
    known = result.controls[control]
    geometry = known.of(result.heads_of(row)) if known else None
    if geometry is None:
        return None
    table = geometry.heads if isinstance(row, HeadRank) else geometry.layers
    return table[matrix].dims["90"]


def rank_notes(result: RankResult) -> Iterator[str]:
    """Say what a reader has to know before trusting the numbers."""
    if result.not_covered:
        yield (
            f"NOT the whole score: this model also adds {', '.join(result.not_covered)}, which "
            "W_Q W_K^T does not cover."
        )
    coarse = [head.qk.numerical_rank.rtol for head in result.heads]
    if coarse and max(coarse) > _COARSE:
        yield (
            f"Numerical ranks count sigma above {max(coarse):.2g} sigma_max, max(shape) * eps of "
            f"{result.settings['stored_dtype']}: too coarse to tell much; --rtol sets another."
        )
    if result.settings["fold_layernorm"]:
        unfolded = [layer.name for layer in result.layers if not layer.folded]
        if unfolded:
            yield f"No LayerNorm hands its output to {', '.join(unfolded)}: nothing folded there."
    if result.controls.get("fresh") is None:
        yield "No control by fresh initialisation (not asked for, or not possible here)."
