"""What the roles of one stack's heads are judged on, and what a role's test says of each head.

A test (``judge`` in a module of ``roles/``) gets the :class:`Evidence` of a stack, sums over the
corpus and thresholds, and yields a :class:`Judged` for every head. Tests that hold one number of
each head against a baseline make their labels with :class:`HeadNumbers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from headscope.analyses.classify.cross import CrossHeads
from headscope.analyses.classify.query_means import QueryMeans
from headscope.analyses.classify.repeats import RepeatScores
from headscope.analyses.classify.rows import FEWEST
from headscope.analyses.classify.scores import Label
from headscope.analyses.classify.sums import HeadMeasures
from headscope.analyses.classify.syntactic import Syntactic
from headscope.core.accumulator import Array
from headscope.core.roles import Thresholds
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.statistics import FEWEST_UNITS, finite

HeadIndex = tuple[int, int]  # (layer, index among the heads of the layer)

#: Pairs of source and target that a role of cross-attention needs; with a few, heads would earn it
#: by luck.
MIN_PAIRS = 50


class Judged(NamedTuple):
    """What a role's test says of one head."""

    head: HeadIndex
    field: str  # The field of a HeadResult that holds the score
    score: Any  # What the field holds, such as a PositionalScore
    labels: list[Label]  # The labels that the head has earned


@dataclass(frozen=True)
class HeadNumbers:
    """One number of every head and its test against a baseline; arrays are (n_layers, n_heads)."""

    values: Array  # NaN where undefined
    interval: tuple[Array, Array]
    p_adjusted: Array
    baseline: float
    against: str  # The name of the baseline, as ``uniform`` or ``chance``

    def estimate(self, head: HeadIndex) -> Estimate:
        """Return one head's number with its interval."""
        value = finite(self.values[head])
        if value is None:
            return UNKNOWN
        low, high = self.interval
        return Estimate(value, finite(low[head]), finite(high[head]))

    def label(self, role: str, head: HeadIndex, detail: str = "") -> Label:
        """Return one head's label."""
        return Label(
            role=role,
            detail=detail,
            score=self.estimate(head),
            baseline=self.baseline,
            p_adjusted=float(self.p_adjusted[head]),
            against=self.against,
        )


@dataclass(frozen=True)
class Evidence:
    """The sums of one stack's heads, and the thresholds that they are held against."""

    stack: str  # ``encoder``, ``decoder`` or ``cross``
    sums: HeadMeasures | CrossHeads
    exists: Array  # (n_layers, n_heads): which entries of the sums belong to a head
    thresholds: Thresholds
    #: Whether it is the decoder of an encoder-decoder model, which reads the targets of pairs
    reads_targets: bool = False
    #: Of cross-attention: the sums of the control, in which each target has another pair's source
    swapped: CrossHeads | None = None
    #: Sums on trees, or on a user's pairs; None where there are none
    edges: Syntactic | None = None
    labels: tuple[str, ...] = ()  # The labels of a user's pairs
    #: Means over some of the sentences with another first token; None where they were not read so
    first_replaced: QueryMeans | None = None
    #: Scores on random tokens that come twice; None where they were not read
    repeats: RepeatScores | None = None
    #: Trials of ``edges`` that a head would hit by its mean attention at each distance alone:
    #: (relations, n_layers, n_heads)
    kernel_hits: Array | None = None

    @cached_property
    def heads(self) -> list[HeadIndex]:
        """All heads, by layer and index."""
        return [(layer, index) for layer, index in np.argwhere(self.exists).tolist()]

    @property
    def sentences(self) -> HeadMeasures:
        """The sums of a stack that reads sentences."""
        assert isinstance(self.sums, HeadMeasures)
        return self.sums

    @property
    def pairs(self) -> CrossHeads:
        """The sums of cross-attention, which reads pairs of source and target."""
        assert isinstance(self.sums, CrossHeads)
        return self.sums

    @property
    def means(self) -> QueryMeans:
        """The means over queries that roles without a test of their own are judged by."""
        return self.sums if isinstance(self.sums, CrossHeads) else self.sums.profile

    @cached_property
    def trials_by_half(self) -> dict[tuple[str, str], list[int]]:
        """Trials of each relation (or label) and direction, in both halves of the corpus."""
        trials: dict[tuple[str, str], list[int]] = {}
        if self.edges is not None:
            names = self.edges.relations.names
            for name, count in zip(names, self.edges.trials.tolist(), strict=True):
                half, relation, direction = name
                trials.setdefault((relation, direction), [0, 0])[half] = count
        return trials

    # --- is there enough to judge by? ---

    #: Sentences that an interval or a p-value needs
    fewest_sentences = FEWEST_UNITS

    def sampled(self, quantity: str) -> int:
        """Return how many sentences have a query for this mean, such as ``self_rate``."""
        means = self.means
        return int(means.sampled[means.quantities.index(quantity)])

    def sees(self, quantity: str) -> bool:
        """Whether some query sees a key that counts for this mean, such as ``special_mass``.

        Otherwise uniform attention puts nothing there.
        """
        means = self.means
        return bool(means.uniform[means.baselines.index(quantity)] > 0)

    @property
    def too_few_sentences(self) -> str:
        """Say that fewer sentences have a query than a test needs; empty where enough have."""
        n_sentences = int(self.means.sampled.max())
        if n_sentences >= FEWEST_UNITS:
            return ""
        return f"fewer than {FEWEST_UNITS} sentences ({n_sentences})"

    @property
    def too_few_pairs(self) -> str:
        """Say that fewer pairs show an order than a label needs; empty where enough do."""
        return self._few_pairs(MIN_PAIRS)

    @property
    def too_few_pairs_for_a_test(self) -> str:
        """Say that fewer pairs show an order than any test needs; empty where enough do."""
        return self._few_pairs(FEWEST_UNITS)

    def _few_pairs(self, least: int) -> str:
        """Say that fewer pairs than ``least`` show an order; empty where enough do."""
        n_pairs = int(self.pairs.units)
        if n_pairs >= least:
            return ""
        return f"{n_pairs} pairs have {FEWEST} tokens or more on both sides, fewer than {MIN_PAIRS}"
