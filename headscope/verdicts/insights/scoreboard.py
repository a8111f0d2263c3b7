"""All claims in their order."""

from __future__ import annotations

from headscope.results import (
    ClassifyResult,
    DepthResult,
    Insight,
    KeptRoles,
    RankResult,
    SpectrumResult,
)
from headscope.verdicts.insights.asymmetry import judge_asymmetry
from headscope.verdicts.insights.claims import not_measured
from headscope.verdicts.insights.collapse import judge_collapse
from headscope.verdicts.insights.labelled_heads import judge_roles
from headscope.verdicts.insights.low_rank import judge_low_rank
from headscope.verdicts.insights.shared_projections import judge_shared
from headscope.verdicts.insights.thresholds import InsightThresholds

__all__ = ["scoreboard"]

#: What will decide the claims that nothing measures so far.
_TO_COME = {
    1: "Will need the spectra of W_V and W_V W_O and what z tells of the attended state.",
    4: "Will need pruning curves of encoder, decoder and cross-attention of one model.",
    6: "Will need the coherence of keys and the error of attention without softmax.",
    8: "Will need fine-tuning of LayerNorm alone against equally many other parameters.",
    9: "Will need fine-tuning with frozen attention against full, and against random weights.",
    10: "Will need fine-tuning of attention over seeds and data sizes.",
}


def scoreboard(
    thresholds: InsightThresholds,
    *,
    classified: ClassifyResult | None = None,
    rank: RankResult | None = None,
    spectrum: SpectrumResult | None = None,
    depth: DepthResult | None = None,
    kept: KeptRoles | None = None,
) -> tuple[Insight, ...]:
    """Give every claim its verdict, from what has been measured.

    Parameters
    ----------
    thresholds : InsightThresholds
    classified, rank, spectrum, depth, kept : results, optional
        A claim whose measurement is missing is "not measured yet".
    """
    roles = {(h.layer, h.head): h.primary for h in classified.heads} if classified else None
    found = [
        judge_asymmetry(rank, thresholds),
        judge_roles(kept, thresholds),
        judge_shared(rank, thresholds),
        judge_low_rank(spectrum, thresholds, roles),
        judge_collapse(depth, thresholds),
        *(not_measured(number, rule) for number, rule in _TO_COME.items()),
    ]
    return tuple(sorted(found, key=lambda insight: insight.number))
