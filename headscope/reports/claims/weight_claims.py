"""Claims 0 and 3: attention is a directed graph, and the heads of a layer share projections."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

from headscope.analyses.rank.result import RankResult
from headscope.analyses.symmetric.result import SymmetricResult
from headscope.core.rounding import ROUNDING
from headscope.reports.claims.finding import (
    FAILS,
    HOLDS,
    OPEN,
    UNKNOWN,
    Evidence,
    Finding,
    above,
    every,
    mean_estimate,
    shown,
)
from headscope.reports.claims.rule import Rule
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import InsightPart
from headscope.stats.estimate import Estimate

#: Random changes of the scores, each as large as what symmetric scores change.
_RANDOM = ("noise", "shuffled")


def judge_asymmetry(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 0 by every head's asymmetry of W_Q W_K^T and of its pattern P.

    ``||B - B^T||_F / ||B||_F``: 0 where W_Q = W_K, sqrt(2) for independent random factors, 2 where
    B is antisymmetric. What symmetric scores do to the model's output is a part of its own, which
    counts where it was measured. Where W_Q W_K^T was not measured, as in families that rotate
    queries and keys, the scores of the text take its place.
    """
    rule, limit = Rule("asymmetry", thresholds), thresholds.asymmetry
    rank, symmetric = evidence.rank, evidence.symmetric
    output = _output_part(rule, symmetric)
    values: dict[str, object] = {}
    function = ""
    if symmetric is not None:
        cosines = {name: drawn.cosine.value for name, drawn in symmetric.whole.items()}
        values = {f"{name}_cosine": value for name, value in cosines.items()}
        values["equivalent_heads"] = symmetric.equivalent_heads.value
        others = [name for name in ("removed", "pairs") if cosines[name] is not None]
        texts = (rule.say(name, cosine=cosines[name]) for name in others)
        function = rule.say("function", texts=", ".join(texts))

    if rank is None:
        if symmetric is None:
            return rule.missing()
        every_head = ((head.name, head.asymmetry) for head in symmetric.heads)
        scores = {name: score for name, score in every_head if score.value is not None}
        part = _every_head_part(rule, "scores", scores)
        low = [name for name, score in scores.items() if above(score, limit) == FAILS]
        means = [score.value for score in scores.values() if score.value is not None]
        middle = median(means or [math.nan])
        return Finding.concluded(
            (part, output),
            rule.say("scores", n=len(scores), part=part.measured, median=middle),
            rule.say("scores_control", function=function),
            {
                "heads": len(scores),
                "scores_least": min(means, default=None),
                "symmetric_scores": low,
                **values,
            },
            refuted=bool(scores) and len(low) == len(scores),
        )

    weights = {head.name: head.asymmetry for head in rank.heads if head.asymmetry is not None}
    if not weights:
        return rule.undecided("not applicable", "zero")
    asymmetries = ((head.name, head.pattern_asymmetry) for head in rank.heads)
    patterns = {name: pattern for name, pattern in asymmetries if pattern is not None}
    low = [name for name, value in weights.items() if value <= limit]
    means = [pattern.value for pattern in patterns.values() if pattern.value is not None]
    random: dict[str, float | None] = {}
    for name in ("gaussian", "fresh"):
        control = rank.controls.get(name)
        geometries = control.geometries if control else ()
        random[name] = next((g.asymmetry for g in geometries if g.asymmetry is not None), None)
    middle, gaussian = median(weights.values()), random["gaussian"]
    least_head = min(weights, key=lambda name: weights[name])
    share = 1 - middle / gaussian if gaussian else None
    values = {
        "heads": len(weights),
        "undefined": len(rank.heads) - len(weights),
        "least": weights[least_head],
        "least_head": least_head,
        "median": middle,
        "most": max(weights.values()),
        "pattern_least": min(means, default=None),
        "pattern_median": median(means) if means else None,
        **random,
        "below_gaussian": share,
        "symmetric_weights": low,
        "symmetric_patterns": [n for n, p in patterns.items() if above(p, limit) == FAILS],
        **values,
    }
    measured = rule.say("measured", values)
    measured += rule.say("undefined", values) if values["undefined"] else ""
    measured += rule.say("patterns" if means else "no_patterns", values)
    known = "".join(rule.say(name, values) for name in random if random[name] is not None)
    if share is not None:
        side = "below" if share >= 0 else "above"
        known += rule.say("below_gaussian", share=abs(share), side=side)
    return Finding.concluded(
        (
            rule.part("weights", FAILS if low else HOLDS, rule.say("exact", values)),
            _every_head_part(rule, "patterns", patterns),
            output,
        ),
        measured,
        rule.say("control", random=known, function=function),
        values,
        refuted=len(low) == len(weights),
    )


