"""Claim 3: heads share projections."""

from __future__ import annotations

from collections.abc import Sequence

from headscope.results.insights import InsightPart
from headscope.results.rank import ControlRank, ControlStatistics, HeadRank, LayerRank, RankResult
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import Estimate, common, mean_estimate
from headscope.verdicts.insights.thresholds import InsightThresholds

__all__ = ["judge"]

#: The part that decides against the claim where it does not hold.
_LAYERS = "layers need fewer dimensions than the control"


def judge(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 3 by dims90 of W_Q W_K^T, of layers and of heads, over each control's."""
    below, within = thresholds.layer_below, thresholds.head_within
    rule = (
        f"Holds if, against every control, the layers' dims90 lies more than {below:.0%} below "
        f"the control's and the heads' within {within:.0%} of it (95% intervals over layers and "
        "over heads; one layer has none); does not hold if the layers' does not against "
        "any."
    )
    rank = evidence.rank
    if rank is None:
        return Finding("not measured yet", rule, "rank was not part of this run")
    layers, heads = _over_controls(rank)
    if not layers:
        return Finding("not measured yet", rule, "no control was measured")
    if max(len(layer.heads) for layer in rank.layers) < 2:
        return Finding("not applicable", rule, "Each layer has one head, which shares with nobody.")
    low = common([ratio.below(1 - below) for ratio in layers.values()])
    near = common([ratio.within(1 - within, 1 + within) for ratio in heads.values()])
    parts = (
        InsightPart(_LAYERS, low, _beside(layers)),
        InsightPart("single heads need about as many", near, _beside(heads)),
    )
    of_head, of_layer = _mean(_dims90(rank.heads)), _mean(_dims90(rank.layers))
    values: dict[str, object] = {"head_dims90": of_head, "layer_dims90": of_layer}
    for name, ratio in layers.items():
        values[name] = {"layer_ratio": vars(ratio), "head_ratio": vars(heads[name])}
    beside = (f"{name}: layers at {layers[name]} of it, heads at {heads[name]}" for name in layers)
    return Finding.concluded(
        parts,
        f"dims90 of W_Q W_K^T: {of_head:.1f} for one head, {of_layer:.1f} for all heads "
        f"of a layer together.",
        f"{'; '.join(beside)}.",
        rule,
        values,
        refuting=(_LAYERS,),
    )


def _beside(ratios: dict[str, Estimate]) -> str:
    """Write a ratio over each control's."""
    return ", ".join(f"{ratio} of {name}" for name, ratio in ratios.items())


def _over_controls(rank: RankResult) -> tuple[dict[str, Estimate], dict[str, Estimate]]:
    """Measured over each control's, by its name: of the layers, and of the heads."""
    layers, heads = {}, {}
    for name, control in rank.controls.items():
        of_layers, of_heads = map(mean_estimate, _ratios(rank, control) if control else ([], []))
        if of_layers is not None and of_heads is not None:
            layers[name], heads[name] = of_layers, of_heads
    return layers, heads


def _ratios(rank: RankResult, control: ControlRank) -> tuple[list[float], list[float]]:
    """Measured over control: of every layer, and of every head."""
    layers: list[float] = []
    heads: list[float] = []
    for layer in rank.layers:
        random = control.of(len(layer.heads))
        if random is not None:
            mine = [h for h in rank.heads if (h.stack, h.layer) == (layer.stack, layer.layer)]
            layers += _over([layer], random.layers["qk"])
            heads += _over(mine, random.heads["qk"])
    return layers, heads


def _over(rows: Sequence[HeadRank | LayerRank], control: ControlStatistics) -> list[float]:
    theirs = control.dims["90"]
    return [dims / theirs for dims in _dims90(rows)] if theirs else []


def _dims90(rows: Sequence[HeadRank | LayerRank]) -> list[int]:
    return [dims for row in rows if (dims := row.qk.dims["90"]) is not None]


def _mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
