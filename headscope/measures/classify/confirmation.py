"""The rule of syntactic labels: selected on one half of the corpus, confirmed on the other.

On half A a (head, relation, direction) is *selected* when its accuracy exceeds every baseline by
the margin. On half B it is *confirmed* when it does so again (offset and kernel as chosen on A),
the accuracy of piece means exceeds the positional baselines too, and the paired tests against
offset, first word, last word and uniform attention are significant: the largest of the four p,
adjusted over the selected ones alone (Benjamini & Hochberg). Only what is confirmed is a label.
Relations with too few trials in either half are not asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.classify.syntactic import KernelHits, Syntactic
from headscope.measures.classify.thresholds import Thresholds
from headscope.measures.rounding import FRACTION, tied
from headscope.measures.statistics import adjust, mcnemar_p, paired_p, wilson
from headscope.results import Confirmation, Label, SyntacticScore

#: Relations that are scored but never make a label: punctuation has a role of its own.
NEVER = ("punct", "root")
#: Baselines that the piece-mean accuracy must exceed too; the others are made for sums.
_POSITIONAL = ("offset", "first", "last")
#: Baselines that are counted by relation, as :class:`.syntactic.Syntactic` names them.
_WORDLESS = ("first", "last", "uniform")
_HALVES = (0, 1)


class _Fields(TypedDict):
    """What a SyntacticScore (of all sentences) and a Confirmation (of a half) have in common."""

    accuracy: float
    accuracy_mean: float
    baselines: dict[str, float]
    interval: tuple[float, float]
    trials: int


@dataclass(frozen=True)
class _Counts:
    """One relation and direction on some sentences; hits as (n_layers, n_heads) or one number.

    ``joint`` has the trials that head and baseline both hit; uniform's are sums of probabilities.
    """

    trials: int
    hits: Array
    mean_hits: Array
    baselines: Mapping[str, Array | float]
    joint: Mapping[str, Array]
    uniform_squared: float

    @cached_property
    def accuracy(self) -> Array:
        """Shares of hits."""
        return np.asarray(self.hits / max(self.trials, 1))

    @cached_property
    def mean_accuracy(self) -> Array:
        """Shares of hits by piece means."""
        return np.asarray(self.mean_hits / max(self.trials, 1))

    @cached_property
    def rates(self) -> dict[str, Array]:
        """Every baseline's accuracy for every head, (n_layers, n_heads)."""
        shape, n = self.hits.shape, max(self.trials, 1)
        return {k: np.broadcast_to(np.divide(v, n), shape) for k, v in self.baselines.items()}

    @cached_property
    def interval(self) -> tuple[Array, Array]:
        """95% Wilson interval of :attr:`accuracy`."""
        return wilson(self.hits, self.trials)

    def at(self, place: tuple[int, int]) -> _Fields:
        """Return one head's values."""
        low, high = self.interval
        return {
            "accuracy": float(self.accuracy[place]),
            "accuracy_mean": float(self.mean_accuracy[place]),
            "baselines": {name: float(rate[place]) for name, rate in self.rates.items()},
            "interval": (float(low[place]), float(high[place])),
            "trials": self.trials,
        }

    def p_value(self) -> Array:
        """Largest p of the paired tests against offset, first, last and uniform."""
        exact = [
            mcnemar_p(self.hits - self.joint[name], self.baselines[name] - self.joint[name])
            for name in _POSITIONAL
        ]
        expected = (float(self.baselines["uniform"]), self.uniform_squared)
        over_uniform = paired_p(self.hits, self.joint["uniform"], *expected, self.trials)
        return np.asarray(np.max([*exact, over_uniform], axis=0))


@dataclass(frozen=True)
class SyntacticTest:
    """All heads on one relation and direction.

    Attributes
    ----------
    relation, direction : str
        As ``nsubj`` and ``dep->head``.
    offset : int
        The best word offset on all sentences; ``whole`` is measured with it.
    whole, chosen, held_out : _Counts
        On all sentences, on half A, on half B; the last two with A's best offset.
    selected, confirmed : array of bool, (n_layers, n_heads)
        Which heads half A selects, and which of them half B confirms: the labels.
    p_adjusted : array of float, (n_layers, n_heads)
        1 where not selected.
    """

    relation: str
    direction: str
    offset: int
    whole: _Counts
    chosen: _Counts
    held_out: _Counts
    selected: Array
    confirmed: Array
    p_adjusted: Array

    def score(self, place: tuple[int, int]) -> SyntacticScore:
        """Everything about one head."""
        whole = self.whole.at(place)
        return SyntacticScore(
            relation=self.relation,
            direction=self.direction,
            baseline=whole["baselines"]["offset"],
            baseline_offset=self.offset,
            uniform=whole["baselines"]["uniform"],
            selected=bool(self.selected[place]),
            confirmed=self._confirmation(place) if self.selected[place] else None,
            labelled=bool(self.confirmed[place]),
            **whole,
        )

    def _confirmation(self, place: tuple[int, int]) -> Confirmation:
        held_out = self.held_out.at(place)
        baselines = held_out["baselines"]
        names = list(baselines)
        return Confirmation(
            strongest=names[int(tied([baselines[name] for name in names]).argmax())],
            p_adjusted=float(self.p_adjusted[place]),
            **held_out,
        )