def _every_head_part(rule: Rule, key: str, heads: Mapping[str, Estimate]) -> InsightPart:
    """Decide whether every head lies above a limit, and name the one that lies lowest."""
    if not heads:
        return rule.part(key, UNKNOWN, rule.say("no_text"))
    least = min(heads, key=lambda head: heads[head].value or 0.0)
    return rule.part(key, heads.values(), rule.say("least", least=heads[least], head=least))


def _output_part(rule: Rule, symmetric: SymmetricResult | None) -> InsightPart:
    """Decide whether the model uses the asymmetry, by its output with all scores symmetric."""
    if symmetric is None:
        return rule.part("output", "not measured yet", rule.say("open"))
    if not {"symmetric", *_RANDOM} <= symmetric.whole.keys():
        return rule.part("output", "not measured yet", rule.say("without_shuffled"))
    own = symmetric.whole["symmetric"].cosine
    random = {name: symmetric.whole[name].cosine for name in _RANDOM}
    if own.value is None or any(cosine.value is None for cosine in random.values()):
        return rule.part("output", UNKNOWN, rule.say("not_finite"))
    outcomes = []
    for cosine in random.values():  # the lower the cosine, the further the output has moved
        if own.low is None or own.high is None or cosine.low is None or cosine.high is None:
            outcomes.append(UNKNOWN)
        elif own.high < cosine.low - ROUNDING:
            outcomes.append(HOLDS)
        else:
            outcomes.append(FAILS if own.low >= cosine.high - ROUNDING else OPEN)
    text = rule.say("output", random, own=own)
    if (equal := symmetric.equivalent_heads.value) is not None:
        text += rule.say("equivalent", equal=equal, n=len(symmetric.heads))
    return rule.part("output", every(outcomes), text)


def judge_shared_projections(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 3 by dims90 of W_Q W_K^T, of layers and of heads, over each control's."""
    rule, rank = Rule("shared_projections", thresholds), evidence.rank
    if rank is None:
        return rule.missing()
    ratios = {name: _over_control(rank, name) for name in rank.controls}
    known = {
        name: pair for name, pair in ratios.items() if all(one.value is not None for one in pair)
    }
    if not known:
        return rule.undecided("not measured yet", "no_control")
    if max(len(layer.heads) for layer in rank.layers) < 2:
        return rule.undecided("not applicable", "one_head")
    layers, heads = ({name: pair[i] for name, pair in known.items()} for i in (0, 1))
    parts = [
        rule.part(key, rows.values(), ", ".join(f"{shown(r)} of {n}" for n, r in rows.items()))
        for key, rows in (("fewer", layers), ("single", heads))
    ]
    of_heads = [dims for head in rank.heads if (dims := head.qk.dims["90"]) is not None]
    of_layers = [dims for layer in rank.layers if (dims := layer.qk.dims["90"]) is not None]
    of_head, of_layer = (sum(dims) / max(len(dims), 1) for dims in (of_heads, of_layers))
    values: dict[str, object] = {"head_dims90": of_head, "layer_dims90": of_layer}
    for name in known:
        values[name] = {
            f"{key}_ratio": {"mean": ratio.value, "low": ratio.low, "high": ratio.high}
            for key, ratio in (("layer", layers[name]), ("head", heads[name]))
        }
    beside = (rule.say("control", name=n, layer=layers[n], head=heads[n]) for n in known)
    return Finding.concluded(
        parts,
        rule.say("measured", values),
        f"{'; '.join(beside)}.",
        values,
        refuting=(parts[0].name,),
    )


def _over_control(rank: RankResult, name: str) -> tuple[Estimate, Estimate]:
    """Return dims90 over a control's: of the layers, and of the heads."""
    control, layers, heads = rank.controls[name], list[float](), list[float]()
    for layer in rank.layers if control else ():
        random = control.of(len(layer.heads)) if control else None
        if random is None:
            continue
        if of_layers := random.layers["qk"].dims["90"]:
            layers += [dims / of_layers for dims in [layer.qk.dims["90"]] if dims is not None]
        if of_heads := random.heads["qk"].dims["90"]:
            heads += [
                dims / of_heads
                for head in rank.heads
                if (head.stack, head.layer) == (layer.stack, layer.layer)
                and (dims := head.qk.dims["90"]) is not None
            ]
    return mean_estimate(layers), mean_estimate(heads)
