"""From sums to labelled heads: scores, intervals, paired tests, and the thresholds on top.

A label needs three things: the score reaches its threshold, it beats its baseline, and the
Benjamini-Hochberg adjusted p-value of that comparison is at most q. The family of the adjustment is
all heads x relations x directions for syntactic labels, and all heads for every other role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.heads import HeadMeasures
from headscope.measures.profile import QUANTITIES, UNIFORM
from headscope.measures.rows import OFFSETS
from headscope.measures.statistics import (
    adjust,
    binomial_p,
    mcnemar_p,
    normal_interval,
    normal_p,
    paired_p,
    wilson,
)
from headscope.measures.syntactic import Baseline
from headscope.measures.thresholds import Thresholds
from headscope.results import HeadResult, Label, PositionalScore, RareScore, SyntacticScore

__all__ = ["PRIORITY", "judge"]

#: The first of these that a head has is its primary role.
PRIORITY = ("positional", "syntactic", "rare", "special", "punctuation", "broad")

Place = tuple[int, int]


def judge(
    sums: HeadMeasures, thresholds: Thresholds, head_ids: Sequence[Sequence[int]]
) -> tuple[HeadResult, ...]:
    """Turn sums into one :class:`HeadResult` per head.

    Parameters
    ----------
    sums : HeadMeasures
    thresholds : Thresholds
    head_ids : sequence of sequence of int
        What the heads of each layer are called: their original indices, gaps where heads have been
        removed. Results carry these; the sums count heads without gaps.
    """
    exists = np.zeros(sums.positional.hits.shape[:2], dtype=bool)
    for layer, ids in enumerate(head_ids):
        exists[layer, : len(ids)] = True
    positional = _Positional(sums, exists)
    syntactic = _Syntactic(sums, exists, thresholds)
    rare = _Rare(sums, exists)
    profile = _Profile(sums, exists, thresholds)
    results = []
    for layer, head in np.argwhere(exists).tolist():
        place = (layer, head)
        labels = [
            *positional.labels(place, thresholds),
            *syntactic.labels(place),
            *rare.labels(place, thresholds),
            *profile.labels(place, thresholds),
        ]
        roles = tuple(dict.fromkeys(label.role for label in labels))
        results.append(
            HeadResult(
                layer=layer,
                head=head_ids[layer][head],
                primary=next((role for role in PRIORITY if role in roles), "none"),
                roles=roles,
                labels=tuple(labels),
                positional=positional.score(place),
                syntactic=syntactic.scores(place),
                rare=rare.score(place),
                **profile.numbers(place),
            )
        )
    return tuple(results)


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
            score=_number(self.rates[place][best]),
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
                "positional", f"{found.offset:+d}", found.score, found.chance, found.interval,
                found.p_adjusted,
            )
        ]  # fmt: skip


class _Syntactic:
    """Every head, relation and direction against the best offset and uniform attention."""

    def __init__(self, sums: HeadMeasures, exists: Array, thresholds: Thresholds) -> None:
        self.tests = sums.syntactic.baselines()
        if not self.tests:
            return
        p = np.stack([_paired_p(test) for test in self.tests])
        self.p = _adjusted(p, exists)
        self.intervals = [wilson(test.hits, test.trials) for test in self.tests]
        self.passed = np.stack(
            [_passes(test, thresholds) & (q <= thresholds.q)
             for test, q in zip(self.tests, self.p, strict=True)]
        )  # fmt: skip

    def scores(self, place: Place) -> tuple[SyntacticScore, ...]:
        return tuple(self._score(i, place) for i in range(len(self.tests)))

    def _score(self, i: int, place: Place) -> SyntacticScore:
        test = self.tests[i]
        low, high = self.intervals[i]
        return SyntacticScore(
            relation=test.relation,
            direction=test.direction,
            accuracy=float(test.hits[place] / test.trials),
            baseline=test.offset_hits / test.trials,
            baseline_offset=test.offset,
            trials=test.trials,
            uniform=test.uniform / test.trials,
            interval=(float(low[place]), float(high[place])),
            p_adjusted=float(self.p[i][place]),
            labelled=bool(self.passed[i][place]),
        )

    def labels(self, place: Place) -> list[Label]:
        found = [score for score in self.scores(place) if score.labelled]
        found.sort(key=lambda s: s.baseline - s.accuracy)
        return [
            Label(
                "syntactic", f"{s.relation} {s.direction}", s.accuracy,
                max(s.baseline, s.uniform), s.interval, s.p_adjusted,
            )
            for s in found
        ]  # fmt: skip


def _paired_p(test: Baseline) -> Array:
    """Return the worse of the paired tests against the two baselines, for every head."""
    p_offset = mcnemar_p(test.hits - test.both, test.offset_hits - test.both)
    p_uniform = paired_p(
        test.hits, test.both_uniform, test.uniform, test.uniform_squared, test.trials
    )
    worse: Array = np.maximum(p_offset, p_uniform)
    return worse


def _passes(test: Baseline, thresholds: Thresholds) -> Array:
    """Which heads beat both baselines by the threshold on enough trials."""
    hits = test.hits / test.trials
    passed = np.full(hits.shape, test.trials >= thresholds.min_trials)
    for baseline_hits in (test.offset_hits, test.uniform):
        baseline = baseline_hits / test.trials
        gain = thresholds.syntactic * (baseline if thresholds.syntactic_relative else 1.0)
        # The last digits of a difference of fractions must not decide: 0.45 - 0.35 is 0.10.
        passed &= (hits - baseline >= gain - 1e-12) & (hits > baseline)
    return passed


class _Rare:
    """The rarest-word rate of every head against chance and uniform attention."""

    def __init__(self, sums: HeadMeasures, exists: Array) -> None:
        acc = sums.rare
        self.queries = int(acc.queries)
        n = max(self.queries, 1)
        self.rate, self.two_rarest = acc.hits / n, acc.two_hits / n
        self.chance, self.uniform = float(acc.chance) / n, float(acc.uniform) / n
        self.null = acc.null_hits / (float(acc.null_queries) or 1.0)
        self.low, self.high = wilson(acc.hits, np.full(acc.hits.shape, self.queries))
        over_chance = binomial_p(acc.hits, self.queries, self.chance)
        over_uniform = paired_p(
            acc.hits, acc.both_uniform, float(acc.uniform), float(acc.uniform_squared), self.queries
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
        )

    def labels(self, place: Place, thresholds: Thresholds) -> list[Label]:
        found = self.score(place)
        baseline = max(self.chance, self.uniform)
        if found.rate is None or found.rate < thresholds.rare or found.rate <= baseline:
            return []
        if found.rate - self.uniform < thresholds.rare_gain or found.p_adjusted > thresholds.q:
            return []
        return [Label("rare", "", found.rate, baseline, found.interval, found.p_adjusted)]


@dataclass(frozen=True)
class _MeanRole:
    """A role that is a mean over queries above a threshold and above uniform attention."""

    role: str
    quantity: str
    uniform: str | None


_MEAN_ROLES = (
    _MeanRole("special", "special_mass", "special_mass"),
    _MeanRole("punctuation", "punctuation_mass", "punctuation_mass"),
    _MeanRole("broad", "entropy", None),
    _MeanRole("self", "self", "self"),
    _MeanRole("duplicate", "duplicate", "duplicate"),
)


class _Profile:
    """Mean-based roles; intervals treat the sentence as the sampled unit."""

    def __init__(self, sums: HeadMeasures, exists: Array, thresholds: Thresholds) -> None:
        self.acc = sums.profile
        self.means, self.errors = self.acc.means(), self.acc.standard_errors()
        self.baseline = {role.role: self._baseline(role, thresholds) for role in _MEAN_ROLES}
        self.p = {
            role.role: _adjusted(self._p(role, self.baseline[role.role]), exists)
            for role in _MEAN_ROLES
        }

    def _baseline(self, role: _MeanRole, thresholds: Thresholds) -> float:
        if (
            role.uniform is None
        ):  # uniform attention is as broad as can be; the bar is the threshold
            return thresholds.broad_entropy
        queries = int(self.acc.queries[QUANTITIES.index(role.quantity)])
        return float(self.acc.uniform[UNIFORM.index(role.uniform)]) / max(queries, 1)

    def _p(self, role: _MeanRole, baseline: float) -> Array:
        i = QUANTITIES.index(role.quantity)
        return normal_p(self.means[..., i], self.errors[..., i], baseline)

    def numbers(self, place: Place) -> dict[str, Any]:
        values = dict(zip(QUANTITIES, map(_number, self.means[place]), strict=True))
        values["self_rate"] = values.pop("self")
        values["duplicate_rate"] = values.pop("duplicate")
        return values

    def labels(self, place: Place, thresholds: Thresholds) -> list[Label]:
        labels = []
        for role in _MEAN_ROLES:
            i = QUANTITIES.index(role.quantity)
            score, p = float(self.means[place][i]), float(self.p[role.role][place])
            baseline = self.baseline[role.role]
            if (
                score > baseline
                and p <= thresholds.q
                and self._high_enough(role, place, thresholds)
            ):
                low, high = normal_interval(score, self.errors[place][i])
                labels.append(
                    Label(role.role, self._detail(role, place), score, baseline,
                          (float(low), float(high)), p)
                )  # fmt: skip
        return labels

    def _high_enough(self, role: _MeanRole, place: Place, thresholds: Thresholds) -> bool:
        mean = dict(zip(QUANTITIES, self.means[place], strict=True))
        if role.role == "broad":
            return bool(
                mean["entropy"] > thresholds.broad_entropy
                and mean["relative_entropy"] > thresholds.broad_relative
            )
        if role.role in ("special", "punctuation"):
            return bool(mean[role.quantity] > getattr(thresholds, role.role))
        return bool(mean[role.quantity] >= getattr(thresholds, role.role))

    def _detail(self, role: _MeanRole, place: Place) -> str:
        if role.role != "special":
            return ""
        first, last = (
            self.means[place][QUANTITIES.index(q)]
            for q in ("first_special_mass", "last_special_mass")
        )
        return "first" if first > last else "last"


def _by_offset(values: Array) -> dict[str, float | None]:
    return {str(r): _number(value) for r, value in zip(OFFSETS, values, strict=True)}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
