"""Judging the heads of sums that a test has made, without a run of a model."""

from collections.abc import Sequence
from typing import Any

from headscope.analyses.classify.cross import CrossHeads
from headscope.analyses.classify.evidence import Evidence
from headscope.analyses.classify.labels import existing, judge
from headscope.analyses.classify.scores import HeadResult
from headscope.analyses.classify.sums import HeadMeasures
from headscope.core.roles import Thresholds

HeadIds = Sequence[Sequence[int]]
ONE_HEAD = [[0]]


def evidence_of(
    sums: HeadMeasures | CrossHeads,
    stack: str = "encoder",
    head_ids: HeadIds = ONE_HEAD,
    **fields: Any,
) -> Evidence:
    """Return the evidence of sums with the usual thresholds."""
    means = sums if isinstance(sums, CrossHeads) else sums.profile
    exists = existing(means.sums.shape[:2], head_ids)
    return Evidence(stack=stack, sums=sums, exists=exists, thresholds=Thresholds(), **fields)


def judged(
    sums: HeadMeasures | CrossHeads,
    stack: str = "encoder",
    head_ids: HeadIds = ONE_HEAD,
    **fields: Any,
) -> tuple[HeadResult, ...]:
    """Judge all heads of sums with the usual thresholds."""
    return judge(evidence_of(sums, stack, head_ids, **fields), head_ids)
