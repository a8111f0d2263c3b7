"""Claim 0: attention is a directed graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np

from headscope.analyses.rank.result import ControlRank, HeadRank, LayerRank, RankResult
from headscope.analyses.symmetric.result import SymmetricResult
from headscope.core.rounding import ROUNDING
from headscope.reports.claims.finding import (
    FAILS,
    HOLDS,
    OPEN,
    UNKNOWN,
    Evidence,
    Finding,
    Measurement,
    common,
    every,
    mean_estimate,
)
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import InsightPart
from headscope.stats.ranks import ControlStatistics
from headscope.stats.statistics import t_half_width

__all__ = ["judge_asymmetry", "judge_shared_projections"]

#: Random changes of the scores, each as large as what symmetric scores change.
_RANDOM = {"noise": "noise", "shuffled": "a step towards the scores of shuffled tokens"}


def judge_asymmetry(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 0 by every head's asymmetry of W_Q W_K^T and of its pattern P.

    ``||B - B^T||_F / ||B||_F``: 0 where W_Q = W_K, sqrt(2) for independent random factors, 2 where
    B is antisymmetric. What symmetric scores do to the model's output is a part of its own, which
    counts where it was measured. Where W_Q W_K^T was not measured, as in families that rotate
    queries and keys, the scores of the text take its place.
    """
    limit, rank, symmetric = thresholds.asymmetry, evidence.rank, evidence.symmetric
    rule = (
        f"Holds if every head's W_Q W_K^T (exact) and pattern (lower end of the 95% interval over "
        f"lines) have an asymmetry above {limit:g}, a weak bound, as independent random factors "
        "have 1.41 (where W_Q W_K^T was not measured or is not the score: if every head's scores "
        "have); and, where that is measured, if making all scores symmetric before the softmax "
        "moves the output further than random changes of the scores of the same size (upper end of "
        "the cosine's interval below the lower end of each of theirs). Does not hold if no head's "
        "W_Q W_K^T, or scores, are above."
    )
    if rank is None:
        return _of_scores_alone(symmetric, limit, rule)
    weights = {h.name: h.asymmetry for h in rank.heads if h.asymmetry is not None}
    if not weights:
        return Finding("not applicable", rule, "Every W_Q W_K^T is zero.")
    patterns = _patterns(rank)
    low = [name for name, value in weights.items() if value <= limit]
    names = sorted(weights, key=lambda name: weights[name])
    means = [pattern.mean for pattern in patterns.values()]
    gaussian, fresh = (_random(rank.controls.get(name)) for name in ("gaussian", "fresh"))
    values = {
        "heads": len(weights),
        "undefined": len(rank.heads) - len(weights),
        "least": weights[names[0]],
        "least_head": names[0],
        "median": median(weights.values()),
        "most": weights[names[-1]],
        "pattern_least": min(means, default=None),
        "pattern_median": median(means) if means else None,
        "gaussian": gaussian,
        "fresh": fresh,
        "below_gaussian": None if not gaussian else 1 - median(weights.values()) / gaussian,
    }
    values |= {
        "symmetric_weights": low,
        "symmetric_patterns": [n for n, p in patterns.items() if p.above(limit) == FAILS],
    }
    parts = (
        InsightPart(
            "W_Q W_K^T of every head is asymmetric",
            FAILS if low else HOLDS,
            f"least {values['least']:.2f} ({values['least_head']}), no sampling",
        ),
        _least_of("every head's pattern is asymmetric", patterns, limit),
        _of_output(symmetric),
    )
    values |= _function(symmetric)
    return Finding.concluded(
        parts,
        _measured(rank, values),
        _control(values) + _beside(symmetric),
        rule,
        values,
        refuted=len(low) == len(weights),
    )


def _of_scores_alone(symmetric: SymmetricResult | None, limit: float, rule: str) -> Finding:
    """Decide by the scores of a text, whatever W_Q W_K^T is."""
    if symmetric is None:
        why = "neither rank nor symmetric was part of this run"
        return Finding("not measured yet", rule, why)
    scores = {
        head.name: Measurement(own.value, own.low, own.high)
        for head in symmetric.heads
        if (own := head.asymmetry).value is not None
    }
    part = _least_of("every head's scores are asymmetric", scores, limit)
    low = [name for name, found in scores.items() if found.above(limit) == FAILS]
    means = [found.mean for found in scores.values()]
    return Finding.concluded(
        (part, _of_output(symmetric)),
        f"W_Q W_K^T was not measured, or is not the score. Asymmetry of the scores over "
        f"{len(scores)} heads: {part.measured}, median {median(means or [math.nan]):.2f}.",
        "0 for symmetric scores, 1.41 for independent directions." + _beside(symmetric),
        rule,
        {
            "heads": len(scores),
            "scores_least": min(means, default=None),
            "symmetric_scores": low,
            **_function(symmetric),
        },
        refuted=bool(scores) and len(low) == len(scores),
    )


def _patterns(rank: RankResult) -> dict[str, Measurement]:
    """Asymmetry of each head's pattern; the interval of a single line is unknown."""
    lines = np.array(rank.text["lines"] if rank.text else 0)
    found = {}
    for head in rank.heads:
        pattern = head.pattern_asymmetry
        if pattern is not None:
            sem = np.nan if pattern.sem is None else pattern.sem
            found[head.name] = Measurement.around(pattern.mean, float(t_half_width(sem, lines)))
    return found


