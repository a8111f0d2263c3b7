"""Whether a ranking of heads names those that matter: what its first heads do alone.

The first k heads of a ranking stay, all others are replaced by their mean over calibration text.
The share of the output's change from all heads at their mean to the whole model that comes back is
the faithfulness f(k). Mueller et al. 2025 (arXiv:2504.13151) integrate it over the share of heads::

    CPR   area under f, the largest effects first        does it as well?      more is better
    CMD   area between f and 1, the largest |effects|    does it do the same?  0 is the whole model

Rankings come from one half of the examples, and the other half judges them.

:func:`judge_rankings` is the whole measurement; :class:`_Curves`, at the end, turns outputs without
some heads into curves and areas. Areas have bootstrap intervals over the examples, and are computed
from ``counts`` (resamples, examples): how often each example was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.integrate import trapezoid

from headscope.analyses.attribute.calibration import Replacement
from headscope.analyses.attribute.outputs import Example
from headscope.analyses.attribute.removal import HeadSet, Versions
from headscope.analyses.attribute.result import Faithfulness, RankingCurve
from headscope.core.accumulator import Array
from headscope.core.progress import Progress
from headscope.core.rounding import ROUNDING, tied
from headscope.data.halves import halve
from headscope.data.token_rows import sentences_of
from headscope.models.run.loaded import LoadedModel
from headscope.stats.estimate import Estimate
from headscope.stats.metrics import Metric, Outputs
from headscope.stats.paired_change import interval_of

RANDOM_RANKINGS = 19
#: Shares of the heads that are kept, rounded up to whole heads; none and all besides.
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75)

Order = tuple[int, ...]  # Indices of all heads, the one that matters most first


class _Ranking(NamedTuple):
    """A ranking of the heads, in two orders."""

    signed: Order  # The largest effects first
    absolute: Order  # The largest sizes of effects first


def judge_rankings(
    loaded: LoadedModel,
    examples: Sequence[Example],
    heads: HeadSet,
    effects: Mapping[str, Array],
    means: Replacement,
    progress: Progress,
    *,
    circuit: Sequence[int],
    seed: int,
) -> Faithfulness | None:
    """Judge rankings of the heads, and random ones beside them.

    ``effects`` has for each ranking, by its name, the effects (examples, heads) that it ranks by;
    ``means`` is what removed heads leave behind; ``circuit`` holds the indices of heads that are
    known to make the output. Returns None where all heads at their mean leave the outputs as they
    are.
    """
    # Which examples rank the heads, and which judge the rankings
    ranking_examples, judging_examples = _halves(examples, seed)
    same = ranking_examples == judging_examples

    # The change from all heads at their mean to the whole model
    versions = [Versions(loaded, example) for example in examples]  # runs each without any heads
    whole_outputs = np.array([version.output for version in versions])
    ablated_outputs = np.array([version.outputs([heads], means)[0] for version in versions])
    change = whole_outputs - ablated_outputs
    output_sizes = (
        np.abs(whole_outputs[judging_examples]).sum()
        + np.abs(ablated_outputs[judging_examples]).sum()
    )
    if not np.abs(change[judging_examples]).sum() > ROUNDING * output_sizes:
        return None
    # Heads may raise one output and lower another: each counts in the direction of its change.
    direction = np.sign(change)

    # Rankings
    scores: dict[str, Array] = {}  # (heads,): the mean effect of each head
    rankings: dict[str, _Ranking] = {}
    for name, effect in effects.items():
        directed = direction[:, None] * effect
        score = tied(directed[ranking_examples].mean(0))
        scores[name] = score
        rankings[name] = _Ranking(_descending(score), _descending(np.abs(score)))
    rng = np.random.default_rng(abs(seed))
    random_orders = [tuple(rng.permutation(len(heads)).tolist()) for _ in range(RANDOM_RANKINGS)]
    random_rankings = [_Ranking(order, order) for order in random_orders]

    # What the first heads of each bring back
    kept_counts = sorted({math.ceil(share * len(heads)) for share in SHARES} - {len(heads)})
    removed_sets = _removed_sets([*random_rankings, *rankings.values()], kept_counts)
    head_sets = [[heads[j] for j in sorted(removed)] for removed in removed_sets]
    brought_back = np.empty((len(judging_examples), len(removed_sets)))
    for n_done, i in enumerate(judging_examples):
        outputs = versions[i].outputs(head_sets, means)
        brought_back[n_done] = direction[i] * (outputs - ablated_outputs[i])
        progress("rankings judged", n_done + 1, len(judging_examples))

    # Curves and areas of that
    curves = _Curves(
        kept_counts=kept_counts,
        n_heads=len(heads),
        total=np.abs(change[judging_examples]),
        brought_back=dict(zip(removed_sets, brought_back.T, strict=True)),
        seed=seed,
    )
    random_curves = tuple(curves.of_ranking("random", ranking) for ranking in random_rankings)
    judged_curves = []
    for name, ranking in rankings.items():
        roc = _roc(np.abs(scores[name]), circuit) if circuit else None
        curve = replace(curves.of_ranking(name, ranking), roc=roc)
        judged_curves.append(_against_random(curve, random_curves))
    return Faithfulness(
        kept=(0, *kept_counts, len(heads)),
        ranked=len(ranking_examples),
        judged=len(judging_examples),
        same=same,
        output=float(whole_outputs[judging_examples].mean()),
        ablated=float(ablated_outputs[judging_examples].mean()),
        rankings=tuple(judged_curves),
        random=random_curves,
    )


def _halves(examples: Sequence[Example], seed: int) -> tuple[list[int], list[int]]:
    """Split examples into two halves that share no sentence; returns the indices of each.

    The first half ranks the heads, the second judges the rankings. A single example, or examples
    that all share sentences, do both.
    """
    sentences: list[list[Hashable]] = []
    for example in examples:
        in_example: list[Hashable] = []
        for row in example.rows:
            in_example += sentences_of(row)
        sentences.append(in_example)
    ranking, judging = halve(sentences, seed)
    if len(ranking) and len(judging):
        return list(ranking), list(judging)
    all_examples = list(range(len(examples)))
    return all_examples, all_examples


def _descending(scores: Array) -> Order:
    """Return the indices of heads, the largest score first; of equal ones the lowest index."""
    return tuple(np.argsort(-scores, kind="stable").tolist())


def _removed_sets(rankings: Sequence[_Ranking], kept_counts: Sequence[int]) -> list[frozenset[int]]:
    """List the sets of heads that are removed so that the first ones of a ranking stay.

    Each set once: of the order (2, 0, 1) with 1 and 2 heads kept, {0, 1} and {1}.
    """
    removed: dict[frozenset[int], None] = {}  # a set that remembers its order
    for ranking in rankings:
        for order in ranking:
            removed |= dict.fromkeys(frozenset(order[n_kept:]) for n_kept in kept_counts)
    return list(removed)


def _roc(scores: Array, circuit: Sequence[int]) -> float | None:
    """Return the area under the ROC curve of a circuit; None if it has all heads.

    That is the chance that a head of the circuit has a larger score than another; ties count half.
    """
    in_circuit = np.isin(np.arange(len(scores)), circuit)
    differences = scores[in_circuit][:, None] - scores[~in_circuit]  # (circuit, others)
    if not differences.size:
        return None
    return float((np.sign(differences).mean() + 1) / 2)


def _against_random(curve: RankingCurve, random: Sequence[RankingCurve]) -> RankingCurve:
    """Add p-values: how often random rankings are at least as good."""
    better = sum(float(random_curve.cpr) >= float(curve.cpr) for random_curve in random)
    nearer = sum(float(random_curve.cmd) <= float(curve.cmd) for random_curve in random)
    draws = len(random)
    return replace(curve, cpr_p=(1 + better) / (1 + draws), cmd_p=(1 + nearer) / (1 + draws))


# --- curves and areas -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Curves:
    """What keeping the first heads of a ranking brings back, example by example."""

    kept_counts: Sequence[int]  # How many heads are kept; none and all are added
    n_heads: int
    total: Array  # (examples,): the size of the change from all heads at their mean to the model
    #: (examples,): how much of it comes back, by the set of removed heads
    brought_back: Mapping[frozenset[int], Array]
    seed: int  # Of the bootstrap over examples

    def of_ranking(self, name: str, ranking: _Ranking) -> RankingCurve:
        """Return the curves of a ranking's two orders, and an area of each."""
        shares = np.array([0, *self.kept_counts, self.n_heads]) / self.n_heads
        signed, cpr = self._measured(ranking.signed, partial(_area_under, shares))
        absolute, cmd = self._measured(ranking.absolute, partial(_area_to_one, shares))
        return RankingCurve(name, signed, absolute, cpr, cmd)

    def _measured(self, order: Order, area: Metric) -> tuple[tuple[float, ...], Estimate]:
        """Return the faithfulness of an order, and its area with an interval over examples."""
        by_count = [self.brought_back[frozenset(order[k:])] for k in self.kept_counts]
        nothing = np.zeros_like(self.total)
        back = np.stack([nothing, *by_count, self.total], 1)  # (examples, kept)
        outputs = {"change": self.total, "back": back}
        once_each = np.ones((1, len(self.total)))
        curve = tuple(_faithfulness(outputs, once_each)[0].tolist())
        return curve, interval_of(area, outputs, seed=self.seed)


def _faithfulness(outputs: Outputs, counts: Array) -> Array:
    """Return the share of the change that comes back, (resamples, kept)."""
    change = np.maximum(counts @ outputs["change"], np.finfo(float).tiny)
    return np.asarray((counts @ outputs["back"]) / change[:, None])


def _area_under(shares: Array, outputs: Outputs, counts: Array) -> Array:
    """Return CPR, (resamples,)."""
    return np.asarray(trapezoid(_faithfulness(outputs, counts), shares, axis=1))


def _area_to_one(shares: Array, outputs: Outputs, counts: Array) -> Array:
    """Return CMD, (resamples,)."""
    gap = np.abs(1 - _faithfulness(outputs, counts))
    return np.asarray(trapezoid(gap, shares, axis=1))
