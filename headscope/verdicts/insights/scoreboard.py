"""All claims in their order."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from headscope.results import Insight
from headscope.verdicts.insights.claims import CLAIMS, Claim
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.thresholds import InsightThresholds

__all__ = ["Judge", "judge_of", "scoreboard"]

Judge = Callable[[Evidence, InsightThresholds], Finding]


def judge_of(module: str) -> Judge:
    """Return what decides a claim: ``judge`` of ``headscope.verdicts.insights.MODULE``."""
    judge: Judge = importlib.import_module(f"headscope.verdicts.insights.{module}").judge
    return judge


def scoreboard(thresholds: InsightThresholds, evidence: Evidence) -> tuple[Insight, ...]:
    """Give every claim its verdict.

    Parameters
    ----------
    thresholds : InsightThresholds
        When a claim holds.
    evidence : Evidence
        What has been measured; a claim whose measurement is missing is "not measured yet".
    """
    found = ((claim, _judged(claim, evidence, thresholds)) for claim in CLAIMS)
    return tuple(Insight(claim.number, claim.text, **vars(finding)) for claim, finding in found)


def _judged(claim: Claim, evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    if not claim.judge:
        return Finding.not_measured(claim.needs)
    return judge_of(claim.judge)(evidence, thresholds)
