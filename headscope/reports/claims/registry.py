"""All claims: the modules that ``bounds.toml`` names, in its order."""

from __future__ import annotations

import importlib
from functools import cache

from headscope.reports.claims.rule import Claim, Evidence, Rule
from headscope.reports.claims.thresholds import BOUNDS, InsightThresholds
from headscope.reports.result import Insight


@cache
def claims() -> dict[str, Claim]:
    """Return every claim by the name of its module, in the order of their numbers."""
    return {
        name: importlib.import_module(f"headscope.reports.claims.{name}").CLAIM for name in BOUNDS
    }


def claim_of(insight: Insight) -> Claim | None:
    """Return the claim that an insight decides; None if its number is none of today's claims."""
    by_number = {claim.number: claim for claim in claims().values()}
    return by_number.get(insight.number)


def decide(name: str, evidence: Evidence, thresholds: InsightThresholds | None = None) -> Insight:
    """Give a claim its verdict; "not measured yet" where its measurement is missing."""
    claim = claims()[name]
    return claim.judge(Rule(claim, thresholds or InsightThresholds()), evidence)