def judge_syntactic(
    sums: Syntactic, kernel: KernelHits, exists: Array, thresholds: Thresholds
) -> list[SyntacticTest]:
    """Apply the rule to every relation and direction, in alphabetical order.

    ``kernel`` counted the same trials; ``exists`` (n_layers, n_heads) marks the places of heads.
    """
    names = sorted({(relation, direction) for _, relation, direction in sums.relations.names})
    drafts = [_draft(sums, kernel, *name) for name in names]
    selected = [
        exists & _selected(relation, counts, thresholds) for (relation, *_), _, counts in drafts
    ]
    if not drafts:
        return []
    p_adjusted = adjust(np.stack([b.p_value() for *_, (_, _, b) in drafts]), np.stack(selected))
    return [
        SyntacticTest(
            relation,
            direction,
            offset,
            *counts,
            selected=chosen,
            p_adjusted=p,
            confirmed=chosen & (p <= thresholds.q) & _exceeds_again(counts[2], thresholds),
        )
        for ((relation, direction), offset, counts), chosen, p in zip(
            drafts, selected, p_adjusted, strict=True
        )
    ]


def labels_of(scores: Sequence[SyntacticScore]) -> Iterator[Label]:
    """Turn a head's confirmed relations into labels, the largest gain first."""
    found = [(s, s.confirmed) for s in scores if s.labelled and s.confirmed is not None]
    gains = tied([c.accuracy - c.baselines[c.strongest] for _, c in found])
    for place in np.argsort(-gains, kind="stable").tolist():
        s, confirmed = found[place]
        yield Label(
            "syntactic",
            f"{s.relation} {s.direction}",
            confirmed.accuracy,
            confirmed.baselines[confirmed.strongest],
            confirmed.interval,
            confirmed.p_adjusted,
            against=confirmed.strongest,
        )


Draft = tuple[tuple[str, str], int, tuple[_Counts, _Counts, _Counts]]


def _draft(sums: Syntactic, kernel: KernelHits, relation: str, direction: str) -> Draft:
    """Count one relation and direction on all sentences, on half A and on half B."""
    best = _best_offset(sums, relation, direction, _HALVES)
    from_a = _best_offset(sums, relation, direction, (0,))
    parts = ((_HALVES, best), ((0,), from_a), ((1,), from_a))
    whole, a, b = (
        _count(sums, kernel, (relation, direction), halves, offset) for halves, offset in parts
    )
    return (relation, direction), best, (whole, a, b)


def _best_offset(sums: Syntactic, relation: str, direction: str, halves: Sequence[int]) -> int:
    """Return the word offset that hits most trials; ties: the shortest, then the left one."""
    hits: dict[int, int] = {}
    for index, (half, *name, offset) in enumerate(sums.offsets.names):
        if half in halves and name == [relation, direction]:
            hits[offset] = hits.get(offset, 0) + int(sums.offset_trials[index])
    return max(hits, key=lambda offset: (hits[offset], -abs(offset), -offset), default=-1)


def _count(
    sums: Syntactic, kernel: KernelHits, name: tuple[str, str], halves: Sequence[int], offset: int
) -> _Counts:
    at = sums.relations.known((half, *name) for half in halves)
    by_offset = sums.offsets.known((half, *name, offset) for half in halves)
    return _Counts(
        trials=int(sums.trials[at].sum()),
        hits=sums.hits[at].sum(axis=0),
        mean_hits=sums.mean_hits[at].sum(axis=0),
        baselines={
            "offset": float(sums.offset_trials[by_offset].sum()),
            **{name: float(getattr(sums, name)[at].sum()) for name in _WORDLESS},
            "kernel": kernel.hits[at].sum(axis=0),
        },
        joint={
            "offset": sums.both_offset[by_offset].sum(axis=0),
            **{name: getattr(sums, f"both_{name}")[at].sum(axis=0) for name in _WORDLESS},
        },
        uniform_squared=float(sums.uniform_squared[at].sum()),
    )


def _selected(
    relation: str, counts: tuple[_Counts, _Counts, _Counts], thresholds: Thresholds
) -> Array:
    _, a, b = counts
    if relation in NEVER or min(a.trials, b.trials) < thresholds.min_trials:
        return np.zeros(a.hits.shape, dtype=bool)
    return _exceeds(a.accuracy, a, tuple(a.baselines), thresholds)


def _exceeds_again(b: _Counts, thresholds: Thresholds) -> Array:
    by_sum = _exceeds(b.accuracy, b, tuple(b.baselines), thresholds)
    by_mean = _exceeds(b.mean_accuracy, b, _POSITIONAL, thresholds)
    return by_sum & by_mean


def _exceeds(
    accuracy: Array, counts: _Counts, names: Sequence[str], thresholds: Thresholds
) -> Array:
    """Which heads' accuracies exceed all these baselines by the margin."""
    passed = np.ones(accuracy.shape, dtype=bool)
    for name in names:
        baseline = counts.rates[name]
        margin = thresholds.syntactic * (baseline if thresholds.syntactic_relative else 1.0)
        passed &= (accuracy - baseline >= margin - FRACTION) & (accuracy > baseline)
    return passed
