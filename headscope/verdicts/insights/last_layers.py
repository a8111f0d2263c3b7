"""Where the cross-attention heads lie that a joint pruning of an encoder-decoder model leaves.

References
----------
Voita et al. 2019, arXiv:1905.09418, section 6 (heads of all stacks pruned together).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from headscope.results.insights import InsightPart
from headscope.results.points import Curve
from headscope.results.prune import PruneResult
from headscope.verdicts.insights.intervals import FAILS, HOLDS, OPEN, UNKNOWN

__all__ = ["NO_TASK", "Survivors", "needs_its_heads", "of_survivors"]

#: Random sets of survivors; they are drawn from numbers of layers, so many cost nothing.
_DRAWS = 9999
_NAME = "cross-attention survives in the last decoder layers"
#: Why nothing is said of a model that :func:`needs_its_heads` turns down: an untrained translator
#: with 0.5% of tokens right had all the areas that claim 4 asks for, a fifth of a point apart.
NO_TASK = "the model does the task no better than without any head"


@dataclass(frozen=True)
class Survivors:
    """What a joint pruning says, as a part of a claim, a sentence and numbers."""

    part: InsightPart
    sentence: str
    values: dict[str, object]


def of_survivors(pruned: PruneResult | None) -> Survivors:
    """Compare the mean layer of the cross-attention heads that are left with random survivors'.

    Read at the point of the joint curve, by the first method that chooses heads, where the share of
    cross-attention heads left is nearest to a half (of two, the one with more left). What is drawn
    at random is which heads survive: as many, of all cross-attention heads alike. Examples are not
    resampled: heads were chosen once, on the calibration data.
    """
    curve = _joint_curve(pruned)
    if pruned is None or curve is None:
        why = "heads of all stacks were not pruned together over a whole curve"
        return Survivors(InsightPart(_NAME, "not measured yet", why), "", {})
    if not needs_its_heads(pruned):
        return Survivors(InsightPart(_NAME, UNKNOWN, NO_TASK), "", {})
    of_layer = _cross(curve.points[-1].heads_removed)
    n = of_layer.total()
    gone = [_cross(point.heads_removed) for point in curve.points]
    between = [removed for removed in gone if 0 < removed.total() < n]
    if not between or len(of_layer) < 2:
        why = "no point of the joint curve has some cross-attention heads and lacks others"
        if len(of_layer) < 2:
            why = "the decoder has one layer with cross-attention"
        return Survivors(InsightPart(_NAME, UNKNOWN, why), "", {})
    removed = min(between, key=lambda found: (abs(2 * found.total() - n), found.total()))
    left = {layer: of_layer[layer] - removed[layer] for layer in sorted(of_layer)}
    return _compared(curve.method, left, of_layer)


def needs_its_heads(pruned: PruneResult) -> bool:
    """Whether the whole model is better than the one without any head, by the paired interval.

    True where heads of all stacks were not pruned together, so that nobody looked.
    """
    curve = _joint_curve(pruned)
    if curve is None or curve.points[-1].difference_ci is None:
        return True
    return max(pruned.sign * end for end in curve.points[-1].difference_ci) < 0


def _joint_curve(pruned: PruneResult | None) -> Curve | None:
    return None if pruned is None else next(filter(_is_joint, pruned.curves), None)


def _is_joint(curve: Curve) -> bool:
    if curve.method == "random" or curve.points[-1].fraction < 1.0:
        return False
    stacks = {place[0] for place in curve.points[-1].heads_removed if len(place) == 3}
    return {"decoder", "cross"} <= stacks


def _cross(heads: tuple[tuple[object, ...], ...]) -> Counter[int]:
    """Count cross-attention heads by layer."""
    layers = (int(str(place[1])) for place in heads if len(place) == 3 and place[0] == "cross")
    return Counter(layers)


def _compared(method: str, left: dict[int, int], of_layer: Counter[int]) -> Survivors:
    layers = np.repeat(list(left), [of_layer[layer] for layer in left])
    k, own = sum(left.values()), sum(layer * count for layer, count in left.items())
    order = np.random.default_rng(0).random((_DRAWS, len(layers))).argsort(axis=1)
    sums = layers[order[:, :k]].sum(axis=1)  # of layers, so whole numbers

    def p(extreme: int) -> float:
        later = extreme * len(layers) >= k * int(layers.sum())
        as_far = sums >= extreme if later else sums <= extreme
        return float((1 + as_far.sum()) / (1 + _DRAWS))

    low, high = np.quantile(sums, (0.025, 0.975), method="closest_observation") / k
    verdict = OPEN
    if min(p(int(layers[:k].sum())), p(int(layers[-k:].sum()))) > 0.025:
        verdict = UNKNOWN  # too few heads for any choice of them to be told from chance
    elif p(own) <= 0.025:
        verdict = HOLDS if own / k > layers.mean() else FAILS
    shares = ", ".join(f"L{layer} {left[layer]}/{of_layer[layer]}" for layer in left)
    text = (
        f"mean layer {own / k:.2f}, of random survivors {layers.mean():.2f} [{low:.2f}, {high:.2f}]"
    )
    return Survivors(
        InsightPart(_NAME, verdict, text),
        f"Where {method} has pruned all stacks together, {k} of {len(layers)} cross-attention "
        f"heads are left: {shares}; {text}.",
        {
            "survivors": {str(layer): count for layer, count in left.items()},
            "survivors_of": {str(layer): of_layer[layer] for layer in left},
            "survivors_mean_layer": own / k,
            "survivors_random": float(layers.mean()),
            "survivors_random_interval": [float(low), float(high)],
            "survivors_p": p(own),
        },
    )
