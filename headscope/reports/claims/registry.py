"""All claims: the modules that ``bounds.toml`` names, in its order.

A :class:`Claim` is what is tested, an :class:`Insight` its verdict for one model.
"""

from __future__ import annotations

import importlib
from functools import cache

from headscope.reports.claims.rule import Claim, Evidence, Rule
from headscope.reports.claims.thresholds import BOUNDS, InsightThresholds
from headscope.reports.result import Insight


@cache
def claims() -> dict[str, Claim]:
    """Return every claim by the name of its module, in the order of their numbers."""
    by_name: dict[str, Claim] = {}
    for name in BOUNDS:
        module = importlib.import_module(f"headscope.reports.claims.{name}")
        by_name[name] = module.CLAIM
    return by_name


def claim_of(insight: Insight) -> Claim | None:
    """Return the claim that an insight decides; None if no claim has its number any more."""
    by_number = {claim.number: claim for claim in claims().values()}
    return by_number.get(insight.number)


def decide(name: str, evidence: Evidence, thresholds: InsightThresholds | None = None) -> Insight:
    """Give the claim of a module its verdict; "not measured yet" where evidence is missing."""
    claim = claims()[name]
    return claim.judge(Rule(claim, thresholds or InsightThresholds()), evidence)
