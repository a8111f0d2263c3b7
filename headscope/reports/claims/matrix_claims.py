"""Claims about matrices: 0 and 3 of the weights, 5 of the patterns, 7 of the states by depth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

from headscope.analyses.depth.result import DepthCurves, DepthResult
from headscope.analyses.rank.result import RankResult
from headscope.analyses.spectrum.result import SpectrumResult
from headscope.analyses.symmetric.result import SymmetricResult
from headscope.core.rounding import ROUNDING
from headscope.reports.claims.rule import (
    FAILS,
    HOLDS,
    OPEN,
    UNKNOWN,
    Rule,
    above,
    every,
    mean_estimate,
    shown,
)
from headscope.reports.result import Insight, InsightPart
from headscope.stats.estimate import Estimate

#: Random changes of the scores, each as large as what symmetric scores change.
_RANDOM = ("noise", "shuffled")


def judge_asymmetry(
    rule: Rule, rank: RankResult | None, symmetric: SymmetricResult | None
) -> Insight:
    """Decide claim 0 by every head's asymmetry of W_Q W_K^T and of its pattern P.

    ``||B - B^T||_F / ||B||_F``: 0 where W_Q = W_K, sqrt(2) for independent random factors, 2 where
    B is antisymmetric. What symmetric scores do to the model's output is a separate part, which
    counts where it was measured. Where W_Q W_K^T was not measured, as in families that rotate
    queries and keys, the scores of the text replace it.
    """
    limit = rule.thresholds.asymmetry
    output = _output_part(rule, symmetric)
    function = ""
    values: dict[str, object] = {}
    if symmetric is not None:
        cosines = {name: drawn.cosine.value for name, drawn in symmetric.whole.items()}
        values = {f"{name}_cosine": value for name, value in cosines.items()}
        values["equivalent_heads"] = symmetric.equivalent_heads.value
        others = [name for name in ("removed", "pairs") if cosines[name] is not None]
        texts = (rule.say(name, cosine=cosines[name]) for name in others)
        function = rule.say("function", texts=", ".join(texts))

    if rank is None:
        heads = symmetric.heads if symmetric else ()
        scores = {head.name: head.asymmetry for head in heads if head.asymmetry.value is not None}
        part = _every_head_part(rule, "scores", scores)
        means = [score.value or 0.0 for score in scores.values()]
        values |= {"heads": len(scores), "scores_least": min(means, default=None)}
        middle = median(means or [math.nan])
        return rule.concluded(
            (part, output),
            rule.say("scores", n=len(scores), part=part.measured, median=middle),
            rule.say("scores_control", function=function),
            values,
            refuted=bool(scores) and all(above(s, limit) == FAILS for s in scores.values()),
        )

    weights = {head.name: head.asymmetry for head in rank.heads if head.asymmetry is not None}
    if not weights:
        return rule.undecided("not applicable", "zero")
    asymmetries = ((head.name, head.pattern_asymmetry) for head in rank.heads)
    patterns = {name: pattern for name, pattern in asymmetries if pattern is not None}
    means = [pattern.value for pattern in patterns.values() if pattern.value is not None]
    random: dict[str, float | None] = {}
    for name in ("gaussian", "fresh"):
        control = rank.controls.get(name)
        geometries = control.geometries if control else ()
        random[name] = next((g.asymmetry for g in geometries if g.asymmetry is not None), None)
    middle = median(weights.values())
    gaussian = random["gaussian"]
    least_head = min(weights, key=lambda name: weights[name])
    share = 1 - middle / gaussian if gaussian else None
    values |= {
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
    }
    measured = rule.say("measured", values)
    measured += rule.say("undefined", values) if values["undefined"] else ""
    measured += rule.say("patterns" if means else "no_patterns", values)
    known = "".join(rule.say(name, values) for name in random if random[name] is not None)
    if share is not None:
        side = "below" if share >= 0 else "above"
        known += rule.say("below_gaussian", share=abs(share), side=side)
    low = [value <= limit for value in weights.values()]
    return rule.concluded(
        (
            rule.part("weights", FAILS if any(low) else HOLDS, rule.say("exact", values)),
            _every_head_part(rule, "patterns", patterns),
            output,
        ),
        measured,
        rule.say("control", random=known, function=function),
        values,
        refuted=all(low),
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
    effect = symmetric.whole["symmetric"].cosine
    random = {name: symmetric.whole[name].cosine for name in _RANDOM}
    if effect.value is None or any(cosine.value is None for cosine in random.values()):
        return rule.part("output", UNKNOWN, rule.say("not_finite"))
    outcomes = []
    for cosine in random.values():  # the lower the cosine, the further the output has moved
        outcome = OPEN
        if effect.low is None or effect.high is None or cosine.low is None or cosine.high is None:
            outcome = UNKNOWN
        elif effect.high < cosine.low - ROUNDING:
            outcome = HOLDS
        elif effect.low >= cosine.high - ROUNDING:
            outcome = FAILS
        outcomes.append(outcome)
    text = rule.say("output", random, symmetric=effect)
    if (equal := symmetric.equivalent_heads.value) is not None:
        text += rule.say("equivalent", equal=equal, n=len(symmetric.heads))
    return rule.part("output", every(outcomes), text)


def judge_shared_projections(rule: Rule, rank: RankResult) -> Insight:
    """Decide claim 3 by dims90 of W_Q W_K^T, of layers and of heads, over each control's."""
    layers: dict[str, Estimate] = {}
    heads: dict[str, Estimate] = {}
    for name, control in rank.controls.items():
        of_layers: list[float] = []
        of_heads: list[float] = []
        for layer in rank.layers:
            random = control.of(len(layer.heads)) if control else None
            if random is None:
                continue
            inside = [h for h in rank.heads if (h.stack, h.layer) == (layer.stack, layer.layer)]
            for ratios, dims, usual in (
                (of_layers, [layer.qk.dims["90"]], random.layers["qk"].dims["90"]),
                (of_heads, [head.qk.dims["90"] for head in inside], random.heads["qk"].dims["90"]),
            ):
                ratios += [n / usual for n in dims if n is not None and usual]
        if of_layers and of_heads:
            layers[name], heads[name] = mean_estimate(of_layers), mean_estimate(of_heads)
    if not layers:
        return rule.undecided("not measured yet", "no_control")
    if max(len(layer.heads) for layer in rank.layers) < 2:
        return rule.undecided("not applicable", "one_head")
    parts = [
        rule.part(key, rows.values(), ", ".join(f"{shown(r)} of {n}" for n, r in rows.items()))
        for key, rows in (("fewer", layers), ("single", heads))
    ]
    values: dict[str, object] = {}
    for key, rows in (("head", rank.heads), ("layer", rank.layers)):
        known = [n for row in rows if (n := row.qk.dims["90"]) is not None]
        values[f"{key}_dims90"] = sum(known) / max(len(known), 1)
    for name in layers:
        values[name] = {
            f"{key}_ratio": {"mean": ratio.value, "low": ratio.low, "high": ratio.high}
            for key, ratio in (("layer", layers[name]), ("head", heads[name]))
        }
    controls = (rule.say("control", name=n, layer=layers[n], head=heads[n]) for n in layers)
    return rule.concluded(
        parts,
        rule.say("measured", values),
        f"{'; '.join(controls)}.",
        values,
        refuting=(parts[0].name,),
    )


