"""Claim 7: pure attention collapses to rank one with depth; what prevents it, and what slows it.

Decided by the residual ``||res(H)|| / ||H||`` of the states H, layer by layer: of attention alone,
with the skip connection, with the feed-forward network, and without LayerNorm. ``res(H)`` is H less
the mean over tokens, so it is 0 where all tokens are the same.

``headscope depth`` measures these curves over windows of a text. ``depth.variants`` has a curve for
each variant of the model, point 0 being the embeddings; ``depth.trends`` has what is compared here
(such as a curve as a share of its start), with an interval over windows at every point.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headscope.analyses.depth.result import DepthCurves, DepthResult
from headscope.reports.claims.bar import Bar
from headscope.reports.claims.intervals import (
    FAILS,
    HOLDS,
    NOT_MEASURED,
    above,
    common,
    every,
    shown,
)
from headscope.reports.claims.rule import (
    Claim,
    ClaimPart,
    Evidence,
    Rule,
    lies_above,
    lies_below,
    lies_between,
)
from headscope.reports.result import Insight, InsightPart
from headscope.stats.estimate import Estimate

#: What decides the claim. ``rule`` says it in words, ``lies`` where the estimate's interval has
#: to lie for the part to hold (``{bound}`` in these words).
PARTS = {
    "falls": ClaimPart(
        name="attention alone collapses",
        rule="what is left of its start after attention alone is {bound}",
        lies=lambda thresholds: lies_below(thresholds.collapsed),
        percent=True,
    ),
    "exponential": ClaimPart(
        name="at least as fast as exponentially",
        rule="the change of a layer's factor from that of the layer before is {bound}",
        lies=lambda thresholds: lies_below(thresholds.step_slack),
        join=every,
    ),
    "skip": ClaimPart(
        name="the skip connection prevents it",
        rule="what is left with the skip connection is {bound}",
        lies=lambda thresholds: lies_above(thresholds.collapsed),
        join=every,
        percent=True,
    ),
    "ffn": ClaimPart(
        name="the feed-forward network slows it",
        rule="ln of the ratio of the curve with feed-forward to that of attention alone is {bound}",
        lies=lambda thresholds: lies_above(0),
        join=common,
    ),
    "layernorm": ClaimPart(
        name="LayerNorm plays no role",
        rule="without LayerNorm the curve changes by a share of its start that is {bound}",
        lies=lambda thresholds: lies_between(
            -thresholds.layernorm_change, thresholds.layernorm_change
        ),
        join=every,
    ),
}

#: Points of a curve, each by the number of the layer that it comes after.
Points = Mapping[int, Estimate]


def judge(rule: Rule, evidence: Evidence) -> Insight:
    """Decide by the residual's curves, part by part, each by its interval over windows."""
    depth = evidence.depth
    if depth is None:
        return rule.missing("depth")
    if len(depth.variants["attention"]) < 3:
        why = "The model has one layer: how a curve falls with depth is open."
        return rule.insight(NOT_MEASURED, why)
    if depth.sequences < 2:
        why = "One window was measured, which has no interval; give more."
        return rule.insight(NOT_MEASURED, why)

    # Whether attention alone collapses, by its curve after the last layer.
    curve = depth.trends["attention_of_start"]
    left_at_end = Estimate(curve.mean[-1], curve.low[-1], curve.high[-1])
    falls_part = rule.part(
        "falls", left_at_end, f"{_digits(left_at_end)} of its start after the last layer"
    )
    collapsed_after = depth.collapsed_after["attention"]
    collapse = "never below 1% for good"
    if collapsed_after:
        collapse = f"below 1% of its start after {collapsed_after} layers"
    remaining = _remaining(depth)
    return rule.concluded(
        parts=(
            falls_part,
            _exponential_part(rule, depth),
            _skip_part(rule, depth),
            _ffn_part(rule, depth),
            _layernorm_part(rule, depth),
        ),
        measured=(
            f"Residual after {len(depth.variants['full']) - 1} layers ({depth.sequences} windows): "
            f"attention alone {remaining['attention']} ({collapse}), with feed-forward "
            f"{remaining['attention+ffn']}, with skip {remaining['attention+skip']}, full "
            f"{remaining['full']}."
        ),
        control=_control(depth.control),
        values={
            "attention": depth.variants["attention"][-1],
            "attention_with_ffn": depth.variants["attention+ffn"][-1],
            "attention_with_skip": depth.variants["attention+skip"][-1],
            "full": depth.variants["full"][-1],
            "collapsed_after": collapsed_after,
            "control": None if depth.control is None else depth.control.variants["attention"][-1],
        },
        refuting=(falls_part.name,),
    )


# --- the parts ------------------------------------------------------------------------------------


def _exponential_part(rule: Rule, depth: DepthResult) -> InsightPart:
    """Decide whether no layer's factor is larger than that of the layer before.

    A layer's factor is what it multiplies the residual by: 0.5 where it halves it.
    """
    steps = _points(depth, "step_change", _fewest_windows(rule, depth))
    if not steps:
        text = "fewer than two layers lie above rounding, so no two factors can be compared"
        return rule.part("exponential", [], text)
    layer = max(steps, key=lambda layer: _value(steps[layer]))
    text = (
        "largest change of the factor from one layer to the next "
        f"{_digits(steps[layer])} (L{layer})"
    )
    return rule.part("exponential", steps.values(), text)


