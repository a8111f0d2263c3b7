"""Claims 5 and 7: attention is low rank after the softmax, and collapses with depth."""

from __future__ import annotations

from headscope.analyses.depth.result import DepthCurves
from headscope.analyses.spectrum.result import SpectrumResult
from headscope.core.safe_text import listed
from headscope.reports.claims.finding import (
    FAILS,
    HOLDS,
    OPEN,
    UNKNOWN,
    Evidence,
    Finding,
    above,
    below,
    common,
    every,
    shown,
    within,
)
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import InsightPart
from headscope.stats.estimate import Estimate

_NAMED = 6  # Heads named in a sentence; all of them are in the values


def judge_low_rank(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 5 by the share of the largest singular values of every head's pattern.

    The classification, where there is one, names the positional heads among the exceptions.
    """
    limit, most = thresholds.low_rank, thresholds.most
    rule = (
        f"Holds if more than {most:.0%} of heads have a share above {limit:g} with their whole 95% "
        f"interval; does not hold if {1 - most:.0%} or more lie wholly at or below it; positional "
        "heads are named as exceptions. Random weights are the control: a share that is not above "
        "theirs says nothing about learning."
    )
    spectrum = evidence.spectrum
    if spectrum is None:
        return Finding("not measured yet", rule, "spectrum was not part of this run")
    if not spectrum.heads:
        return Finding("not applicable", rule, "The model has no head.")
    if any(head.share_at_k.interval is None for head in spectrum.heads):
        return Finding(
            "not measured", rule, "One sequence was measured, which has no interval; give more."
        )
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
    exceptions = f"; positional exceptions: {listed(positional, _NAMED)}" if positional else ""
    return Finding.concluded(
        [InsightPart("most heads are of low rank", outcome, f"{len(low)} of {n}")],
        f"The {spectrum.k} largest of {spectrum.length} singular values hold more than {limit:g} "
        f"of the sum in {len(low)} of {n} heads, not more in {len(high)} "
        f"(mean share {spectrum.mean_share:.2f}){exceptions}.",
        _low_rank_control(spectrum),
        rule,
        {
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
            "random_weights_above": None
            if random is None
            else [draw.above for draw in random.draws],
            "over_random_weights": difference and difference.value,
            "over_random_weights_half_width": difference and difference.half_width,
        },
    )


def _low_rank_control(spectrum: SpectrumResult) -> str:
    """Say what the verdict is worth beside random weights."""
    others = (
        f"Patterns of random scores {spectrum.controls['random-logits'].share_at_k:.2f}, a head "
        f"that looks at itself {spectrum.controls['identity'].share_at_k:.2f}."
    )
    random, difference = spectrum.random_weights, spectrum.over_random_weights()
    if random is None or difference is None:
        nothing = "Random weights were not measured, so the verdict says nothing about learning."
        return f"{nothing} {others}"
    text = (
        f"Random weights: mean share {random.share_at_k.value:.2f}, "
        f"{min(draw.above for draw in random.draws)} of {random.heads} heads above "
        f"{spectrum.verdict.threshold:g}"
    )
    if difference.half_width is None:
        return f"{text}; no interval of the difference, so nothing about learning. {others}"
    meaning = {
        HOLDS: "training has made the patterns lower in rank than an untrained model's",
        FAILS: "training has not made the patterns lower in rank, so low rank is no sign of "
        "learning",
        OPEN: "the two cannot be told apart, so the verdict says nothing about learning",
    }[above(difference, 0.0)]
    gap = shown(difference, "+.2f")
    return f"{text}; this model's mean minus theirs is {gap}: {meaning}. {others}"


def judge_collapse(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 7 by the residual's curves, part by part, each by its interval over windows."""
    t, depth = thresholds, evidence.depth
    rule = (
        "Each part by its 95% interval over windows: attention alone falls below "
        f"{t.collapsed:.0%} of its start; at least as fast as exponentially (no layer's factor "
        f"exceeds the one before by more than {t.step_slack:g}); with its skip connection it stays "
        f"above {t.collapsed:.0%}; with feed-forward it lies above attention alone; without "
        f"LayerNorm it changes by less than {t.layernorm_change:g} of its start. Layers count "
        f"while {t.above_rounding:.0%} of the windows are above rounding. Holds if every part "
        "does; does not hold if attention alone does not fall."
    )
    if depth is None:
        return Finding("not measured yet", rule, "depth was not part of this run")
    n_layers = len(depth.variants["attention"]) - 1
    if n_layers < 2:
        why = "The model has one layer: how a curve falls with depth is open."
        return Finding("not measured", rule, why)
    if depth.sequences < 2:
        why = "One window was measured, which has no interval; give more."
        return Finding("not measured", rule, why)

    def points(name: str, windows: float = 2.0) -> dict[int, Estimate]:
        """Return a curve by layer, without the embeddings, where enough windows count."""
        trend = depth.trends[name]
        rows = zip(trend.mean, trend.low, trend.high, trend.windows, strict=True)
        return {
            i - 1: Estimate(mean, low, high)
            for i, (mean, low, high, count) in enumerate(rows)
            if i and count >= windows and mean is not None
        }

    above_rounding = max(2.0, t.above_rounding * depth.sequences)
    end = depth.trends["attention_of_start"]
    falls = Estimate(end.mean[-1], end.low[-1], end.high[-1])
    steps = points("step_change", above_rounding)
    skip = points("skip_of_start")
    gains = points("ffn_gain", above_rounding)
    change = points("layernorm_change")
    slack = t.layernorm_change
    layernorm = every([within(point, -slack, slack) for point in change.values()])
    if len(change) < len(depth.trends["layernorm_change"].mean) - 1 and layernorm != FAILS:
        layernorm = UNKNOWN  # states without it overflow
    falling = "attention alone collapses"  # Decides against the claim where it does not hold
    parts = (
        InsightPart(
            falling,
            below(falls, t.collapsed),
            f"{_digits(falls)} of its start after the last layer",
        ),
        InsightPart(
            "at least as fast as exponentially",
            every([below(step, t.step_slack) for step in steps.values()]),
            _extreme("largest change of the factor from one layer to the next", steps, 1)
            if steps
            else "fewer than two layers lie above rounding, so no two factors can be compared",
        ),
        InsightPart(
            "the skip connection prevents it",
            every([above(point, t.collapsed) for point in skip.values()]),
            _extreme("least share of the start", skip, -1),
        ),
        InsightPart(
            "the feed-forward network slows it",
            common([above(gain, 0.0) for gain in gains.values()]),
            _gains(gains) if gains else "both curves are at rounding from the first layer on",
        ),
        InsightPart(
            "LayerNorm plays no role",
            layernorm,
            _extreme("largest change of the curve, of its start", change, 0),
        ),
    )
    after, control = depth.collapsed_after["attention"], depth.control
    collapse = f"below 1% of its start after {after} layers" if after else "never below 1% for good"
    control_text = "Not run."
    if control is not None:
        late = control.collapsed_after["attention"]
        too = f": an untrained model collapses too, after {late} layers" if late else ""
        control_text = (
            f"Random weights: attention alone {_last(control, 'attention')}, with skip "
            f"{_last(control, 'attention+skip')}, full {_last(control, 'full')}{too}."
        )
    return Finding.concluded(
        parts,
        f"Residual after {len(depth.variants['full']) - 1} layers ({depth.sequences} windows): "
        f"attention alone {_last(depth, 'attention')} ({collapse}), with feed-forward "
        f"{_last(depth, 'attention+ffn')}, with skip {_last(depth, 'attention+skip')}, "
        f"full {_last(depth, 'full')}.",
        control_text,
        rule,
        {
            "attention": depth.variants["attention"][-1],
            "attention_with_ffn": depth.variants["attention+ffn"][-1],
            "attention_with_skip": depth.variants["attention+skip"][-1],
            "full": depth.variants["full"][-1],
            "collapsed_after": after,
            "parts": {part.name: part.verdict for part in parts},
            "control": None if control is None else control.variants["attention"][-1],
        },
        refuting=(falling,),
    )


def _extreme(what: str, points: dict[int, Estimate], sign: int) -> str:
    """Name the largest point (``sign`` 1), the smallest (-1), or the one farthest from 0 (0)."""
    if not points:
        return "states overflow"

    def size(layer: int) -> float:
        value = points[layer].value or 0.0
        return sign * value if sign else abs(value)

    layer = max(points, key=size)
    return f"{what} {_digits(points[layer])} (L{layer})"


def _gains(gains: dict[int, Estimate]) -> str:
    """Say at which layers the curve with feed-forward lies above, below, or neither."""
    groups: dict[str, list[str]] = {"above": [], "below": [], "not apart": []}
    side = {HOLDS: "above", FAILS: "below"}
    for layer, gain in gains.items():
        groups[side.get(above(gain, 0.0), "not apart")].append(f"L{layer}")
    text = ", ".join(f"{name} at {', '.join(layers)}" for name, layers in groups.items() if layers)
    first = min(gains)
    return f"{text}; ln of the ratio {_digits(gains[first])} at L{first}"


def _digits(number: Estimate) -> str:
    """Write an estimate with as many digits as it needs."""
    small = number.value is not None and abs(number.value) < 0.001
    return shown(number, ".0e" if small else ".3f")


def _last(curves: DepthCurves, name: str) -> str:
    value = curves.variants[name][-1]
    if value is None:
        return "overflow"
    return f"{value:.3f}" if value >= 0.001 or value == 0 else f"{value:.0e}"
