"""The rule of syntactic labels: selected on one half of a corpus, confirmed on the other.

Everything that is chosen (a relation, an offset, a kernel) is chosen on half A and judged on half
B, so that a label is no best of many. Numbers and conditions: ``docs/definitions/roles.md``.

A :class:`Syntactic` has what was counted: for each (half, relation, direction) the trials, the hits
of every head, and the hits of baselines such as "always the last word". Half A is 0, half B 1.
:func:`judge_relations` is the rule. It takes a :class:`_Counts` of each relation and half, and
returns a :class:`SyntacticTest` of all heads for each relation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from headscope.analyses.classify.scores import Confirmation, SyntacticScore
from headscope.analyses.classify.syntactic import WORDLESS, Syntactic
from headscope.core.accumulator import Array
from headscope.core.roles import Thresholds
from headscope.core.rounding import FRACTION, tied
from headscope.data.edge_trials import TREE_WAYS
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import adjust, mcnemar_p, paired_p, wilson

#: Relations that are scored but never make a label; punctuation has a role of its own.
UNLABELLED = ("punct", "root")
#: Baselines that the accuracy by piece means must exceed too; ``uniform`` and ``kernel`` say what
#: attention hits that is summed over pieces.
_POSITIONAL = ("offset", "first", "last")
#: Texts with pairs of a user's label that each half needs: words of one text are no independent
#: evidence.
FEWEST_TEXTS = 8

Relation = tuple[str, str]  # A relation and its direction, as ("nsubj", "dep->head")


@dataclass
class _Counts:
    """One relation and direction on some sentences; arrays are (n_layers, n_heads)."""

    trials: int
    hits: Array  # Hits of each head, by the sum of attention over a word's pieces
    mean_hits: Array  # Hits of each head, by the mean over a word's pieces
    baselines: Mapping[str, Array | float]  # Hits of each baseline; one number is for all heads
    #: Trials that head and baseline both hit. ``uniform`` hits a trial with a probability, so its
    #: numbers are sums of probabilities.
    joint: Mapping[str, Array]
    uniform_squared: float  # Sum over trials of the squared probability of ``uniform``

    def __post_init__(self) -> None:
        n = max(self.trials, 1)
        #: Hits / trials, by sums and by piece means; the 95% Wilson interval of the first
        self.accuracy: Array = self.hits / n
        self.mean_accuracy: Array = self.mean_hits / n
        self.interval = wilson(self.hits, self.trials)
        #: Every baseline's accuracy for every head, (n_layers, n_heads)
        self.rates: dict[str, Array] = {
            name: np.broadcast_to(np.divide(hits, n), self.hits.shape)
            for name, hits in self.baselines.items()
        }

    def fields_of(self, head: tuple[int, int]) -> dict[str, Any]:
        """Return one head's values for the fields that SyntacticScore and Confirmation share.

        ``head`` is (layer, index among the layer's heads).
        """
        low, high = self.interval
        accuracy = Estimate(float(self.accuracy[head]), float(low[head]), float(high[head]))
        return {
            "accuracy": accuracy,
            "accuracy_mean": float(self.mean_accuracy[head]),
            "baselines": {name: float(rate[head]) for name, rate in self.rates.items()},
            "trials": self.trials,
        }

    def p_value(self) -> Array:
        """Return the largest p of the paired tests against offset, first, last and uniform."""
        p_values = []
        for name in _POSITIONAL:
            only_head = self.hits - self.joint[name]  # trials that the head alone hits
            only_baseline = self.baselines[name] - self.joint[name]
            p_values.append(mcnemar_p(only_head, only_baseline))
        over_uniform = paired_p(
            self.hits,
            self.joint["uniform"],
            float(self.baselines["uniform"]),
            self.uniform_squared,
            self.trials,
        )
        return np.asarray(np.max([*p_values, over_uniform], axis=0))

    def exceeds(self, accuracy: Array, names: Sequence[str], thresholds: Thresholds) -> Array:
        """Return which heads' accuracies exceed all these baselines by the margin."""
        passed = np.ones(accuracy.shape, dtype=bool)
        for name in names:
            baseline = self.rates[name]
            margin: Array | float = thresholds.syntactic
            if thresholds.syntactic_relative:
                margin = thresholds.syntactic * baseline
            passed &= (accuracy - baseline >= margin - FRACTION) & (accuracy > baseline)
        return passed


@dataclass(frozen=True)
class SyntacticTest:
    """All heads on one relation and direction; arrays are (n_layers, n_heads)."""

    relation: str  # As ``nsubj``
    direction: str  # As ``dep->head``
    offset: int  # The best word offset on all sentences; ``overall`` is measured with it
    overall: _Counts  # On all sentences
    chosen: _Counts  # On half A, with its best offset
    held_out: _Counts  # On half B, with the best offset of half A
    selected: Array  # Which heads half A selects
    confirmed: Array  # Which of them half B confirms: the labels
    p_adjusted: Array  # 1 where not selected

    def score(self, head: tuple[int, int]) -> SyntacticScore:
        """Return the score of one head."""
        overall = self.overall.fields_of(head)
        confirmation = None
        if self.selected[head]:
            held_out = self.held_out.fields_of(head)
            names = list(held_out["baselines"])
            accuracies = tied(list(held_out["baselines"].values()))  # equal where rounding differs
            strongest = names[int(accuracies.argmax())]  # the first of equal ones
            confirmation = Confirmation(
                strongest=strongest, p_adjusted=float(self.p_adjusted[head]), **held_out
            )
        return SyntacticScore(
            relation=self.relation,
            direction=self.direction,
            baseline=overall["baselines"]["offset"],
            baseline_offset=self.offset,
            uniform=overall["baselines"]["uniform"],
            selected=confirmation is not None,
            confirmed=confirmation,
            labelled=bool(self.confirmed[head]),
            **overall,
        )


class _Halves(NamedTuple):
    """The counts of one relation and direction: on all sentences, and on each half.

    On half A and on all sentences the offset baseline is the best one there; on half B it is that
    of half A.
    """

    name: Relation
    offset: int  # The best word offset on all sentences
    overall: _Counts
    half_a: _Counts
    half_b: _Counts


def why_untested(sums: Syntactic, name: Relation, thresholds: Thresholds) -> str:
    """Say why no head could earn a label of this relation and direction; empty where one could."""
    relation, direction = name
    if relation in UNLABELLED:
        return "scored, but never a label, as in a treebank"
    trials = []
    texts = []
    for half in (0, 1):
        known = sums.relations.known([(half, relation, direction)])
        trials.append(int(sums.trials[known].sum()))
        texts.append(int(sums.texts[known].sum()))
    if direction not in TREE_WAYS and min(texts) < FEWEST_TEXTS:
        return f"fewer than {FEWEST_TEXTS} different texts with such pairs in one half"
    if min(trials) < thresholds.min_trials:
        return f"fewer than {thresholds.min_trials} trials in one half of the texts"
    return ""


def judge_relations(
    sums: Syntactic, kernel_hits: Array, exists: Array, thresholds: Thresholds
) -> list[SyntacticTest]:
    """Apply the rule of syntactic labels to every relation and direction, in alphabetical order.

    On half A a (head, relation, direction) is *selected* when its accuracy exceeds every baseline
    by the margin. On half B it is *confirmed* when it does so again (offset and kernel as chosen on
    A), the accuracy of piece means exceeds the positional baselines too, and the paired tests
    against offset, first word, last word and uniform attention are significant: the largest of the
    four p, adjusted over the selected ones alone (Benjamini & Hochberg). Only what is confirmed is
    a label. Relations with too few trials or texts in either half are not tested.

    ``kernel_hits`` (relations, n_layers, n_heads) are what :func:`.kernel.kernel_hits` counts of
    the same trials; ``exists`` (n_layers, n_heads) marks where heads are.
    """
    # Select on half A.
    names = sorted({(relation, direction) for _, relation, direction in sums.relations.names})
    counted = [_count_halves(sums, kernel_hits, name) for name in names]
    if not counted:
        return []
    selected = []
    for relation in counted:
        half_a = relation.half_a
        testable = not why_untested(sums, relation.name, thresholds)
        beats_all = half_a.exceeds(half_a.accuracy, tuple(half_a.baselines), thresholds)
        selected.append(exists & testable & beats_all)

    # Confirm on half B.
    p_values = np.stack([relation.half_b.p_value() for relation in counted])
    p_adjusted = adjust(p_values, np.stack(selected))
    tests = []
    for relation, is_selected, p in zip(counted, selected, p_adjusted, strict=True):
        half_b = relation.half_b
        beats_all = half_b.exceeds(half_b.accuracy, tuple(half_b.baselines), thresholds)
        beats_all &= half_b.exceeds(half_b.mean_accuracy, _POSITIONAL, thresholds)
        tests.append(
            SyntacticTest(
                *relation.name,
                offset=relation.offset,
                overall=relation.overall,
                chosen=relation.half_a,
                held_out=half_b,
                selected=is_selected,
                confirmed=is_selected & (p <= thresholds.q) & beats_all,
                p_adjusted=p,
            )
        )
    return tests


def _count_halves(sums: Syntactic, kernel_hits: Array, name: Relation) -> _Halves:
    """Count on all sentences and on each half."""
    offset = _best_offset(sums, name, (0, 1))
    offset_of_a = _best_offset(sums, name, (0,))
    return _Halves(
        name,
        offset,
        overall=_counts(sums, kernel_hits, name, (0, 1), offset),
        half_a=_counts(sums, kernel_hits, name, (0,), offset_of_a),
        half_b=_counts(sums, kernel_hits, name, (1,), offset_of_a),
    )


def _best_offset(sums: Syntactic, name: Relation, halves: Sequence[int]) -> int:
    """Return the word offset that hits most trials; ties: the shortest, then the left one."""
    hits: dict[int, int] = {}
    for key, count in zip(sums.offsets.names, sums.offset_trials, strict=True):
        half, relation, direction, offset = key
        if half in halves and (relation, direction) == name:
            hits[offset] = hits.get(offset, 0) + int(count)
    if not hits:  # no trial: the previous word, which hits none either
        return -1
    return max(hits, key=lambda offset: (hits[offset], -abs(offset), -offset))


def _counts(
    sums: Syntactic,
    kernel_hits: Array,
    name: Relation,
    halves: Sequence[int],
    offset: int,
) -> _Counts:
    """Add up the trials of one relation and direction over halves, with baselines at an offset."""
    # Indices into the sums, one for each half in which the relation was seen.
    relations = sums.relations.known((half, *name) for half in halves)
    offsets = sums.offsets.known((half, *name, offset) for half in halves)
    wordless = sums.wordless[relations].sum(axis=0).tolist()  # [first, last, uniform]
    both_wordless = sums.both_wordless[relations].sum(axis=0)  # [3, n_layers, n_heads]
    baselines: dict[str, Array | float] = {
        "offset": float(sums.offset_trials[offsets].sum()),
        **dict(zip(WORDLESS, wordless, strict=True)),
        "kernel": kernel_hits[relations].sum(axis=0),
    }
    joint = {
        "offset": sums.both_offset[offsets].sum(axis=0),
        **dict(zip(WORDLESS, both_wordless, strict=True)),
    }
    return _Counts(
        trials=int(sums.trials[relations].sum()),
        hits=sums.hits[relations].sum(axis=0),
        mean_hits=sums.mean_hits[relations].sum(axis=0),
        baselines=baselines,
        joint=joint,
        uniform_squared=float(sums.uniform_squared[relations].sum()),
    )
