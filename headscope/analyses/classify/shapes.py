"""The shape of a head's patterns by a rule: vertical, diagonal, both, or neither.

Kovaleva et al. 2019 (arXiv:1908.08593) sorted pictures of patterns by eye, and trained a network on
what they saw. Here two means decide: the weight on special tokens (vertical stripes) and the weight
on the tokens before and after (diagonals). Their fifth shape, block, is attention within one of two
segments; sentences are read one by one, so there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from headscope.analyses.classify.options import Thresholds
from headscope.analyses.classify.result import SHAPES, HeadResult, StackShapes
from headscope.analyses.classify.rows import OFFSETS
from headscope.analyses.classify.sums import HeadMeasures, Positional
from headscope.core.accumulator import Array
from headscope.stats.statistics import finite, ratio

_NEXT = [OFFSETS.index(-1), OFFSETS.index(1)]


def neighbours(sums: Positional) -> Array:
    """Mean weight of content queries on the tokens before and after, (n_layers, n_heads)."""
    return ratio(sums.mass[..., _NEXT].sum(-1), sums.content)


def shape_of(special: float | None, near: float | None, thresholds: Thresholds) -> str | None:
    """Name the shape of mean weights on special tokens and on neighbours; None where unknown."""
    if special is None or near is None:
        return None
    if special + near < thresholds.shape:
        return "heterogeneous"
    share = special / (special + near)
    if share >= thresholds.shape_pure:
        return "vertical"
    return "diagonal" if share <= 1 - thresholds.shape_pure else "vertical+diagonal"


def even_shape(sums: HeadMeasures, thresholds: Thresholds) -> str | None:
    """Name the shape that evenly spread attention has on the same sentences."""
    content = sums.positional.content
    near = float(sums.positional.even / content) if content else None
    return shape_of(finite(sums.profile.expected("special_mass")), near, thresholds)


def counted(
    stack: str, heads: Sequence[HeadResult], even: str | None, random: Sequence[HeadResult] | None
) -> StackShapes:
    """Count the shapes of a stack's heads, and of the same heads with random weights."""

    def counts(some: Iterable[HeadResult]) -> dict[str, int]:
        found = Counter(head.shape for head in some)
        return {shape: found[shape] for shape in SHAPES}

    return StackShapes(stack, counts(heads), even, None if random is None else counts(random))
