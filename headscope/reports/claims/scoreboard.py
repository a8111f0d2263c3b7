"""Eleven claims of the literature, tested on a model: who decides which, and all verdicts."""

from __future__ import annotations

from collections.abc import Callable

from headscope.reports.claims.finding import Evidence, Finding
from headscope.reports.claims.head_claims import judge_cross_attention, judge_labelled_heads
from headscope.reports.claims.rank_claims import judge_collapse, judge_low_rank
from headscope.reports.claims.routing_claims import judge_interference, judge_routing
from headscope.reports.claims.rule import Rule
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.claims.tuning_claims import judge_frozen, judge_layernorm, judge_unstable
from headscope.reports.claims.weight_claims import judge_asymmetry, judge_shared_projections
from headscope.reports.result import Insight

Judge = Callable[[Evidence, InsightThresholds], Finding]
#: By the claim's name in ``claims.toml``, in the order of their numbers.
JUDGES: dict[str, Judge] = {
    "asymmetry": judge_asymmetry,
    "routing": judge_routing,
    "labelled_heads": judge_labelled_heads,
    "shared_projections": judge_shared_projections,
    "cross_attention": judge_cross_attention,
    "low_rank": judge_low_rank,
    "interference": judge_interference,
    "collapse": judge_collapse,
    "layernorm": judge_layernorm,
    "frozen": judge_frozen,
    "unstable": judge_unstable,
}


def scoreboard(thresholds: InsightThresholds, evidence: Evidence) -> tuple[Insight, ...]:
    """Give every claim its verdict; one whose measurement is missing is "not measured yet"."""
    insights = []
    for name, judge in JUDGES.items():
        rule = Rule(name, thresholds)
        finding = vars(judge(evidence, thresholds))
        insights.append(Insight(rule.claim.number, rule.claim.text, rule=rule.sentence, **finding))
    return tuple(insights)
