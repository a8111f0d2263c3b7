"""The sentences that say what ``rank`` found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import fmean

from headscope.results import ControlRank, RankResult

__all__ = ["NAMES", "rank_notes", "rank_sentence"]

#: How the matrices are written.
NAMES = {"qk": "W_Q W_K^T", "ov": "W_V W_O", "w_q": "W_Q", "w_k": "W_K"}
#: Beyond this rtol the numerical rank says more about the stored type than about the matrix.
_COARSE = 0.1


def rank_sentence(result: RankResult) -> str:
    """Say how many dimensions heads and layers need, each beside its controls."""
    heads = _mean(head.qk.dims["90"] for head in result.heads)
    layers = _mean(layer.qk.dims["90"] for layer in result.layers)
    if heads is None or layers is None:
        return "Some W_Q W_K^T are zero: see the table."
    d_head = max(len(head.qk.singular_values) for head in result.heads)
    width = max(len(layer.qk.singular_values) for layer in result.layers)
    what = "sigma^2" if result.settings["share"] == "sigma2" else "sigma"
    return (
        f"For 90% of {what}, W_Q W_K^T of one head needs {heads:.1f} of {d_head} dimensions "
        f"({_controls(result, 'heads')}); all heads of a layer together {layers:.1f} of {width} "
        f"({_controls(result, 'layers')}). Only the distance from a control is evidence."
    )


def _controls(result: RankResult, kind: str) -> str:
    parts = []
    for name, control in result.controls.items():
        value = None if control is None else _control_dims(result, control, kind)
        if value is not None:
            parts.append(f"{name} control {value:.1f}")
    return ", ".join(parts)


def _control_dims(result: RankResult, control: ControlRank, kind: str) -> float | None:
    """Mean control over what was measured, so that pruned layers meet their own geometry."""
    rows = result.heads if kind == "heads" else result.layers
    found = [control.of(result.heads_of(row.layer)) for row in rows]
    return _mean(getattr(item, kind)["qk"].dims["90"] for item in found if item)


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
        unfolded = [f"L{layer.layer}" for layer in result.layers if not layer.folded]
        if unfolded:
            yield f"No LayerNorm hands its output to {', '.join(unfolded)}: nothing folded there."
    if result.controls.get("fresh") is None:
        yield "No control by fresh initialisation (not asked for, or not possible here)."


def _mean(values: Iterable[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return fmean(known) if known else None
