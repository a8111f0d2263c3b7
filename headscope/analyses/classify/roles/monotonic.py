"""Cross-attention heads that go through the source in order, or backwards.

Measured is the alignment: the rank correlation of the target's positions and the source positions
of their largest weights (:class:`headscope.analyses.classify.cross.CrossHeads`). As a control each
target is given another pair's source: what position alone explains. An interval has to lie wholly
beyond the threshold, and the confidence (the mean largest weight) well above that of uniform
attention: otherwise nearly even attention, whose largest weight creeps along with the position,
earns the role with random weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headscope.analyses.classify.scores import AlignmentScore
from headscope.core.roles import Role
from headscope.stats.estimate import UNKNOWN

if TYPE_CHECKING:
    from headscope.analyses.classify.cross import CrossHeads
    from headscope.analyses.classify.evidence import Evidence, HeadNumbers, Judged
    from headscope.core.accumulator import Array


def judge(evidence: Evidence) -> Iterator[Judged]:
    """Judge the alignment of every cross-attention head, against no order at all."""
    import numpy as np

    from headscope.analyses.classify.evidence import MIN_PAIRS, Judged
    from headscope.stats.statistics import adjust, finite, t_p

    sums = evidence.pairs
    thresholds = evidence.thresholds
    n_pairs = int(sums.units)
    mean = sums.mean("alignment")
    # Either direction is a finding.
    two_sided = 2 * t_p(np.abs(mean), sums.error("alignment"), 0.0, n_pairs)
    p = adjust(two_sided.clip(max=1.0), evidence.exists)
    numbers = _alignment(sums, p)
    swapped = None
    if evidence.swapped is not None and int(evidence.swapped.units):
        swapped = _alignment(evidence.swapped, p)
    low, high = numbers.interval
    gain = sums.mean("confidence") - sums.expected("confidence")  # over uniform attention
    earned = (
        (np.maximum(low, -high) >= thresholds.monotonic)  # on either side
        & (p <= thresholds.q)
        & (gain >= thresholds.monotonic_gain)
        & (n_pairs >= MIN_PAIRS)
        & np.isfinite(mean)
    )
    diagonal = sums.mean("diagonal")
    for head in evidence.heads:
        score = AlignmentScore(
            score=numbers.estimate(head),
            p_adjusted=float(p[head]),
            swapped=swapped.estimate(head) if swapped else UNKNOWN,
            diagonal=finite(diagonal[head]),
            diagonal_uniform=finite(sums.expected("diagonal")),
            pairs=n_pairs,
        )
        role = "monotonic" if mean[head] > 0 else "anti_monotonic"
        labels = [numbers.label(role, head)] if earned[head] else []
        yield Judged(head, "alignment", score, labels)


def _alignment(sums: CrossHeads, p: Array) -> HeadNumbers:
    """Return the alignment of every head with its interval, Student's t over pairs."""
    import numpy as np

    from headscope.analyses.classify.evidence import HeadNumbers
    from headscope.stats.statistics import t_half_width

    mean = sums.mean("alignment")
    half_width = t_half_width(sums.error("alignment"), int(sums.units))
    half_width = np.where(np.isfinite(half_width), half_width, np.nan)
    low = (mean - half_width).clip(-1.0, 1.0)
    high = (mean + half_width).clip(-1.0, 1.0)
    return HeadNumbers(
        values=mean, interval=(low, high), p_adjusted=p, baseline=0.0, against="no order"
    )


def untestable(evidence: Evidence) -> str:
    """Say why no head could have earned one of these roles."""
    return evidence.too_few_pairs


ROLES = (
    Role(
        rank=40,
        key="monotonic",
        name="monotonic",
        mark="mono",
        colour="#4B0092",
        style="bold bright_blue",
        light="#d7c9f7",
        dark="#4a2a80",
        stacks=("cross",),
        words="cross-attention that goes through the source in order",
        judge=judge,
        untestable=untestable,
    ),
    Role(
        rank=50,
        key="anti_monotonic",
        name="anti-monotonic",
        mark="anti",
        colour="#2F4F4F",
        style="bold bright_magenta",
        light="#b9cccc",
        dark="#2e4a4a",
        stacks=("cross",),
        words="cross-attention that goes through the source backwards",
        judge=judge,
        untestable=untestable,
    ),
)
