"""From sums to labelled heads: scores, intervals, tests, and the thresholds on top.

A label needs three things: the score reaches its threshold, it beats its baseline, and the
Benjamini-Hochberg adjusted p-value of that comparison is at most q. The family of the adjustment is
all heads. Syntactic labels have a stricter rule of their own: ``confirmation.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.classify.confirmation import judge_syntactic, labels_of
from headscope.measures.classify.mean_roles import MeanTest, mean_test, which_special
from headscope.measures.classify.profile import QUANTITIES, UNIFORM
from headscope.measures.classify.rare import Rare
from headscope.measures.classify.rows import OFFSETS
from headscope.measures.classify.sums import HeadMeasures
from headscope.measures.classify.syntactic import KernelHits
from headscope.measures.classify.testable import broad_is_testable
from headscope.measures.classify.thresholds import Thresholds
from headscope.measures.rounding import FRACTION
from headscope.measures.statistics import (
    adjust,
    binomial_p,
    finite,
    normal_interval,
    normal_p,
    wilson,
)
from headscope.results import HeadResult, Label, PositionalScore, RareScore, SwappedControl
from headscope.results.roles import primary_of

Place = tuple[int, int]


def judge(
    sums: HeadMeasures,
    kernel: KernelHits | None,
    thresholds: Thresholds,
    head_ids: Sequence[Sequence[int]],
    stack: str = "encoder",
) -> tuple[HeadResult, ...]:
    """Turn sums into one :class:`HeadResult` per head, in the order of layer and head.

    Parameters
    ----------
    sums : HeadMeasures
        After the pass over the corpus.
    kernel : KernelHits or None
        What the heads' distance kernels hit of the trials in ``sums.syntactic``; None of a decoder.
    thresholds : Thresholds
        When a head earns a label.
    head_ids : sequence of sequence of int
        What the heads of each layer are called: their original indices, gaps where heads have been
        removed. Results carry these; the sums count heads without gaps.
    stack : str
        ``encoder`` or ``decoder``. A decoder's self-attention has no syntactic and no rare-word
        score: the head of a word, and the rarest word, may stand where the query cannot look.
    """
    exists = existing(sums.positional.hits.shape[:2], head_ids)
    positional = _Positional(sums, exists, thresholds)
    syntactic = judge_syntactic(sums.syntactic, kernel, exists, thresholds) if kernel else []
    rare = _Rare(sums.rare, exists, thresholds) if stack == "encoder" else None
    means = sums.profile.means()
    tests = list(_mean_tests(sums, exists, thresholds))
    results = []
    for layer, head in np.argwhere(exists).tolist():
        place = (layer, head)
        relations = tuple(test.score(place) for test in syntactic)
        numbers = dict(zip(QUANTITIES, map(finite, means[place]), strict=True))
        labels = (
            *positional.labels(place),
            *labels_of(relations),
            *(rare.labels(place) if rare else ()),
            *(test.label(place) for test in tests if test.passed[place]),
        )
        roles = tuple(dict.fromkeys(label.role for label in labels))
        results.append(
            HeadResult(
                layer=layer,
                head=head_ids[layer][head],
                stack=stack,
                primary=primary_of(roles),
                roles=roles,
                labels=labels,
                positional=positional.score(place),
                syntactic=relations,
                rare=rare.score(place) if rare else None,
                alignment=None,
                sharpness=None,
                cause=None,
                prefix=None,
                **numbers,
            )
        )
    return tuple(results)


def judge_swapped(
    sums: HeadMeasures,
    kernel: KernelHits,
    thresholds: Thresholds,
    head_ids: Sequence[Sequence[int]],
) -> SwappedControl:
    """Count the syntactic labels against other sentences' trees: false positives, all of them.

    Arguments of :func:`judge`, but for ``kernel``: hits of the trials in ``sums.swapped``.
    """
    exists = existing(sums.positional.hits.shape[:2], head_ids)
    tests = judge_syntactic(sums.swapped, kernel, exists, thresholds)
    found = np.array([test.confirmed for test in tests]).reshape(-1, *exists.shape)
    return SwappedControl(labels=int(found.sum()), heads=int(found.any(axis=0).sum()))


def existing(shape: tuple[int, ...], head_ids: Sequence[Sequence[int]]) -> Array:
    """Which places of sums of this shape, (n_layers, n_heads), hold a head."""
    exists = np.zeros(shape, dtype=bool)
    for layer, ids in enumerate(head_ids):
        exists[layer, : len(ids)] = True
    return exists


class _Positional:
    """Best offset of every head, against looking at any content token at random."""

    def __init__(self, sums: HeadMeasures, exists: Array, thresholds: Thresholds) -> None:
        acc, self._thresholds = sums.positional, thresholds
        self.rates, self.masses = acc.rates(), acc.masses()
        known = np.nan_to_num(self.rates, nan=-1.0)
        self.best = known.argmax(axis=-1)
        self.defined = bool((acc.queries > 0).any())
        hits = np.take_along_axis(acc.hits, self.best[..., None], -1)[..., 0]
        queries = acc.queries[self.best]
        self.low, self.high = wilson(hits, queries)
        self.chance = float(acc.chance / acc.content) if acc.content else 0.0
        # The best of ten offsets is taken: Bonferroni within the head.
        p = np.minimum(1.0, len(OFFSETS) * binomial_p(hits, queries, self.chance))
        self.p = adjust(p, exists)

    def score(self, place: Place) -> PositionalScore:
        best = int(self.best[place])
        return PositionalScore(
            score=finite(self.rates[place][best]),
            offset=OFFSETS[best] if self.defined else None,
            rates=_by_offset(self.rates[place]),
            mass=_by_offset(self.masses[place]),
            interval=(float(self.low[place]), float(self.high[place])),
            chance=self.chance if self.defined else None,
            p_adjusted=float(self.p[place]),
        )

    def labels(self, place: Place) -> Iterator[Label]:
        found, p = self.score(place), float(self.p[place])
        if found.score is None or found.chance is None or p > self._thresholds.q:
            return
        if found.score >= self._thresholds.positional and found.score > found.chance:
            detail = f"{found.offset:+d}"
            rates = (found.score, found.chance)
            yield Label("positional", detail, *rates, found.interval, p, "chance")


class _Rare:
    """The rarest-word rate of every head against chance and uniform attention, by sentence."""

    def __init__(self, acc: Rare, exists: Array, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self.queries, self.sentences = int(acc.queries), int(acc.sentences)
        n = max(self.queries, 1)
        self.rate, self.two_rarest = acc.hits / n, acc.two_hits / n
        self.chance, self.uniform = (acc.expected / n).tolist()
        self.null = acc.null_hits / (float(acc.null_queries) or 1.0)
        low, high = normal_interval(self.rate, acc.rate_errors())
        self.low, self.high = low.clip(0.0, 1.0), high.clip(0.0, 1.0)
        over_chance, over_uniform = (
            normal_p(self.rate, error, baseline)
            for baseline, error in zip((self.chance, self.uniform), acc.gain_errors(), strict=True)
        )
        self.p = adjust(np.maximum(over_chance, over_uniform), exists)

    def score(self, place: Place) -> RareScore:
        known = self.queries > 0
        return RareScore(
            rate=float(self.rate[place]) if known else None,
            two_rarest=float(self.two_rarest[place]) if known else None,
            chance=self.chance if known else None,
            queries=self.queries,
            null=float(self.null[place]) if known else None,
            uniform=self.uniform if known else None,
            interval=(float(self.low[place]), float(self.high[place])),
            p_adjusted=float(self.p[place]),
            sentences=self.sentences,
        )

    def labels(self, place: Place) -> Iterator[Label]:
        found, t = self.score(place), self._thresholds
        baseline = max(self.chance, self.uniform)
        if found.rate is None or found.rate < t.rare or found.p_adjusted > t.q:
            return
        if found.rate > baseline and found.rate - self.uniform >= t.rare_gain - FRACTION:
            against = "uniform" if self.uniform >= self.chance else "chance"
            p = found.p_adjusted
            yield Label("rare", "", found.rate, baseline, found.interval, p, against)


class _MeanRule(NamedTuple):
    """A role for a mean over queries that is above a threshold and above uniform attention.

    ``reach`` says that a mean equal to the threshold is enough.
    """

    quantity: str
    threshold: str
    reach: bool


#: Rules of the roles that are no offset, relation or rare word, by role.
MEAN_RULES = {
    "special": _MeanRule("special_mass", "special", reach=False),
    "punctuation": _MeanRule("punctuation_mass", "punctuation", reach=False),
    "broad": _MeanRule("long_entropy", "broad_relative", reach=False),
    "self": _MeanRule("self_rate", "self", reach=True),
    "duplicate": _MeanRule("duplicate_rate", "duplicate", reach=True),
}


def _mean_tests(sums: HeadMeasures, exists: Array, thresholds: Thresholds) -> Iterator[MeanTest]:
    """Test every head on every role that is a mean and that the corpus can show."""
    means, errors = sums.profile.means(), sums.profile.standard_errors()
    first, last = (means[..., QUANTITIES.index(f"{end}_special_mass")] for end in ("first", "last"))
    for role, (quantity, threshold, reach) in MEAN_RULES.items():
        if role == "broad" and not broad_is_testable(sums):
            continue
        i = QUANTITIES.index(quantity)
        uniform = None
        if quantity in UNIFORM:
            expected = float(sums.profile.uniform[UNIFORM.index(quantity)])
            uniform = expected / max(int(sums.profile.queries[i]), 1)
        yield mean_test(
            role,
            means[..., i],
            errors[..., i],
            least=float(getattr(thresholds, threshold)),
            reach=reach,
            uniform=uniform,
            q=thresholds.q,
            exists=exists,
            details=which_special(first, last) if role == "special" else None,
        )


def _by_offset(values: Array) -> dict[str, float | None]:
    return {str(r): finite(value) for r, value in zip(OFFSETS, values, strict=True)}
