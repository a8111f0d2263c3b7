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


@dataclass(frozen=True)
class Claim:
    """A claim, its number, and the function that decides it."""

    number: int
    text: str
    judge: Callable[[Evidence, InsightThresholds], Finding]


_TEXTS = {
    judge_asymmetry: "Self-attention is not symmetric: attention is a directed graph.",
    judge_routing: "Heads route: they pass on nearly all of what they read, rather than a narrow "
    "part.",
    judge_labelled_heads: "A few kinds of heads (positional, syntactic, rare-word) do the work; "
    "the rest can go.",
    judge_shared_projections: "Single heads are not low rank, but the concatenated product is: "
    "heads share projections.",
    judge_cross_attention: "Cross-attention depends on many heads more than self-attention does.",
    judge_low_rank: "After the softmax, attention is low rank.",
    judge_interference: "Without the softmax, keys interfere unless they are orthogonal.",
    judge_collapse: "Pure attention collapses to rank one with depth; skip connections prevent it, "
    "feed-forward networks slow it, LayerNorm plays no role.",
    judge_layernorm: "LayerNorm parameters are the most useful small set to fine-tune.",
    judge_frozen: "Pretrained attention is a ready computation primitive: frozen does about as "
    "well as tuned.",
    judge_unstable: "Fine-tuning attention on small data can diverge.",
}
CLAIMS = tuple(Claim(n, text, judge) for n, (judge, text) in enumerate(_TEXTS.items()))


def scoreboard(thresholds: InsightThresholds, evidence: Evidence) -> tuple[Insight, ...]:
    """Give every claim its verdict; one whose measurement is missing is "not measured yet"."""
    return tuple(
        Insight(claim.number, claim.text, **vars(claim.judge(evidence, thresholds)))
        for claim in CLAIMS
    )
