"""The claims of the source articles: THE list, with what judges each, and all verdicts in order."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from headscope.results.insights import Insight
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.thresholds import InsightThresholds

__all__ = ["CLAIMS", "Claim", "Judge", "judge_of", "scoreboard"]

Judge = Callable[[Evidence, InsightThresholds], Finding]


@dataclass(frozen=True)
class Claim:
    """One claim of the articles, with their number.

    ``judge`` is the module of ``headscope.verdicts.insights`` whose ``judge`` decides it.
    """

    number: int
    text: str
    judge: str


CLAIMS = (
    Claim(0, "Self-attention is not symmetric: attention is a directed graph.", "asymmetry"),
    Claim(
        1,
        "Heads route: they pass on nearly all of what they read, rather than a narrow part.",
        "passing_on",
    ),
    Claim(
        2,
        "A few kinds of heads (positional, syntactic, rare-word) do the work; the rest can go.",
        "labelled_heads",
    ),
    Claim(
        3,
        "Single heads are not low rank, but the concatenated product is: heads share projections.",
        "shared_projections",
    ),
    Claim(
        4,
        "Cross-attention depends on many heads more than self-attention does.",
        "cross_attention",
    ),
    Claim(5, "After the softmax, attention is low rank.", "low_rank"),
    Claim(
        6,
        "Without the softmax, keys interfere unless they are orthogonal.",
        "interference",
    ),
    Claim(
        7,
        "Pure attention collapses to rank one with depth; skip connections prevent it, "
        "feed-forward networks slow it, LayerNorm plays no role.",
        "collapse",
    ),
    Claim(
        8,
        "LayerNorm parameters are the most useful small set to fine-tune.",
        "small_set",
    ),
    Claim(
        9,
        "Pretrained attention is a ready computation primitive: frozen does about as well as "
        "tuned.",
        "frozen",
    ),
    Claim(
        10,
        "Fine-tuning attention on small data can diverge.",
        "unstable",
    ),
)


def judge_of(module: str) -> Judge:
    """Return what decides a claim: ``judge`` of ``headscope.verdicts.insights.MODULE``."""
    judge: Judge = importlib.import_module(f"headscope.verdicts.insights.{module}").judge
    return judge


def scoreboard(thresholds: InsightThresholds, evidence: Evidence) -> tuple[Insight, ...]:
    """Give every claim its verdict; one whose measurement is missing is "not measured yet"."""
    found = []
    for claim in CLAIMS:
        finding = judge_of(claim.judge)(evidence, thresholds)
        found.append(Insight(claim.number, claim.text, **vars(finding)))
    return tuple(found)
