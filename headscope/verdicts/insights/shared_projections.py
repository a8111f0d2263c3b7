"""Claim 3: heads share projections."""

from __future__ import annotations

from headscope.results import ControlRank, InsightPart, RankResult
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
        return Finding.not_measured(rule, "rank was not part of this run")
    found = {
        name: ratios
        for name, control in rank.controls.items()
        if control is not None and (ratios := _ratios(rank, control)) is not None
    }
    if not found:
        return Finding.not_measured(rule, "no control was measured")
    if max(len(layer.heads) for layer in rank.layers) < 2:
        return Finding.not_applicable(rule, "Each layer has one head, which shares with nobody.")
    low = common([layer.below(1 - below) for layer, _ in found.values()])
    near = common([head.within(1 - within, 1 + within) for _, head in found.values()])
    heads = [h.qk.dims["90"] for h in rank.heads if h.qk.dims["90"] is not None]
    layers = [x.qk.dims["90"] for x in rank.layers if x.qk.dims["90"] is not None]
    values: dict[str, object] = {"head_dims90": _mean(heads), "layer_dims90": _mean(layers)}
    for name, (layer, head) in found.items():
        values[name] = {"layer_ratio": vars(layer), "head_ratio": vars(head)}
    parts = (
        InsightPart(_LAYERS, low, _beside({name: layer for name, (layer, _) in found.items()})),
        InsightPart(
            "single heads need about as many",
            near,
            _beside({name: head for name, (_, head) in found.items()}),
        ),
    )
    return Finding.concluded(
        parts,
        f"dims90 of W_Q W_K^T: {_mean(heads):.1f} for one head, {_mean(layers):.1f} for all heads "
        f"of a layer together.",
        "; ".join(
            f"{name}: layers at {layer} of it, heads at {head}"
            for name, (layer, head) in found.items()
        )
        + ".",
        rule,
        values,
        refuting=(_LAYERS,),
    )


def _beside(ratios: dict[str, Estimate]) -> str:
    """Write a ratio over each control's."""
    return ", ".join(f"{ratio} of {name}" for name, ratio in ratios.items())


def _ratios(rank: RankResult, control: ControlRank) -> tuple[Estimate, Estimate] | None:
    """Measured over control: of every layer, and of every head."""
    heads: list[float] = []
    layers: list[float] = []
    for layer in rank.layers:
        random = control.of(len(layer.heads))
        if random is None:
            continue
        for values, mine, theirs in (
            (layers, [layer], random.layers["qk"].dims["90"]),
            (
                heads,
                [h for h in rank.heads if h.layer == layer.layer],
                random.heads["qk"].dims["90"],
            ),
        ):
            dims = [item.qk.dims["90"] for item in mine]
            values += [float(d) / theirs for d in dims if d is not None and theirs]
    of_layers, of_heads = mean_estimate(layers), mean_estimate(heads)
    return None if of_layers is None or of_heads is None else (of_layers, of_heads)


def _mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
