"""From sums to labelled heads: scores, intervals, tests, and the thresholds on top.

A label needs three things: the score reaches its threshold, it beats its baseline, and the
Benjamini-Hochberg adjusted p-value of that comparison is at most q. The family of the adjustment is
all heads. Syntactic labels have a stricter rule of their own: ``syntactic_labels.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.classify.head_measures import HeadMeasures
from headscope.measures.classify.profile import QUANTITIES, UNIFORM
from headscope.measures.classify.rare import Rare
from headscope.measures.classify.rows import OFFSETS
from headscope.measures.classify.syntactic import KernelHits
from headscope.measures.classify.syntactic_labels import judge_syntactic, labels_of
from headscope.measures.classify.testable import broad_is_testable
from headscope.measures.classify.thresholds import Thresholds
from headscope.measures.statistics import (
    adjust,
    binomial_p,
    finite,
    normal_interval,
    normal_p,
    wilson,
)
from headscope.results import HeadResult, Label, PositionalScore, RareScore, SwappedControl
from headscope.results.roles import NO_ROLE, PRIMARY

__all__ = ["judge", "judge_swapped"]

Place = tuple[int, int]


def judge(
    sums: HeadMeasures,
    kernel: KernelHits,
    thresholds: Thresholds,
    head_ids: Sequence[Sequence[int]],
) -> tuple[HeadResult, ...]:
    """Turn sums into one :class:`HeadResult` per head.

    Parameters
    ----------
    sums : HeadMeasures
    kernel : KernelHits
        What the heads' distance kernels hit of the trials in ``sums.syntactic``.
    thresholds : Thresholds
    head_ids : sequence of sequence of int
        What the heads of each layer are called: their original indices, gaps where heads have been
        removed. Results carry these; the sums count heads without gaps.
    """
    exists = _exists(sums, head_ids)
    positional = _Positional(sums, exists)
    syntactic = judge_syntactic(sums.syntactic, kernel, exists, thresholds)
    rare = _Rare(sums.rare, exists)
    profile = _Profile(sums, exists, thresholds)
    results = []
    for layer, head in np.argwhere(exists).tolist():
        place = (layer, head)
        relations = tuple(test.score(place) for test in syntactic)
        labels = [
            *positional.labels(place, thresholds),
            *labels_of(relations),
            *rare.labels(place, thresholds),
            *profile.labels(place, thresholds),
        ]
        roles = tuple(dict.fromkeys(label.role for label in labels))
        results.append(
            HeadResult(
                layer=layer,
                head=head_ids[layer][head],
                primary=next((role.key for role in PRIMARY if role.key in roles), NO_ROLE.key),
                roles=roles,
                labels=tuple(labels),
                positional=positional.score(place),
                syntactic=relations,
                rare=rare.score(place),
                **profile.numbers(place),
            )
        )
    return tuple(results)


def judge_swapped(
    sums: HeadMeasures,
    kernel: KernelHits,
    thresholds: Thresholds,
    head_ids: Sequence[Sequence[int]],
) -> SwappedControl:
    """Count the syntactic labels against other sentences' trees; arguments of :func:`judge`.

    Parameters
    ----------
    kernel : KernelHits
        What the kernels hit of the trials in ``sums.swapped``.
    """
    exists = _exists(sums, head_ids)
    tests = judge_syntactic(sums.swapped, kernel, exists, thresholds)
    found = np.array([test.confirmed for test in tests]).reshape(-1, *exists.shape)
    return SwappedControl(labels=int(found.sum()), heads=int(found.any(axis=0).sum()))


def _exists(sums: HeadMeasures, head_ids: Sequence[Sequence[int]]) -> Array:
    """Which places of the sums hold a head, (n_layers, n_heads)."""
    exists = np.zeros(sums.positional.hits.shape[:2], dtype=bool)
    for layer, ids in enumerate(head_ids):
        exists[layer, : len(ids)] = True
    return exists


def _adjusted(p: Array, exists: Array) -> Array:
    """Adjust over the heads that exist; ``p`` is (..., n_layers, n_heads)."""
    out = np.ones_like(p)
    out[..., exists] = adjust(p[..., exists])
    return out


class _Positional:
    """Best offset of every head, against looking at any content token at random."""

    def __init__(self, sums: HeadMeasures, exists: Array) -> None:
        acc = sums.positional
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
        self.p = _adjusted(p, exists)

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

    def labels(self, place: Place, thresholds: Thresholds) -> list[Label]:
        found = self.score(place)
        if found.score is None or found.chance is None or found.score < thresholds.positional:
            return []
        if found.score <= found.chance or found.p_adjusted > thresholds.q:
            return []
        return [
            Label(
                "positional",
                f"{found.offset:+d}",
                found.score,
                found.chance,
                found.interval,
                found.p_adjusted,
                "chance",
            )
        ]


class _Rare:
    """The rarest-word rate of every head against chance and uniform attention, by sentence."""

    def __init__(self, acc: Rare, exists: Array) -> None:
        self.queries, self.sentences = int(acc.queries), int(acc.sentences)
        n = max(self.queries, 1)
        self.rate, self.two_rarest = acc.hits / n, acc.two_hits / n
        self.chance, self.uniform = (acc.expected / n).tolist()
        self.null = acc.null_hits / (float(acc.null_queries) or 1.0)
        low, high = normal_interval(self.rate, acc.rate_errors())
        self.low, self.high = low.clip(0.0, 1.0), high.clip(0.0, 1.0)
        over_chance, over_uniform = (
            normal_p(self.rate - baseline, error, 0.0)
            for baseline, error in zip((self.chance, self.uniform), acc.gain_errors(), strict=True)
        )
        self.p = _adjusted(np.maximum(over_chance, over_uniform), exists)

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

    def labels(self, place: Place, thresholds: Thresholds) -> list[Label]:
        found = self.score(place)
        baseline = max(self.chance, self.uniform)
        if found.rate is None or found.rate < thresholds.rare or found.rate <= baseline:
            return []
        if found.rate - self.uniform < thresholds.rare_gain or found.p_adjusted > thresholds.q:
            return []
        against = "uniform" if self.uniform >= self.chance else "chance"
        return [Label("rare", "", found.rate, baseline, found.interval, found.p_adjusted, against)]


@dataclass(frozen=True)
class _MeanRole:
    """A role that is a mean over queries above a threshold and above uniform attention."""

    role: str
    quantity: str
    uniform: str | None


_MEAN_ROLES = (
    _MeanRole("special", "special_mass", "special_mass"),
    _MeanRole("punctuation", "punctuation_mass", "punctuation_mass"),
    _MeanRole("broad", "long_entropy", None),
    _MeanRole("self", "self", "self"),
    _MeanRole("duplicate", "duplicate", "duplicate"),
)


class _Profile:
    """Mean-based roles; intervals treat the sentence as the sampled unit."""

    def __init__(self, sums: HeadMeasures, exists: Array, thresholds: Thresholds) -> None:
        self.acc = sums.profile
        self.roles = tuple(
            role for role in _MEAN_ROLES if role.role != "broad" or broad_is_testable(sums)
        )
        self.means, self.errors = self.acc.means(), self.acc.standard_errors()
        self.baseline = {role.role: self._baseline(role, thresholds) for role in _MEAN_ROLES}
        self.p = {
            role.role: _adjusted(self._p(role, self.baseline[role.role]), exists)
            for role in _MEAN_ROLES
        }

    def _baseline(self, role: _MeanRole, thresholds: Thresholds) -> float:
        if role.uniform is None:  # nothing is broader than uniform: the bar is the threshold
            return thresholds.broad_relative
        queries = int(self.acc.queries[QUANTITIES.index(role.quantity)])
        return float(self.acc.uniform[UNIFORM.index(role.uniform)]) / max(queries, 1)

    def _p(self, role: _MeanRole, baseline: float) -> Array:
        i = QUANTITIES.index(role.quantity)
        return normal_p(self.means[..., i], self.errors[..., i], baseline)

    def numbers(self, place: Place) -> dict[str, Any]:
        values = dict(zip(QUANTITIES, map(finite, self.means[place]), strict=True))
        values["self_rate"] = values.pop("self")
        values["duplicate_rate"] = values.pop("duplicate")
        return values

    def labels(self, place: Place, thresholds: Thresholds) -> list[Label]:
        labels = []
        for role in self.roles:
            i = QUANTITIES.index(role.quantity)
            score, p = float(self.means[place][i]), float(self.p[role.role][place])
            baseline = self.baseline[role.role]
            if (
                score > baseline
                and p <= thresholds.q
                and self._high_enough(role, place, thresholds)
            ):
                low, high = normal_interval(score, self.errors[place][i])
                interval = (float(low), float(high))
                against = "threshold" if role.uniform is None else "uniform"
                detail = self._detail(role, place)
                labels.append(Label(role.role, detail, score, baseline, interval, p, against))
        return labels

    def _high_enough(self, role: _MeanRole, place: Place, thresholds: Thresholds) -> bool:
        mean = float(self.means[place][QUANTITIES.index(role.quantity)])
        if role.role == "broad":
            return mean > thresholds.broad_relative
        least = float(getattr(thresholds, role.role))
        return mean > least if role.role in ("special", "punctuation") else mean >= least

    def _detail(self, role: _MeanRole, place: Place) -> str:
        if role.role != "special":
            return ""
        first, last = (
            self.means[place][QUANTITIES.index(q)]
            for q in ("first_special_mass", "last_special_mass")
        )
        return "first" if first > last else "last"


def _by_offset(values: Array) -> dict[str, float | None]:
    return {str(r): finite(value) for r, value in zip(OFFSETS, values, strict=True)}
