"""Eleven claims of the literature, tested on a model: the list of claims, and all verdicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headscope.reports.claims.finding import Evidence, Finding
from headscope.reports.claims.head_claims import judge_cross_attention, judge_labelled_heads
from headscope.reports.claims.rank_claims import judge_collapse, judge_low_rank
from headscope.reports.claims.routing_claims import judge_interference, judge_routing
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.claims.tuning_claims import judge_frozen, judge_layernorm, judge_unstable
from headscope.reports.claims.weight_claims import judge_asymmetry, judge_shared_projections
from headscope.reports.result import Insight

__all__ = ["CLAIMS", "Claim", "scoreboard"]


@dataclass(frozen=True)
class Claim:
    """A claim, its number, and the function that decides it."""

    number: int
    text: str
    judge: Callable[[Evidence, InsightThresholds], Finding]


CLAIMS = (
    Claim(0, "Self-attention is not symmetric: attention is a directed graph.", judge_asymmetry),
    Claim(
        1,
        "Heads route: they pass on nearly all of what they read, rather than a narrow part.",
        judge_routing,
    ),
    Claim(
        2,
        "A few kinds of heads (positional, syntactic, rare-word) do the work; the rest can go.",
        judge_labelled_heads,
    ),
    Claim(
        3,
        "Single heads are not low rank, but the concatenated product is: heads share projections.",
        judge_shared_projections,
    ),
    Claim(
        4,
        "Cross-attention depends on many heads more than self-attention does.",
        judge_cross_attention,
    ),
    Claim(5, "After the softmax, attention is low rank.", judge_low_rank),
    Claim(
        6,
        "Without the softmax, keys interfere unless they are orthogonal.",
        judge_interference,
    ),
    Claim(
        7,
        "Pure attention collapses to rank one with depth; skip connections prevent it, "
        "feed-forward networks slow it, LayerNorm plays no role.",
        judge_collapse,
    ),
    Claim(
        8,
        "LayerNorm parameters are the most useful small set to fine-tune.",
        judge_layernorm,
    ),
    Claim(
        9,
        "Pretrained attention is a ready computation primitive: frozen does about as well as "
        "tuned.",
        judge_frozen,
    ),
    Claim(
        10,
        "Fine-tuning attention on small data can diverge.",
        judge_unstable,
    ),
)


def scoreboard(thresholds: InsightThresholds, evidence: Evidence) -> tuple[Insight, ...]:
    """Give every claim its verdict; one whose measurement is missing is "not measured yet"."""
    return tuple(
        Insight(claim.number, claim.text, **vars(claim.judge(evidence, thresholds)))
        for claim in CLAIMS
    )
