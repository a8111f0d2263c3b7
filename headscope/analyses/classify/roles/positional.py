"""Positional heads: they look at a token a fixed number of places away (Voita et al. 2019).

Measured are hits by offset (:class:`headscope.analyses.classify.sums.Positional`): queries whose
largest weight lies that many tokens away, -1 being the token before. The best of ten offsets is
judged against looking at any content token at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headscope.analyses.classify.scores import PositionalScore
from headscope.core.roles import SELF_ATTENTION, VOITA, Role

if TYPE_CHECKING:
    from headscope.analyses.classify.evidence import Evidence, Judged
    from headscope.core.accumulator import Array


def judge(evidence: Evidence) -> Iterator[Judged]:
    """Judge the best offset of every head."""
    import numpy as np

    from headscope.analyses.classify.evidence import HeadNumbers, Judged
    from headscope.analyses.classify.rows import OFFSETS
    from headscope.stats.statistics import adjust, binomial_p, finite, ratio, wilson

    sums = evidence.sentences.positional
    thresholds = evidence.thresholds
    # Rate and mean weight of every offset, (n_layers, n_heads, offsets); NaN without a query.
    rates = ratio(sums.hits, sums.queries)
    masses = ratio(sums.mass, sums.mass_queries)
    # The best offset of every head, as an index: (n_layers, n_heads); and its numbers.
    best = np.nan_to_num(rates, nan=-1.0).argmax(axis=-1)
    hits = np.take_along_axis(sums.hits, best[..., None], -1)[..., 0]
    rate = np.take_along_axis(rates, best[..., None], -1)[..., 0]
    queries = sums.queries[best]
    # The mean over queries of 1 / (content tokens that the query sees).
    chance = float(sums.chance / sums.content) if sums.content else 0.0
    # Test it against chance. The best of ten offsets was taken: Bonferroni within the head.
    p_of_head = np.minimum(1.0, len(OFFSETS) * binomial_p(hits, queries, chance))
    p = adjust(p_of_head, evidence.exists)
    numbers = HeadNumbers(
        values=rate, interval=wilson(hits, queries), p_adjusted=p, baseline=chance, against="chance"
    )

    def by_offset(values: Array) -> dict[str, float | None]:
        return {str(offset): finite(value) for offset, value in zip(OFFSETS, values, strict=True)}

    # q is the largest adjusted p, the false discovery rate.
    earned = (rate >= thresholds.positional) & (rate > chance) & (p <= thresholds.q)
    testable = not untestable(evidence)
    for head in evidence.heads:
        offset = OFFSETS[best[head]]
        score = PositionalScore(
            score=numbers.estimate(head),
            offset=offset if testable else None,
            rates=by_offset(rates[head]),
            mass=by_offset(masses[head]),
            chance=chance if testable else None,
            p_adjusted=float(p[head]),
        )
        labels = [numbers.label("positional", head, f"{offset:+d}")] if earned[head] else []
        yield Judged(head, "positional", score, labels)


def untestable(evidence: Evidence) -> str:
    """Say why no head could have earned the role."""
    if evidence.sentences.positional.queries.any():
        return ""
    return "no sentence has two tokens"


def offset_words(offset: str) -> str:
    """Say an offset in words: ``-1`` is the token before."""
    if offset == "-1":
        return "the token before"
    if offset == "+1":
        return "the token after"
    direction = "back" if offset.startswith("-") else "ahead"
    return f"the token {offset.lstrip('+-')} places {direction}"


ROLES = (
    Role(
        rank=10,
        key="positional",
        name="positional",
        mark="",
        colour="#0072B2",
        style="bold blue",
        light="#bcd7ff",
        dark="#1d4e89",
        stacks=SELF_ATTENTION,
        words="looks at a fixed distance, such as the token before",
        source=VOITA,
        sentence="{score:.0%} of tokens look most at {detail}; a random choice would in "
        "{baseline:.0%}.",
        detail=offset_words,
        legend="-1, +1 = offset of the token attended to",
        judge=judge,
        untestable=untestable,
    ),
)