def judge_low_rank(rule: Rule, spectrum: SpectrumResult) -> Insight:
    """Decide claim 5 by the share of the largest singular values of every head's pattern."""
    limit = rule.thresholds.low_rank
    most = rule.thresholds.most
    if not spectrum.heads:
        return rule.undecided("not applicable", "no_head")
    if any(head.share_at_k.interval is None for head in spectrum.heads):
        return rule.undecided("not measured", "one_sequence")
    outcomes = {head.name: above(head.share_at_k, limit) for head in spectrum.heads}
    low = [name for name, outcome in outcomes.items() if outcome == HOLDS]
    high = [name for name, outcome in outcomes.items() if outcome == FAILS]
    roles = {head.name: head.role for head in spectrum.heads}
    positional = [name for name in high if roles[name] == "positional"]
    n = len(spectrum.heads)
    against = FAILS if len(high) >= (1 - most) * n else OPEN
    outcome = HOLDS if len(low) > most * n else against
    random = spectrum.random_weights
    difference = spectrum.over_random_weights()
    values = {
        "k": spectrum.k,
        "length": spectrum.length,
        "heads": n,
        "positional_exceptions": positional,
        "mean_share": spectrum.mean_share,
        "random_logits": spectrum.controls["random-logits"].share_at_k,
        "identity": spectrum.controls["identity"].share_at_k,
        "random_weights": random and random.share_at_k.value,
        "over_random_weights": difference and difference.value,
    }
    controls: dict[str, object] = {"others": rule.say("others", values)}
    control = rule.say("no_random", controls)
    if random is not None and difference is not None:
        least = min(draw.above for draw in random.draws)
        drawn = {"mean": random.share_at_k.value, "above": least, "heads": random.heads}
        controls["random"] = rule.say("random", drawn, threshold=spectrum.verdict.threshold)
        control = rule.say("no_interval", controls)
        if difference.half_width is not None:
            meaning = rule.say(f"meaning {above(difference, 0.0)}")
            control = rule.say("control", controls, gap=difference, meaning=meaning)
    counts = {**values, "n_low": len(low), "n_high": len(high), "limit": limit}
    exceptions = rule.say("exceptions", names=positional) if positional else ""
    return rule.concluded(
        [rule.part("most", outcome, rule.say("count", counts))],
        rule.say("measured", counts, exceptions=exceptions),
        control,
        values,
    )


