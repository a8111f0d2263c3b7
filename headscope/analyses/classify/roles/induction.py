"""Induction heads: they look at the token after an earlier copy of the query (Olsson et al. 2022).

Measured on random tokens that come twice (:mod:`headscope.analyses.classify.repeats`): the mean
weight on the token after the earlier copy, less that on the same place when the first tokens were
others. The whole interval of this gain has to reach the threshold: models that copy perfectly
spread it over several heads with 0.13 to 0.32 each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headscope.core.roles import Role

if TYPE_CHECKING:
    from headscope.analyses.classify.evidence import Evidence, Judged


def judge(evidence: Evidence) -> Iterator[Judged]:
    """Judge the gain of every head on the token after the earlier copy."""
    from headscope.analyses.classify.evidence import Judged
    from headscope.analyses.classify.scores import Label
    from headscope.core.rounding import FRACTION
    from headscope.stats.estimate import Estimate
    from headscope.stats.statistics import adjust

    repeats = evidence.repeats
    if repeats is None:
        return
    p_adjusted = adjust(repeats.p_values("after"), evidence.exists)
    for head in evidence.heads:
        score = repeats.score(head)
        after = score.after
        labels = []
        low = after.gain.low
        if (
            low is not None
            and low >= evidence.thresholds.induction - FRACTION
            and p_adjusted[head] <= evidence.thresholds.q
        ):
            high = None if after.gain.high is None else after.gain.high + after.control
            labels.append(
                Label(
                    role="induction",
                    detail="",
                    score=Estimate(after.score, low + after.control, high),
                    baseline=after.control,
                    p_adjusted=float(p_adjusted[head]),
                    against="other tokens",
                )
            )
        yield Judged(head, "prefix", score, labels)


def untestable(evidence: Evidence) -> str:
    """Say why no head could have earned the role."""
    if evidence.repeats is not None:
        return ""
    return "no random tokens were read: that takes a language model with room for eight of them"


ROLES = (
    Role(
        rank=25,
        key="induction",
        name="induction",
        mark="ind",
        colour="#B2182B",
        style="bold red",
        light="#f6c9cd",
        dark="#7d1420",
        stacks=("decoder",),
        words="looks at the token after an earlier copy of the same token",
        source="Olsson et al. 2022, arXiv:2209.11895",
        sentence="Puts {score:.2f} of its attention on the token after an earlier copy, on random "
        "tokens that come twice; {baseline:.2f} where nothing is repeated.",
        judge=judge,
        untestable=untestable,
    ),
)
