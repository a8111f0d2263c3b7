"""Claim 5: after the softmax, attention is low rank."""

from __future__ import annotations

from collections.abc import Iterator

from headscope.analyses.depth.result import DepthCurves, DepthResult, Trend
from headscope.analyses.spectrum.result import SpectrumResult
from headscope.core.safe_text import listed
from headscope.reports.claims.finding import UNKNOWN, Evidence, Finding, Measurement, common, every
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import InsightPart

__all__ = ["judge_low_rank", "judge_collapse"]

_SHOWN = 6  # Heads named in a sentence; all of them are in the values.


def judge_low_rank(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 5 by the share of the largest singular values of every head's pattern.

    The classification, where there is one, names the positional heads among the exceptions.
    """
    limit, most = thresholds.low_rank, thresholds.most
    rule = (
        f"Holds if more than {most:.0%} of heads have a share above {limit:g} with their whole 95% "
        f"interval; does not hold if {1 - most:.0%} or more lie wholly at or below it; positional "
        "heads are named as exceptions. Random weights stand beside it: a share that is not above "
        "theirs says nothing about learning."
    )
    spectrum = evidence.spectrum
    if spectrum is None:
        return Finding("not measured yet", rule, "spectrum was not part of this run")
    if not spectrum.heads:
        return Finding("not applicable", rule, "The model has no head.")
    shares = {h.name: Measurement.around(h.share_at_k.mean, h.half_width) for h in spectrum.heads}
    if any(share.low is None for share in shares.values()):
        return Finding(
            "not measured", rule, "One sequence was measured, which has no interval; give more."
        )
    low = [name for name, share in shares.items() if share.above(limit) == "holds"]
    high = [name for name, share in shares.items() if share.above(limit) == "does not hold"]
    roles = {h.name: h.primary for h in evidence.classify.heads} if evidence.classify else {}
    roles |= {h.name: h.role for h in spectrum.heads if h.role}
    positional = [name for name in high if roles.get(name) == "positional"]
    n, mean = len(shares), sum(share.mean for share in shares.values()) / len(shares)
    random, against = spectrum.random_weights, spectrum.over_random_weights()
    values = {
        "k": spectrum.k,
        "length": spectrum.length,
        "heads": len(spectrum.heads),
        "low_rank": low,
        "not_low_rank": high,
        "positional_exceptions": positional,
        "mean_share": mean,
        "random_logits": spectrum.controls["random-logits"].share_at_k,
        "identity": spectrum.controls["identity"].share_at_k,
        "random_weights": None if random is None else random.share_at_k.mean,
        "random_weights_above": None if random is None else [draw.above for draw in random.draws],
        "over_random_weights": None if against is None else against.mean,
        "over_random_weights_half_width": None if against is None else against.half_width,
    }
    measured = (
        f"The {spectrum.k} largest of {spectrum.length} singular values hold more than {limit:g} "
        f"of the sum in {len(low)} of {n} heads, not more in {len(high)} (mean share {mean:.2f})"
        + (f"; positional exceptions: {listed(positional, _SHOWN)}" if positional else "")
        + "."
    )
    verdict = "holds" if len(low) > most * n else "open"
    if verdict == "open" and len(high) >= (1 - most) * n:
        verdict = "does not hold"
    part = InsightPart("most heads are of low rank", verdict, f"{len(low)} of {n}")
    return Finding.concluded([part], measured, _low_rank_control(spectrum, mean), rule, values)


def _low_rank_control(spectrum: SpectrumResult, mean: float) -> str:
    """Name the random weights first, and say what the verdict is worth beside them."""
    random, identity = (
        spectrum.controls[name].share_at_k for name in ("random-logits", "identity")
    )
    closed = f"Patterns of random scores {random:.2f}, a head that looks at itself {identity:.2f}."
    weights, against = spectrum.random_weights, spectrum.over_random_weights()
    if weights is None or against is None:
        return (
            "Random weights were not measured, so the verdict says nothing about learning. "
            f"{closed}"
        )
    above = min(draw.above for draw in weights.draws)
    text = (
        f"Random weights: mean share {weights.share_at_k.mean:.2f}, {above} of {weights.heads} "
        f"heads above {spectrum.verdict.threshold:g}"
    )
    if against.half_width is None:
        return f"{text}; no interval of the difference, so nothing about learning. {closed}"
    gap = Measurement.around(against.mean, against.half_width)
    meaning = {
        "holds": "training has made the patterns lower in rank than an untrained model's",
        "does not hold": "training has not made the patterns lower in rank, so low rank is no sign "
        "of learning",
        "open": "the two cannot be told apart, so the verdict says nothing about learning",
    }[gap.above(0.0)]
    return (
        f"{text}; this model's mean minus theirs is {gap.mean:+.2f} {gap.interval('+.2f')}: "
        f"{meaning}. {closed}"
    )


#: The part that decides against the claim where it does not hold.
_FALLS = "attention alone collapses"


def judge_collapse(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 7 by the residual's curves, part by part, each by its interval over windows."""
    rule, depth = _collapse_rule(thresholds), evidence.depth
    if depth is None:
        return Finding("not measured yet", rule, "depth was not part of this run")
    n_layers = len(depth.variants["attention"]) - 1
    if n_layers < 2:
        return Finding(
            "not measured", rule, "The model has one layer: how a curve falls with depth is open."
        )
    if depth.sequences < 2:
        return Finding(
            "not measured", rule, "One window was measured, which has no interval; give more."
        )
    parts = list(_collapse_parts(depth, thresholds))
    values: dict[str, object] = {
        "attention": _end(depth, "attention"),
        "attention_with_ffn": _end(depth, "attention+ffn"),
        "attention_with_skip": _end(depth, "attention+skip"),
        "full": _end(depth, "full"),
        "collapsed_after": depth.collapsed_after["attention"],
        "parts": {part.name: part.verdict for part in parts},
        "control": None if depth.control is None else _end(depth.control, "attention"),
    }
    n = len(depth.variants["full"]) - 1
    after = depth.collapsed_after["attention"]
    collapse = f"below 1% of its start after {after} layers" if after else "never below 1% for good"
    return Finding.concluded(
        parts,
        (
            f"Residual after {n} layers ({depth.sequences} windows): attention alone "
            f"{_last(depth, 'attention')} ({collapse}), with feed-forward "
            f"{_last(depth, 'attention+ffn')}, with skip {_last(depth, 'attention+skip')}, "
            f"full {_last(depth, 'full')}."
        ),
        _depth_control(depth),
        rule,
        values,
        refuting=(_FALLS,),
    )


def _collapse_rule(t: InsightThresholds) -> str:
    return (
        "Each part by its 95% interval over windows: attention alone falls below "
        f"{t.collapsed:.0%} of its start; at least as fast as exponentially (no layer's factor "
        f"exceeds the one before by more than {t.step_slack:g}); with its skip connection it stays "
        f"above {t.collapsed:.0%}; with feed-forward it lies above attention alone; without "
        f"LayerNorm it changes by less than {t.layernorm_change:g} of its start. Layers count "
        f"while {t.above_rounding:.0%} of the windows are above rounding. Holds if every part "
        "does; does not hold if attention alone does not fall."
    )


def _collapse_parts(depth: DepthResult, t: InsightThresholds) -> Iterator[InsightPart]:
    trends = depth.trends
    least = max(2.0, t.above_rounding * depth.sequences)
    falls = _at(trends["attention_of_start"], -1)
    yield InsightPart(
        _FALLS, falls.below(t.collapsed), f"{_trend_text(falls)} of its start after the last layer"
    )
    steps = _counted(trends["step_change"], least)
    yield InsightPart(
        "at least as fast as exponentially",
        every([step.below(t.step_slack) for step in steps.values()]),
        _extreme("largest change of the factor from one layer to the next", steps, largest=True)
        if steps
        else "fewer than two layers lie above rounding, so no two factors can be compared",
    )
    skip = _counted(trends["skip_of_start"], 2)
    yield InsightPart(
        "the skip connection prevents it",
        every([point.above(t.collapsed) for point in skip.values()]),
        _extreme("least share of the start", skip, largest=False),
    )
    gains = _counted(trends["ffn_gain"], least)
    yield InsightPart(
        "the feed-forward network slows it",
        common([gain.above(0.0) for gain in gains.values()]),
        _gains(gains) if gains else "both curves are at rounding from the first layer on",
    )
    change = _counted(trends["layernorm_change"], 2)
    limit = t.layernorm_change
    verdict = every([point.within(-limit, limit) for point in change.values()])
    if len(change) < len(trends["layernorm_change"].mean) - 1:  # states without it overflow
        verdict = verdict if verdict == "does not hold" else UNKNOWN
    yield InsightPart(
        "LayerNorm plays no role",
        verdict,
        _extreme("largest change of the curve, of its start", change, largest=True, by_size=True),
    )


def _at(trend: Trend, point: int) -> Measurement:
    mean = trend.mean[point]
    return Measurement(float("nan") if mean is None else mean, trend.low[point], trend.high[point])


def _counted(trend: Trend, least: float) -> dict[int, Measurement]:
    """Return the points after the embeddings that enough windows count at, by layer."""
    return {
        point - 1: _at(trend, point)
        for point in range(1, len(trend.mean))
        if trend.windows[point] >= least and trend.mean[point] is not None
    }


def _extreme(
    what: str, points: dict[int, Measurement], *, largest: bool, by_size: bool = False
) -> str:
    if not points:
        return "states overflow"
    sign = 1.0 if largest else -1.0

    def size(layer: int) -> float:
        mean = points[layer].mean
        return sign * (abs(mean) if by_size else mean)

    layer = max(points, key=size)
    return f"{what} {_trend_text(points[layer])} (L{layer})"


def _gains(gains: dict[int, Measurement]) -> str:
    """Say at which layers the curve with feed-forward lies above, below, or neither."""
    groups: dict[str, list[str]] = {"above": [], "below": [], "not apart": []}
    side = {"holds": "above", "does not hold": "below"}
    for layer, gain in gains.items():
        groups[side.get(gain.above(0.0), "not apart")].append(f"L{layer}")
    text = ", ".join(f"{name} at {', '.join(where)}" for name, where in groups.items() if where)
    first = min(gains)
    return f"{text}; ln of the ratio {_trend_text(gains[first])} at L{first}"


def _trend_text(found: Measurement) -> str:
    """Write an estimate with as many digits as it needs."""
    form = ".3f" if abs(found.mean) >= 0.001 else ".0e"
    return f"{found.mean:{form}} {found.interval(form)}"


def _end(curves: DepthCurves, name: str) -> float | None:
    return curves.variants[name][-1]


def _last(curves: DepthCurves, name: str) -> str:
    value = _end(curves, name)
    if value is None:
        return "overflow"
    return f"{value:.3f}" if value >= 0.001 or value == 0 else f"{value:.0e}"


def _depth_control(depth: DepthResult) -> str:
    if depth.control is None:
        return "Not run."
    control = depth.control
    after = control.collapsed_after["attention"]
    too = f": an untrained model collapses too, after {after} layers" if after else ""
    return (
        f"Random weights: attention alone {_last(control, 'attention')}, with skip "
        f"{_last(control, 'attention+skip')}, full {_last(control, 'full')}{too}."
    )