def judge_collapse(rule: Rule, depth: DepthResult) -> Insight:
    """Decide claim 7 by the residual's curves, part by part, each by its interval over windows."""
    if len(depth.variants["attention"]) < 3:
        return rule.undecided("not measured", "one_layer")
    if depth.sequences < 2:
        return rule.undecided("not measured", "one_window")

    def points(name: str, windows: float = 2.0) -> dict[int, Estimate]:
        """Return a curve by layer, without the embeddings, where enough windows count."""
        trend = depth.trends[name]
        rows = zip(trend.mean, trend.low, trend.high, trend.windows, strict=True)
        return {
            i - 1: Estimate(mean, low, high)
            for i, (mean, low, high, count) in enumerate(rows)
            if i and count >= windows and mean is not None
        }

    above_rounding = max(2.0, rule.thresholds.above_rounding * depth.sequences)
    end = depth.trends["attention_of_start"]
    falls = Estimate(end.mean[-1], end.low[-1], end.high[-1])
    steps = points("step_change", above_rounding)
    gains = points("ffn_gain", above_rounding)
    skip = points("skip_of_start")
    change = points("layernorm_change")
    fastest = _extreme(rule, "exponential", steps, 1) if steps else rule.say("too_few")
    layernorm = rule.part("layernorm", change.values(), _extreme(rule, "layernorm", change, 0))
    overflow = len(change) < len(depth.trends["layernorm_change"].mean) - 1
    if overflow and layernorm.verdict != FAILS:  # states without it overflow
        layernorm = rule.part("layernorm", UNKNOWN, layernorm.measured)
    parts = (
        rule.part("falls", falls, rule.say("falls", end=_digits(falls))),
        rule.part("exponential", steps.values(), fastest),
        rule.part("skip", skip.values(), _extreme(rule, "skip", skip, -1)),
        rule.part("ffn", gains.values(), _gains(rule, gains)),
        layernorm,
    )
    after = depth.collapsed_after["attention"]
    drawn = depth.control
    control = rule.say("not_run")
    if drawn is not None:
        late = drawn.collapsed_after["attention"]
        too = rule.say("too", late=late) if late else ""
        control = rule.say("control", _last_values(drawn), too=too)
    sizes = {"layers": len(depth.variants["full"]) - 1, "windows": depth.sequences}
    collapse = rule.say("after", after=after) if after else rule.say("never")
    return rule.concluded(
        parts,
        rule.say("measured", {**_last_values(depth), **sizes}, collapse=collapse),
        control,
        {
            "attention": depth.variants["attention"][-1],
            "attention_with_ffn": depth.variants["attention+ffn"][-1],
            "attention_with_skip": depth.variants["attention+skip"][-1],
            "full": depth.variants["full"][-1],
            "collapsed_after": after,
            "control": None if drawn is None else drawn.variants["attention"][-1],
        },
        refuting=(parts[0].name,),  # decides against the claim where it does not hold
    )


def _extreme(rule: Rule, key: str, points: dict[int, Estimate], sign: int) -> str:
    """Name the largest point (``sign`` 1), the smallest (-1), or the one farthest from 0 (0)."""
    if not points:
        return rule.say("overflow")

    def size(layer: int) -> float:
        value = points[layer].value or 0.0
        return sign * value if sign else abs(value)

    layer = max(points, key=size)
    return rule.say(key, number=_digits(points[layer]), layer=layer)


def _gains(rule: Rule, gains: dict[int, Estimate]) -> str:
    """Say at which layers the curve with feed-forward lies above, below, or neither."""
    if not gains:
        return rule.say("at_rounding")
    groups: dict[str, list[str]] = {"above": [], "below": [], "not apart": []}
    side = {HOLDS: "above", FAILS: "below"}
    for layer, gain in gains.items():
        groups[side.get(above(gain, 0.0), "not apart")].append(f"L{layer}")
    text = ", ".join(f"{name} at {', '.join(layers)}" for name, layers in groups.items() if layers)
    first = min(gains)
    return rule.say("ffn", text=text, number=_digits(gains[first]), layer=first)


def _digits(number: Estimate) -> str:
    """Write an estimate with as many digits as it needs."""
    small = number.value is not None and abs(number.value) < 0.001
    return shown(number, ".0e" if small else ".3f")


def _last_values(curves: DepthCurves) -> dict[str, str]:
    """Write what is left after the last layer, by variant."""
    names = {"attention": "attention", "ffn": "attention+ffn", "skip": "attention+skip"}
    last = {key: curves.variants[name][-1] for key, name in {**names, "full": "full"}.items()}
    return {
        key: "overflow" if v is None else f"{v:.3f}" if v >= 0.001 or v == 0 else f"{v:.0e}"
        for key, v in last.items()
    }
