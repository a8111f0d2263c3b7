"""Rare-word heads: they look at the rarest word of the sentence (Voita et al. 2019, section 5.3).

Measured is the rate of words whose largest weight is on the rarest word of their sentence
(:class:`headscope.analyses.classify.sums.Rare`). It has to beat both a head that picks any word at
random and evenly spread attention, whose largest sum over pieces falls on long, thus rare words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headscope.analyses.classify.scores import RareScore
from headscope.core.roles import VOITA, Role

if TYPE_CHECKING:
    from headscope.analyses.classify.evidence import Evidence, Judged


def judge(evidence: Evidence) -> Iterator[Judged]:
    """Judge the rarest-word rate of every head against chance and uniform attention."""
    import numpy as np

    from headscope.analyses.classify.evidence import HeadNumbers, Judged
    from headscope.core.rounding import FRACTION
    from headscope.stats.statistics import adjust, finite, share_interval, t_p

    sums = evidence.sentences.rare
    thresholds = evidence.thresholds
    rate = sums.mean("rate")
    two_rarest = sums.mean("two_rarest")
    error = sums.error("rate")
    units = sums.effective("rate")  # how many sentences of equal length would say as much
    chance = sums.expected("over_chance")
    uniform = sums.expected("over_uniform")
    # Both baselines have to be beaten: the larger p counts.
    p_chance = t_p(rate, sums.error("over_chance"), chance, units)
    p_uniform = t_p(rate, sums.error("over_uniform"), uniform, units)
    p = adjust(np.maximum(p_chance, p_uniform), evidence.exists)
    baseline, against = max((uniform, "uniform"), (chance, "chance"))  # the higher one
    numbers = HeadNumbers(
        values=rate,
        interval=share_interval(rate, error, units),
        p_adjusted=p,
        baseline=baseline,
        against=against,
    )
    earned = (
        (rate >= thresholds.rare)
        & (rate - uniform >= thresholds.rare_gain - FRACTION)
        & (rate > baseline)
        & (p <= thresholds.q)
    )
    for head in evidence.heads:
        score = RareScore(
            rate=numbers.estimate(head),
            two_rarest=finite(two_rarest[head]),
            chance=finite(chance),
            queries=int(sums.queries[0]),
            uniform=finite(uniform),
            p_adjusted=float(p[head]),
            sentences=int(sums.units),
        )
        labels = [numbers.label("rare", head)] if earned[head] else []
        yield Judged(head, "rare", score, labels)


def untestable(evidence: Evidence) -> str:
    """Say why no head could have earned the role."""
    sums = evidence.sentences.rare
    n_read = int(evidence.sentences.profile.units)
    n_unspaced = int(sums.unspaced)
    if 2 * n_unspaced > n_read:
        return (
            f"{n_unspaced:,} of {n_read:,} sentences are in a script that puts no space "
            "between words, so plain text does not say where words end; give a treebank"
        )
    n_rare = int(sums.units)
    if n_rare >= evidence.fewest_sentences:
        return ""
    return (
        f"fewer than {evidence.fewest_sentences} sentences have a rarest word outside the 500 most "
        f"frequent ({n_rare})"
    )


ROLES = (
    Role(
        rank=30,
        key="rare",
        name="rare-word",
        mark="rare",
        colour="#CC79A7",
        style="bold magenta",
        light="#f3c4ea",
        dark="#7a2a6a",
        stacks=("encoder",),
        words="looks at the rarest word of the sentence",
        source=VOITA,
        sentence="{score:.0%} of words look most at the rarest word of the sentence; at a random "
        "word: {baseline:.0%}.",
        judge=judge,
        untestable=untestable,
    ),
)
