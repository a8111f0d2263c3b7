"""Claims 5 and 7: attention is low rank after the softmax, and collapses with depth."""

from __future__ import annotations

from headscope.analyses.depth.result import DepthCurves
from headscope.analyses.spectrum.result import SpectrumResult
from headscope.reports.claims.finding import (
    FAILS,
    HOLDS,
    OPEN,
    UNKNOWN,
    Evidence,
    Finding,
    above,
    shown,
)
from headscope.reports.claims.rule import Rule
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.stats.estimate import Estimate


def judge_low_rank(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 5 by the share of the largest singular values of every head's pattern.

    The classification, where there is one, names the positional heads among the exceptions.
    """
    rule, spectrum = Rule("low_rank", thresholds), evidence.spectrum
    limit, most = thresholds.low_rank, thresholds.most
    if spectrum is None:
        return rule.missing()
    if not spectrum.heads:
        return rule.undecided("not applicable", "no_head")
    if any(head.share_at_k.interval is None for head in spectrum.heads):
        return rule.undecided("not measured", "one_sequence")
    outcomes = {head.name: above(head.share_at_k, limit) for head in spectrum.heads}
    low = [name for name, outcome in outcomes.items() if outcome == HOLDS]
    high = [name for name, outcome in outcomes.items() if outcome == FAILS]
    roles = {h.name: h.primary for h in evidence.classify.heads} if evidence.classify else {}
    roles |= {head.name: head.role for head in spectrum.heads if head.role}
    positional = [name for name in high if roles.get(name) == "positional"]
    n = len(spectrum.heads)
    outcome = OPEN
    if len(low) > most * n:
        outcome = HOLDS
    elif len(high) >= (1 - most) * n:
        outcome = FAILS
    random, difference = spectrum.random_weights, spectrum.over_random_weights()
    values = {
        "k": spectrum.k,
        "length": spectrum.length,
        "heads": n,
        "low_rank": low,
        "not_low_rank": high,
        "positional_exceptions": positional,
        "mean_share": spectrum.mean_share,
        "random_logits": spectrum.controls["random-logits"].share_at_k,
        "identity": spectrum.controls["identity"].share_at_k,
        "random_weights": random and random.share_at_k.value,
        "random_weights_above": None if random is None else [draw.above for draw in random.draws],
        "over_random_weights": difference and difference.value,
        "over_random_weights_half_width": difference and difference.half_width,
    }
    counts = {**values, "n_low": len(low), "n_high": len(high), "limit": limit}
    exceptions = rule.say("exceptions", names=positional) if positional else ""
    return Finding.concluded(
        [rule.part("most", outcome, rule.say("count", counts))],
        rule.say("measured", counts, exceptions=exceptions),
        _low_rank_control(rule, spectrum, rule.say("others", values)),
        values,
    )


def _low_rank_control(rule: Rule, spectrum: SpectrumResult, others: str) -> str:
    """Say what the verdict is worth beside random weights."""
    random, difference = spectrum.random_weights, spectrum.over_random_weights()
    if random is None or difference is None:
        return rule.say("no_random", others=others)
    text = rule.say(
        "random",
        mean=random.share_at_k.value,
        above=min(draw.above for draw in random.draws),
        heads=random.heads,
        threshold=spectrum.verdict.threshold,
    )
    if difference.half_width is None:
        return rule.say("no_interval", random=text, others=others)
    meaning = rule.say(f"meaning {above(difference, 0.0)}")
    return rule.say("control", random=text, gap=difference, meaning=meaning, others=others)


def judge_collapse(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 7 by the residual's curves, part by part, each by its interval over windows."""
    rule, depth = Rule("collapse", thresholds), evidence.depth
    if depth is None:
        return rule.missing()
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

    above_rounding = max(2.0, thresholds.above_rounding * depth.sequences)
    end = depth.trends["attention_of_start"]
    falls = Estimate(end.mean[-1], end.low[-1], end.high[-1])
    steps = points("step_change", above_rounding)
    skip = points("skip_of_start")
    gains = points("ffn_gain", above_rounding)
    change = points("layernorm_change")
    layernorm = rule.part("layernorm", change.values(), _extreme(rule, "layernorm", change, 0))
    overflow = len(change) < len(depth.trends["layernorm_change"].mean) - 1
    if overflow and layernorm.verdict != FAILS:  # states without it overflow
        layernorm = rule.part("layernorm", UNKNOWN, layernorm.measured)
    parts = (
        rule.part("falls", falls, rule.say("falls", end=_digits(falls))),
        rule.part(
            "exponential",
            steps.values(),
            _extreme(rule, "exponential", steps, 1) if steps else rule.say("too_few"),
        ),
        rule.part("skip", skip.values(), _extreme(rule, "skip", skip, -1)),
        rule.part("ffn", gains.values(), _gains(rule, gains)),
        layernorm,
    )
    control = depth.control
    return Finding.concluded(
        parts,
        rule.say(
            "measured",
            _last_values(depth),
            layers=len(depth.variants["full"]) - 1,
            windows=depth.sequences,
            collapse=_collapse(rule, depth, "after", "never"),
        ),
        rule.say("not_run")
        if control is None
        else rule.say("control", _last_values(control), too=_collapse(rule, control, "too")),
        {
            "attention": depth.variants["attention"][-1],
            "attention_with_ffn": depth.variants["attention+ffn"][-1],
            "attention_with_skip": depth.variants["attention+skip"][-1],
            "full": depth.variants["full"][-1],
            "collapsed_after": depth.collapsed_after["attention"],
            "parts": {part.name: part.verdict for part in parts},
            "control": None if control is None else control.variants["attention"][-1],
        },
        refuting=(parts[0].name,),  # decides against the claim where it does not hold
    )


def _collapse(rule: Rule, curves: DepthCurves, after: str, never: str = "") -> str:
    layers = curves.collapsed_after["attention"]
    if layers:
        return rule.say(after, after=layers, late=layers)
    return rule.say(never) if never else ""


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
