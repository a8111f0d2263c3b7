"""Which cross-attention heads a joint pruning of all stacks leaves: evidence of claims 2 and 4."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from headscope.core.accumulator import Array
from headscope.pruning.result import Curve, PruneResult
from headscope.reports.claims.intervals import FAILS, HOLDS, NOT_MEASURED, OPEN
from headscope.reports.claims.rule import NOT_YET

_DRAWS = 9999  # Random sets of survivors: they are drawn from numbers of layers and cost nothing.
_TAIL = 0.025  # Of a two-sided test at 5%.

NO_TASK = "the model does the task no better than without any head"


@dataclass(frozen=True)
class Survivors:
    """Whether the cross-attention heads that are left lie later than random ones."""

    outcome: str
    measured: str  # The numbers, or why there are none
    sentence: str = ""  # The same with where it was read; begins with a space, empty without
    values: dict[str, Any] | None = None


def judge_survivors(pruned: PruneResult | None) -> Survivors:
    """Compare the mean layer of the cross-attention heads that are left with random survivors'.

    Read at the point of the joint curve, by the first method that chooses heads, where the share of
    cross-attention heads left is nearest to a half (of two, the one with more left). What is drawn
    at random is which heads survive: as many, of all cross-attention heads alike. Examples are not
    resampled: heads were chosen once, on the calibration data.
    """
    curve = joint_curve(pruned)
    if pruned is None or curve is None:
        return Survivors(NOT_YET, "heads of all stacks were not pruned together over a whole curve")
    if not needs_its_heads(pruned):
        return Survivors(NOT_MEASURED, NO_TASK)

    # How many cross-attention heads each layer has, and how many of them the point has removed.
    removed_by_point = [_cross_heads(point.heads_removed) for point in curve.points]
    heads = removed_by_point[-1]  # the last point has none left
    n_heads = heads.total()
    if len(heads) < 2:
        return Survivors(NOT_MEASURED, "the decoder has one layer with cross-attention")
    between = [removed for removed in removed_by_point if 0 < removed.total() < n_heads]
    if not between:
        why = "no point of the joint curve has some cross-attention heads left, not all"
        return Survivors(NOT_MEASURED, why)
    removed = min(between, key=lambda counts: (abs(2 * counts.total() - n_heads), counts.total()))
    remaining = {layer: heads[layer] - removed[layer] for layer in sorted(heads)}
    n_remaining = sum(remaining.values())

    # The sum of their layers, and that of random sets of as many heads: whole numbers.
    layers = np.repeat(list(remaining), [heads[layer] for layer in remaining])
    layer_sum = sum(layer * count for layer, count in remaining.items())
    order = np.random.default_rng(0).random((_DRAWS, n_heads)).argsort(axis=1)
    random_sums = layers[order[:, :n_remaining]].sum(axis=1)
    p = _p_of(layer_sum, random_sums, layers, n_remaining)
    outcome = _outcome(layer_sum, random_sums, layers, n_remaining)

    mean_layer = layer_sum / n_remaining
    random_mean = float(layers.mean())
    low, high = np.quantile(random_sums, (0.025, 0.975), method="closest_observation") / n_remaining
    shares = ", ".join(f"L{layer} {count}/{heads[layer]}" for layer, count in remaining.items())
    measured = (
        f"mean layer {mean_layer:.2f}, of random survivors {random_mean:.2f} "
        f"[{low:.2f}, {high:.2f}]"
    )
    sentence = (
        f" Where {curve.method} has pruned all stacks together, {n_remaining} of {n_heads} "
        f"cross-attention heads are left: {shares}; {measured}."
    )
    values = {
        "survivors": {str(layer): count for layer, count in remaining.items()},
        "survivors_of": {str(layer): heads[layer] for layer in remaining},
        "survivors_mean_layer": mean_layer,
        "survivors_random": random_mean,
        "survivors_random_interval": [float(low), float(high)],
        "survivors_p": p,
    }
    return Survivors(outcome, measured, sentence, values)


def _cross_heads(removed: tuple[tuple[Any, ...], ...]) -> Counter[int]:
    """Count the removed heads of cross-attention by layer."""
    return Counter(int(head[1]) for head in removed if len(head) == 3 and head[0] == "cross")


def _outcome(layer_sum: int, random_sums: Array, layers: Array, n_remaining: int) -> str:
    """Decide whether the survivors' layers add up to more than random ones', two-sided at 5%.

    ``layers`` are those of all cross-attention heads, ascending.
    """
    earliest = int(layers[:n_remaining].sum())
    latest = int(layers[-n_remaining:].sum())
    earliest_p = _p_of(earliest, random_sums, layers, n_remaining)
    latest_p = _p_of(latest, random_sums, layers, n_remaining)
    if min(earliest_p, latest_p) > _TAIL:
        return NOT_MEASURED  # too few heads for any choice of them to be told from chance
    if _p_of(layer_sum, random_sums, layers, n_remaining) > _TAIL:
        return OPEN
    return HOLDS if layer_sum / n_remaining > layers.mean() else FAILS


def _p_of(layer_sum: int, random_sums: Array, layers: Array, n_remaining: int) -> float:
    """Return the share of random sets whose layers add up to a number as far out on its side."""
    if layer_sum * len(layers) >= n_remaining * int(layers.sum()):
        as_extreme = random_sums >= layer_sum
    else:
        as_extreme = random_sums <= layer_sum
    return float((1 + as_extreme.sum()) / (1 + len(random_sums)))


def joint_curve(pruned: PruneResult | None) -> Curve | None:
    """Return the first curve that removes heads of all stacks to the last, by a chosen order."""
    if pruned is None:
        return None
    for curve in pruned.curves:
        last = curve.points[-1]
        stacks = {head[0] for head in last.heads_removed if len(head) == 3}
        if curve.method != "random" and last.fraction >= 1.0 and {"decoder", "cross"} <= stacks:
            return curve
    return None


def needs_its_heads(pruned: PruneResult) -> bool:
    """Whether the whole model is better than the one without any head, by the paired interval.

    The areas alone do not decide claim 4: an untrained translator with 0.5% of tokens right had
    them in the order asked for, a fifth of a point apart. True where this was not measured, because
    the heads of all stacks were not pruned together.
    """
    curve = joint_curve(pruned)
    change = None if curve is None else curve.points[-1].difference
    if change is None or change.interval is None:
        return True
    return max(pruned.sign * limit for limit in change.interval) < 0