def _least_of(name: str, heads: dict[str, Measurement], limit: float) -> InsightPart:
    """Whether every head lies above, with the one that lies lowest."""
    if not heads:
        return InsightPart(name, UNKNOWN, "no text was read")
    least = min(heads, key=lambda head: heads[head].mean)
    verdict = every([found.above(limit) for found in heads.values()])
    return InsightPart(name, verdict, f"least {heads[least]} ({least})")


def _of_output(symmetric: SymmetricResult | None) -> InsightPart:
    """Whether the model makes use of the asymmetry: by its output with all scores symmetric."""
    name = "symmetric scores move the output more than random changes"
    if symmetric is None:
        return InsightPart(
            name, "not measured yet", "so whether the model makes use of the asymmetry is open"
        )
    cosines = {
        change: Measurement(math.nan if found.value is None else found.value, found.low, found.high)
        for change, drawn in symmetric.whole.items()
        if (found := drawn.cosine) and change in ("symmetric", *_RANDOM)
    }
    if cosines.keys() != {"symmetric", *_RANDOM}:
        why = "an earlier version's result, without scores of shuffled tokens"
        return InsightPart(name, "not measured yet", why)
    if any(math.isnan(found.mean) for found in cosines.values()):
        return InsightPart(name, UNKNOWN, "the embeddings are not finite")
    own = cosines.pop("symmetric")
    text = f"cosine {own.mean:.3f} {own.interval('.3f')} with all heads symmetric, " + ", ".join(
        f"{found.mean:.3f} {found.interval('.3f')} with {_RANDOM[change]}"
        for change, found in cosines.items()
    )
    equal = symmetric.equivalent_heads.value
    if equal is not None:
        n = len(symmetric.heads)
        text += f"; as far as removing about {equal:.0f} random heads of {n} moves it"
    return InsightPart(name, every([_further(own, found) for found in cosines.values()]), text)


def _further(own: Measurement, random: Measurement) -> str:
    """Whether one change moves the output further than another: its cosine is lower, surely."""
    if own.low is None or own.high is None or random.low is None or random.high is None:
        return UNKNOWN
    if own.high < random.low - ROUNDING:
        return HOLDS
    return FAILS if own.low >= random.high - ROUNDING else OPEN


def _function(symmetric: SymmetricResult | None) -> dict[str, object]:
    if symmetric is None:
        return {}
    cosines = {f"{name}_cosine": drawn.cosine.value for name, drawn in symmetric.whole.items()}
    return {**cosines, "equivalent_heads": symmetric.equivalent_heads.value}


def _beside(symmetric: SymmetricResult | None) -> str:
    """Say what other changes of all heads do, as many heads removed first."""
    if symmetric is None:
        return ""
    whole = symmetric.whole
    found = {name: whole[name].cosine.value for name in ("removed", "pairs")}
    texts = {"removed": "all heads removed", "pairs": "symmetric pairs alone (sinks kept)"}
    shown = (f"{texts[n]} {value:.3f}" for n, value in found.items() if value is not None)
    return f" Cosine with other changes: {', '.join(shown)}."


def _random(control: ControlRank | None) -> float | None:
    geometries = control.geometries if control else ()
    return next((g.asymmetry for g in geometries if g.asymmetry is not None), None)


def _measured(rank: RankResult, v: dict[str, object]) -> str:
    text = (
        f"Asymmetry of W_Q W_K^T over {v['heads']} heads: least {v['least']:.2f} "
        f"({v['least_head']}), median {v['median']:.2f}, most {v['most']:.2f}"
    )
    if v["undefined"]:
        text += f" ({v['undefined']} more have W_Q W_K^T = 0)"
    if v["pattern_least"] is None:
        return f"{text}; of the patterns: not measured (no text)."
    return (
        f"{text}; of the patterns: least {v['pattern_least']:.2f}, "
        f"median {v['pattern_median']:.2f}."
    )


def _control(v: dict[str, object]) -> str:
    text = "0 where W_Q = W_K"
    if v["gaussian"] is not None:
        text += f", {v['gaussian']:.2f} for independent random factors"
    if v["fresh"] is not None:
        text += f", {v['fresh']:.2f} freshly initialised"
    share = v["below_gaussian"]
    if isinstance(share, float):
        text += (
            f"; the median head lies {abs(share):.0%} {'below' if share >= 0 else 'above'} random"
        )
    return f"{text}: asymmetry alone is no sign of learning."


#: The part that decides against the claim where it does not hold.
_LAYERS = "layers need fewer dimensions than the control"


def judge_shared_projections(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
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
        InsightPart(_LAYERS, low, _ratio_texts(layers)),
        InsightPart("single heads need about as many", near, _ratio_texts(heads)),
    )
    of_head, of_layer = _mean_dims(_dims90(rank.heads)), _mean_dims(_dims90(rank.layers))
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


def _ratio_texts(ratios: dict[str, Measurement]) -> str:
    """Write a ratio over each control's."""
    return ", ".join(f"{ratio} of {name}" for name, ratio in ratios.items())


def _over_controls(rank: RankResult) -> tuple[dict[str, Measurement], dict[str, Measurement]]:
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


def _mean_dims(values: list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
