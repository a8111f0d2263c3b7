"""Whether a ranking of heads names those that matter: what its first heads do alone.

The first k heads of a ranking stay, all others are replaced by their mean over calibration text.
The share of the output's change from all heads at their mean to the whole model that comes back is
the faithfulness f(k). Mueller et al. 2025 (arXiv:2504.13151) integrate it over the share of heads::

    CPR   area under f, the largest effects first        does it as well?      more is better
    CMD   area between f and 1, the largest |effects|    does it do the same?  0 is the whole model

Rankings come from one half of the examples, and the other half judges them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
from scipy.integrate import trapezoid

from headscope.analyses.attribute.measure import Example
from headscope.analyses.attribute.removal import Heads, Replacement, Versions
from headscope.analyses.attribute.result import Faithfulness, RankingCurve
from headscope.core.accumulator import Array
from headscope.core.progress import Progress
from headscope.core.rounding import ROUNDING, tied
from headscope.data.halves import halve
from headscope.data.token_rows import sentences_of
from headscope.models.run.loaded import LoadedModel
from headscope.stats.estimate import Estimate
from headscope.stats.metrics import Outputs
from headscope.stats.paired_change import interval_of

#: Shares of the heads that are kept, rounded up to whole heads; none and all besides.
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75)
Order = tuple[int, ...]  # Indices of all heads, those that are kept longest first


def judge_rankings(
    loaded: LoadedModel,
    examples: Sequence[Example],
    heads: Heads,
    effects: Mapping[str, Array],
    means: Replacement,
    progress: Progress,
    *,
    n_random: int,
    circuit: Sequence[int],
    seed: int,
) -> Faithfulness | None:
    """Judge the rankings of heads by their ``effects`` (examples, heads), and random rankings.

    ``circuit`` holds the indices of heads that are known to make the output. Returns None where all
    heads at their mean leave the outputs as they are.
    """
    texts = [[text for row in example.rows for text in sentences_of(row)] for example in examples]
    ranked, judged = map(list, halve(texts, seed))
    if same := not (ranked and judged):
        ranked = judged = list(range(len(examples)))
    versions = [Versions(loaded, example) for example in examples]
    ends = np.array([of.measure([(), heads], means) for of in versions])
    change = ends[:, 0] - ends[:, 1]
    if not np.abs(change[judged]).sum() > ROUNDING * np.abs(ends[judged]).sum():
        return None
    # Heads may raise one output and lower another: each counts in the direction of its change.
    direction = np.sign(change)[:, None]
    scores = {name: tied((direction * of)[ranked].mean(0)) for name, of in effects.items()}
    orders = {name: (_descending(of), _descending(np.abs(of))) for name, of in scores.items()}
    rng = np.random.default_rng(abs(seed))
    n = len(heads)
    random: list[Order] = [tuple(rng.permutation(n).tolist()) for _ in range(n_random)]

    head_counts = sorted({math.ceil(share * n) for share in SHARES} - {n})
    every = [*random, *chain(*orders.values())]
    removed = list(dict.fromkeys(frozenset(order[k:]) for order in every for k in head_counts))
    sets = [[heads[i] for i in sorted(of)] for of in removed]
    back = np.empty((len(judged), len(sets)))
    for row, i in enumerate(judged):
        back[row] = direction[i] * (versions[i].measure(sets, means) - ends[i, 1])
        progress("rankings judged", row + 1, len(judged))
    of_set = dict(zip(removed, back.T, strict=True))
    total = np.abs(change[judged])

    shares = np.array([0, *head_counts, n]) / n
    ones = np.ones((1, len(judged)))

    def measured(
        order: Order, area: Callable[[Array, Outputs, Array], Array]
    ) -> tuple[tuple[float, ...], Estimate]:
        """Return the faithfulness of an order, and its area with an interval over examples."""
        inner = [of_set[frozenset(order[k:])] for k in head_counts]
        outputs = {"change": total, "back": np.stack([0 * total, *inner, total], 1)}
        curve = tuple(_faithfulness(outputs, ones)[0].tolist())
        return curve, interval_of(partial(area, shares), outputs, seed=seed)

    def curve_of(name: str, signed: Order, absolute: Order) -> RankingCurve:
        (first, cpr) = measured(signed, _under)
        (second, cmd) = measured(absolute, _gap)
        return RankingCurve(name, first, second, cpr, cmd)

    others = tuple(curve_of("random", order, order) for order in random)
    curves = []
    for name, both in orders.items():
        curve = curve_of(name, *both)
        better = (float(of.cpr) >= float(curve.cpr) for of in others)
        nearer = (float(of.cmd) <= float(curve.cmd) for of in others)
        p = [(1 + sum(as_good)) / (1 + n_random) for as_good in (better, nearer)]
        roc = _roc(np.abs(scores[name]), circuit) if circuit else None
        curves.append(replace(curve, cpr_p=p[0], cmd_p=p[1], roc=roc))
    return Faithfulness(
        kept=(0, *head_counts, n),
        ranked=len(ranked),
        judged=len(judged),
        same=same,
        output=float(ends[judged, 0].mean()),
        ablated=float(ends[judged, 1].mean()),
        rankings=tuple(curves),
        random=others,
    )


def _descending(scores: Array) -> Order:
    """Return the indices of heads, the largest score first; of equal ones the lowest index."""
    return tuple(np.argsort(-scores, kind="stable").tolist())


def _faithfulness(outputs: Outputs, counts: Array) -> Array:
    """Return the share of the change that comes back, (resamples, kept)."""
    change = np.maximum(counts @ outputs["change"], np.finfo(float).tiny)
    return np.asarray((counts @ outputs["back"]) / change[:, None])


def _under(shares: Array, outputs: Outputs, counts: Array) -> Array:
    return np.asarray(trapezoid(_faithfulness(outputs, counts), shares, axis=1))


def _gap(shares: Array, outputs: Outputs, counts: Array) -> Array:
    return np.asarray(trapezoid(np.abs(1 - _faithfulness(outputs, counts)), shares, axis=1))


def _roc(scores: Array, circuit: Sequence[int]) -> float | None:
    """Return the chance that a head of the circuit has a larger score than another, ties half."""
    members = np.isin(np.arange(len(scores)), circuit)
    pairs = scores[members][:, None] - scores[~members]
    return float((np.sign(pairs).mean() + 1) / 2) if pairs.size else None
