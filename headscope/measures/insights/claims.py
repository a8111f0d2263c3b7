"""The claims in their own words, and what is said of one that has no measurement."""

from __future__ import annotations

from collections.abc import Sequence

from headscope.results import Insight

__all__ = ["CLAIMS", "concluded", "not_measured"]

CLAIMS = {
    0: "Self-attention is not symmetric: attention is a directed graph.",
    1: "Heads route: they pass on nearly all of what they read, rather than a narrow part.",
    2: "A few kinds of heads (positional, syntactic, rare-word) do the work; the rest can go.",
    3: "Single heads are not low rank, but the concatenated product is: heads share projections.",
    4: "Cross-attention depends on many heads more than self-attention does.",
    5: "After the softmax, attention is low rank.",
    6: "Without the softmax, keys interfere unless they are orthogonal.",
    7: "Pure attention collapses to rank one with depth; skip connections prevent it, feed-forward "
    "networks slow it, LayerNorm plays no role.",
    8: "LayerNorm parameters are the most useful small set to fine-tune.",
    9: "Pretrained attention is a ready computation primitive: frozen does about as well as tuned.",
    10: "Fine-tuning attention on small data can diverge.",
}


def not_measured(number: int, rule: str, why: str = "") -> Insight:
    """Say that a claim has no measurement, and why."""
    return Insight(number, CLAIMS[number], "not measured yet", why, "", rule, {})


def concluded(
    number: int,
    conditions: Sequence[bool | None],
    measured: str,
    control: str,
    rule: str,
    values: dict[str, object],
    *,
    refuted: bool = False,
) -> Insight:
    """Give the verdict of conditions: holds if all are met, does not hold if none is, else mixed.

    A condition is None where the interval leaves it open; ``refuted`` decides against the claim
    whatever the others say.
    """
    if refuted:
        verdict = "does not hold"
    elif all(conditions):
        verdict = "holds"
    elif all(condition is False for condition in conditions):
        verdict = "does not hold"
    else:
        verdict = "mixed"
    return Insight(number, CLAIMS[number], verdict, measured, control, rule, values)
