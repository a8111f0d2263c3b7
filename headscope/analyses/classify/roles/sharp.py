"""Sharp heads: cross-attention that puts nearly all weight on one token of the source.

Measured is the confidence: over the target's tokens, the mean of the largest weight on a source
token that is not special (:class:`headscope.analyses.classify.cross.CrossHeads`). It is judged
against uniform attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headscope.analyses.classify.scores import SharpnessScore
from headscope.core.roles import Role

if TYPE_CHECKING:
    from headscope.analyses.classify.evidence import Evidence, Judged


def judge(evidence: Evidence) -> Iterator[Judged]:
    """Judge the confidence of every cross-attention head."""
    import numpy as np

    from headscope.analyses.classify.evidence import MIN_PAIRS, HeadNumbers, Judged
    from headscope.stats.statistics import adjust, finite, share_interval, t_p

    sums = evidence.pairs
    thresholds = evidence.thresholds
    mean = sums.mean("confidence")
    error = sums.error("confidence")
    units = sums.effective("confidence")  # how many pairs of equal length would say as much
    uniform = sums.expected("confidence")
    low, high = share_interval(mean, error, units)
    p = adjust(t_p(mean, error, uniform, units), evidence.exists)
    numbers = HeadNumbers(
        values=mean, interval=(low, high), p_adjusted=p, baseline=uniform, against="uniform"
    )
    earned = (
        (low >= thresholds.sharp)
        & (low >= uniform)
        & (p <= thresholds.q)
        & (sums.units >= MIN_PAIRS)
        & np.isfinite(mean)
    )
    for head in evidence.heads:
        score = SharpnessScore(numbers.estimate(head), finite(uniform), float(p[head]))
        labels = [numbers.label("sharp", head)] if earned[head] else []
        yield Judged(head, "sharpness", score, labels)


def untestable(evidence: Evidence) -> str:
    """Say why no head could have earned the role."""
    return evidence.too_few_pairs


ROLES = (
    Role(
        rank=60,
        key="sharp",
        name="sharp",
        mark="sharp",
        colour="#80BA5A",
        style="bright_green",
        light="#d9ebc2",
        dark="#456320",
        stacks=("cross",),
        words="cross-attention that puts nearly all weight on one source token",
        judge=judge,
        untestable=untestable,
    ),
)
