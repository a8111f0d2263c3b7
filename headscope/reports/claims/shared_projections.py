"""Claim 3: single heads are not low rank, but their concatenated product is.

dims90 is the number of singular values of W_Q W_K^T that hold 90% of the sum. The claim is decided
by dims90 of each layer, with its heads side by side as one, and of each head, both divided by
dims90 of random weights of the same shape (their *ratio*). ``headscope rank`` measures them, with
two controls: ``gaussian`` entries and ``fresh`` initialisation. Of a model that rotates queries and
keys it is decided at distance 0; the range over distances, and whether layers need fewer dimensions
at all of them, stand beside the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headscope.analyses.rank.distances import at_zero, distances_sentence
from headscope.analyses.rank.result import ControlRank, HeadRank, LayerRank, RankResult
from headscope.reports.claims.bar import Bar
from headscope.reports.claims.intervals import common, every, mean_estimate, shown
from headscope.reports.claims.rule import (
    NOT_YET,
    Claim,
    ClaimPart,
    Evidence,
    Rule,
    lies_below,
    lies_between,
)
from headscope.reports.result import Insight, InsightPart
from headscope.stats.estimate import Estimate

#: What decides the claim. ``rule`` says it in words, ``lies`` where the estimate's interval has
#: to lie for the part to hold (``{bound}`` in these words).
PARTS = {
    "fewer": ClaimPart(
        name="layers need fewer dimensions than the control",
        rule="the layers' dimensions that hold 90%, as a share of the control's, is {bound}",
        lies=lambda thresholds: lies_below(1 - thresholds.layer_below),
        join=common,
        percent=True,
    ),
    "single": ClaimPart(
        name="single heads need about as many",
        rule="the heads' is {bound}",
        lies=lambda thresholds: lies_between(
            1 - thresholds.head_within, 1 + thresholds.head_within
        ),
        join=common,
        percent=True,
    ),
    "not_counted_distances": ClaimPart(
        name="not counted: layers need fewer dimensions at every distance",
        lies=lambda thresholds: lies_below(1 - thresholds.layer_below),
        join=every,
        percent=True,
    ),
}


def judge(rule: Rule, evidence: Evidence) -> Insight:
    """Decide by the dimensions that layers and heads need, over each control's."""
    rank = evidence.rank
    if rank is None:
        return rule.missing("rank")
    # The mean ratio of layers, and of heads, by the name of the control.
    layer_ratios: dict[str, Estimate] = {}
    head_ratios: dict[str, Estimate] = {}
    for name, control in rank.controls.items():
        if control is None:
            continue
        ratios_of_layers, ratios_of_heads = _ratios(rank, control)
        if ratios_of_layers and ratios_of_heads:
            layer_ratios[name] = mean_estimate(ratios_of_layers)
            head_ratios[name] = mean_estimate(ratios_of_heads)
    if not layer_ratios:
        return rule.insight(NOT_YET, "no control was measured")
    if max(len(layer.heads) for layer in rank.layers) < 2:
        why = "Each layer has one head, which shares with nobody."
        return rule.insight("not applicable", why)

    head_dims90 = _mean_dims90(rank.heads)
    layer_dims90 = _mean_dims90(rank.layers)
    controls = [
        f"{name}: layers at {shown(layer_ratios[name])} of it, heads at {shown(head_ratios[name])}"
        for name in layer_ratios
    ]
    values: dict[str, Any] = {"head_dims90": head_dims90, "layer_dims90": layer_dims90}
    for name in layer_ratios:
        values[name] = {
            "layer_ratio": _plain_values(layer_ratios[name]),
            "head_ratio": _plain_values(head_ratios[name]),
        }
    fewer = rule.part("fewer", layer_ratios.values(), _by_control(layer_ratios))
    single = rule.part("single", head_ratios.values(), _by_control(head_ratios))
    return rule.concluded(
        parts=(fewer, single),
        measured=(
            f"dimensions that hold 90% of W_QW_Kᵀ{at_zero(rank)}: {head_dims90:.1f} for one head, "
            f"{layer_dims90:.1f} for all heads of a layer together. {distances_sentence(rank)}"
        ).strip(),
        control=f"{'; '.join(controls)}.",
        values=values,
        refuting=(fewer.name,),
        not_counted=_distances_part(rule, rank),
    )


def _distances_part(rule: Rule, rank: RankResult) -> list[InsightPart]:
    """Decide whether layers need fewer dimensions than the controls at every distance.

    By the most dimensions that each layer needs at any distance, over the most that random layers
    need. Empty for a model that rotates nothing.
    """
    ratios: dict[str, Estimate] = {}
    for kind in rank.controls:
        layer_ratios: list[float] = []
        for layer in rank.layers:
            random = rank.control_range(layer, kind)
            extremes = layer.over_distances
            if (
                extremes is not None
                and extremes.dims90_high
                and random is not None
                and random.dims90_high
            ):
                layer_ratios.append(extremes.dims90_high / random.dims90_high)
        if layer_ratios:
            ratios[kind] = mean_estimate(layer_ratios)
    if not ratios:
        return []
    return [rule.part("not_counted_distances", ratios.values(), _by_control(ratios))]


def _ratios(rank: RankResult, control: ControlRank) -> tuple[list[float], list[float]]:
    """Return dims90 of each layer, and of each head, over those of one control.

    A layer is compared with random layers of as many heads; without such, it is left out.
    """
    layer_ratios: list[float] = []
    head_ratios: list[float] = []
    for layer in rank.layers:
        random = control.of(len(layer.heads))
        if random is None:
            continue
        random_layer = random.layers["qk"].dims["90"]
        layer_dims = layer.qk.dims["90"]
        if layer_dims is not None and random_layer:
            layer_ratios.append(layer_dims / random_layer)
        random_head = random.heads["qk"].dims["90"]
        for head in rank.heads:
            head_dims = head.qk.dims["90"]
            in_layer = (head.stack, head.layer) == (layer.stack, layer.layer)
            if in_layer and head_dims is not None and random_head:
                head_ratios.append(head_dims / random_head)
    return layer_ratios, head_ratios


def _mean_dims90(rows: Sequence[HeadRank] | Sequence[LayerRank]) -> float:
    """Return the mean of the dims90 that are known."""
    known = [row.qk.dims["90"] for row in rows if row.qk.dims["90"] is not None]
    return sum(known) / max(len(known), 1)


def _plain_values(ratio: Estimate) -> dict[str, float | None]:
    """Return a ratio and its interval as the result's values hold them."""
    return {"mean": ratio.value, "low": ratio.low, "high": ratio.high}


def _by_control(ratios: Mapping[str, Estimate]) -> str:
    """Write the ratio to each control."""
    return ", ".join(f"{shown(ratio)} of {name}" for name, ratio in ratios.items())


def bar(values: Mapping[str, Any]) -> Bar:
    """Lead with the layers' dimensions as a share of what Gaussian weights need."""
    ratio = values["gaussian"]["layer_ratio"]
    return Bar(
        caption="dimensions of a layer's W_QW_Kᵀ, share of random ones",
        value=ratio["mean"],
        low=ratio["low"],
        high=ratio["high"],
        control=1.0,
        control_name="random",
    )


CLAIM = Claim(
    number=3,
    text="Single heads are not low rank, but the concatenated product is: heads share projections.",
    paper="Cordonnier et al. 2020, Multi-head attention: collaborate instead of concatenate",
    parts=PARTS,
    closing="Both count against every control; intervals are over layers and over heads, and one "
    "layer has none. Does not hold if layers are below no control.",
    judge=judge,
    bar=bar,
)