def _skip_part(rule: Rule, depth: DepthResult) -> InsightPart:
    """Decide whether the curve with the skip connection stays above what counts as collapsed."""
    remaining = _points(depth, "skip_of_start")
    text = "states overflow"
    if remaining:
        layer = min(remaining, key=lambda layer: _value(remaining[layer]))
        text = f"least share of the start {_digits(remaining[layer])} (L{layer})"
    return rule.part("skip", remaining.values(), text)


def _ffn_part(rule: Rule, depth: DepthResult) -> InsightPart:
    """Decide whether the curve with feed-forward lies above that of attention alone.

    Written: "above at L0, L1, not apart at L2; ln of the ratio 0.412 [0.398, 0.426] at L0".
    """
    gains = _points(depth, "ffn_gain", _fewest_windows(rule, depth))
    if not gains:
        return rule.part("ffn", [], "both curves are at rounding from the first layer on")
    layers: dict[str, list[str]] = {"above": [], "below": [], "not apart": []}
    for layer, gain in gains.items():
        outcome = above(gain, 0.0)
        if outcome == HOLDS:
            layers["above"].append(f"L{layer}")
        elif outcome == FAILS:
            layers["below"].append(f"L{layer}")
        else:
            layers["not apart"].append(f"L{layer}")
    where = ", ".join(f"{word} at {', '.join(names)}" for word, names in layers.items() if names)
    first = min(gains)
    text = f"{where}; ln of the ratio {_digits(gains[first])} at L{first}"
    return rule.part("ffn", gains.values(), text)


def _layernorm_part(rule: Rule, depth: DepthResult) -> InsightPart:
    """Decide whether the curve stays the same without LayerNorm."""
    changes = _points(depth, "layernorm_change")
    text = "states overflow"
    if changes:
        layer = max(changes, key=lambda layer: abs(_value(changes[layer])))
        text = f"largest change of the curve, of its start {_digits(changes[layer])} (L{layer})"
    layernorm = rule.part("layernorm", changes.values(), text)
    # Where states overflow after some layer, a point is missing.
    n_layers = len(depth.trends["layernorm_change"].mean) - 1
    overflow = len(changes) < n_layers
    if overflow and layernorm.verdict != FAILS:
        return rule.decided("layernorm", NOT_MEASURED, text)
    return layernorm


def _points(depth: DepthResult, name: str, fewest_windows: float = 2.0) -> Points:
    """Return the points of a trend by layer, where enough windows count.

    The first point of a trend is that of the embeddings, and left out.
    """
    trend = depth.trends[name]
    rows = list(zip(trend.mean, trend.low, trend.high, trend.windows, strict=True))
    points = {}
    for layer, (mean, low, high, n_windows) in enumerate(rows[1:]):
        if mean is not None and n_windows >= fewest_windows:
            points[layer] = Estimate(mean, low, high)
    return points


def _fewest_windows(rule: Rule, depth: DepthResult) -> float:
    """Return how many windows have to be above rounding for a layer to count."""
    return max(2.0, rule.thresholds.above_rounding * depth.sequences)


# --- what is written ------------------------------------------------------------------------------


def _value(point: Estimate) -> float:
    """Return the number alone, to find the largest of several."""
    return point.value or 0.0


def _digits(number: Estimate) -> str:
    """Write an estimate with three decimals, or as a power of ten where it is tiny."""
    small = number.value is not None and abs(number.value) < 0.001
    return shown(number, ".0e" if small else ".3f")


def _remaining(curves: DepthCurves) -> dict[str, str]:
    """Write the residual after the last layer, by variant; it is None where states overflow."""
    remaining = {}
    for name in ("attention", "attention+ffn", "attention+skip", "full"):
        value = curves.variants[name][-1]
        if value is None:
            remaining[name] = "overflow"
        elif value >= 0.001 or value == 0:
            remaining[name] = f"{value:.3f}"
        else:
            remaining[name] = f"{value:.0e}"
    return remaining


def _control(random: DepthCurves | None) -> str:
    """Say how large the residual with random weights is after the last layer."""
    if random is None:
        return "Not run."
    remaining = _remaining(random)
    collapsed_too = ""
    collapsed_after = random.collapsed_after["attention"]
    if collapsed_after:
        collapsed_too = f": an untrained model collapses too, after {collapsed_after} layers"
    return (
        f"Random weights: attention alone {remaining['attention']}, with skip "
        f"{remaining['attention+skip']}, full {remaining['full']}{collapsed_too}."
    )


def bar(values: Mapping[str, Any]) -> Bar:
    """Lead with what the skip connection leaves of the difference between tokens."""
    return Bar(
        caption="difference between tokens left, with skip",
        value=values["attention_with_skip"],
        control=values["attention"],
        control_name="attention alone",
    )


CLAIM = Claim(
    number=7,
    text="Pure attention collapses to rank one with depth; skip connections prevent it, "
    "feed-forward networks slow it, LayerNorm plays no role.",
    paper="Dong et al. 2021, Attention is not all you need",
    parts=PARTS,
    closing="Intervals are over windows. Layers count while {above_rounding:.0%} of the windows "
    "are above rounding. Does not hold if attention alone does not fall.",
    judge=judge,
    bar=bar,
)
