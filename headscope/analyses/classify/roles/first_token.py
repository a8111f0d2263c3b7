"""First-token sinks: heads of causal stacks that park on the first position (Xiao et al. 2023).

Measured is the mean weight on position 0, over queries from position 4 on (``first_token`` in
:class:`headscope.analyses.classify.sums.Profile`), against evenly spread attention. Some sentences
are read again with another first token: a sink on the position keeps its weight there, a sink on
the token that stood there does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headscope.analyses.classify.scores import FirstTokenScore
from headscope.core.roles import Role
from headscope.stats.estimate import UNKNOWN

if TYPE_CHECKING:
    from headscope.analyses.classify.evidence import Evidence, HeadNumbers, Judged
    from headscope.analyses.classify.query_means import QueryMeans
    from headscope.core.accumulator import Array
    from headscope.stats.estimate import Estimate

#: A sink that keeps at least this share of its weight when the first token is another one is on the
#: position.
KEPT = 0.5


def judge(evidence: Evidence) -> Iterator[Judged]:
    """Judge the weight of every head on the first position, and ask what it is a sink on."""
    from headscope.analyses.classify.evidence import Judged
    from headscope.core.rounding import FRACTION
    from headscope.stats.statistics import finite

    numbers = _on_first(evidence.sentences.profile, evidence.exists)
    replaced = None
    if evidence.first_replaced is not None:
        replaced = _on_first(evidence.first_replaced, evidence.exists)
    earned = (
        (numbers.values > evidence.thresholds.first_token + FRACTION)
        & (numbers.values > numbers.baseline)
        & (numbers.p_adjusted <= evidence.thresholds.q)
    )
    for head in evidence.heads:
        weight = numbers.estimate(head)
        with_another = replaced.estimate(head) if replaced else UNKNOWN
        score = FirstTokenScore(
            weight=weight,
            replaced=with_another,
            uniform=finite(numbers.baseline),
            p_adjusted=float(numbers.p_adjusted[head]),
        )
        labels = []
        if earned[head]:
            labels.append(numbers.label("first_token", head, sink_on(weight, with_another)))
        yield Judged(head, "first_token", score, labels)


def _on_first(means: QueryMeans, exists: Array) -> HeadNumbers:
    """Return the weight of every head on the first position, tested against even attention."""
    import numpy as np

    from headscope.analyses.classify.evidence import HeadNumbers
    from headscope.stats.statistics import adjust, share_interval, t_p

    mean = means.mean("first_token")
    error = means.error("first_token")
    units = means.effective("first_token")
    uniform = float(np.nan_to_num(means.expected("first_token")))
    return HeadNumbers(
        values=mean,
        interval=share_interval(mean, error, units),
        p_adjusted=adjust(t_p(mean, error, uniform, units), exists),
        baseline=uniform,
        against="uniform",
    )


def sink_on(weight: Estimate, replaced: Estimate) -> str:
    """Say what a sink is on: ``position``, ``token``, or nothing where that is not told apart."""
    if replaced.interval is None:
        return ""
    low, high = replaced.interval
    least = KEPT * float(weight)
    if low >= least:
        return "position"
    return "token" if high < least else ""


def untestable(evidence: Evidence) -> str:
    """Say why no head could have earned the role."""
    n_sentences = evidence.sampled("first_token")
    if n_sentences >= evidence.fewest_sentences:
        return ""
    return f"fewer than {evidence.fewest_sentences} sentences have five tokens ({n_sentences})"


def _sink_words(detail: str) -> str:
    """Say what another first token does to a sink."""
    if detail == "position":
        return "With another token there it stays: it is the position."
    if detail == "token":
        return "With another token there it goes: it is the token."
    return "Whether it is the position or the token is not told apart."


ROLES = (
    Role(
        rank=65,
        key="first_token",
        name="first-token sink",
        mark="sink",
        colour="#C79A00",
        style="yellow",
        light="#f3e6b3",
        dark="#5c4a00",
        stacks=("decoder",),
        words="parks its attention on the first token",
        source="Xiao et al. 2023, arXiv:2309.17453",
        sentence="Puts {score:.2f} of its attention on the first token; evenly spread attention "
        "puts {baseline:.2f} there. {detail}",
        detail=_sink_words,
        judge=judge,
        untestable=untestable,
    ),
)
