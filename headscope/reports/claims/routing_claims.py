"""Claims 1 and 6: heads route what they read, and keys interfere without the softmax."""

from __future__ import annotations

from headscope.analyses.flow.result import FlowResult
from headscope.analyses.linear.result import LinearResult
from headscope.reports.claims.rule import FAILS, HOLDS, UNKNOWN, Rule, shown
from headscope.reports.result import Insight, InsightPart
from headscope.stats.estimate import Estimate


def judge_routing(rule: Rule, flow: FlowResult) -> Insight:
    """Decide claim 1 by the width of W_V and by what z holds of the word attended to most.

    A wide W_V and a sharp pattern are what an untrained model with large W_Q has as well; so the
    same patterns with a W_V of Gaussian entries, and random directions, are among the controls.
    """
    widths = [width for head in flow.heads if (width := head.wide()) is not None]
    if not widths:
        return rule.undecided("not applicable", "no_values")
    recovery = flow.recovery
    control = flow.control
    wide = sum(width > rule.thresholds.value_width for width in widths)
    r2 = {f"r2_{name}": number.value for name, number in vars(recovery).items()}
    values = {
        "heads": len(widths),
        "wide": wide,
        "mean_width": sum(widths) / len(widths),
        **r2,
        "r2_value_random_weights": control and control.recovery.value.value,
        "r2_whole_random_weights": control and control.recovery.whole.value,
    }

    def known(number: Estimate, *names: str) -> str:
        """Write an estimate, or why it was not measured."""
        reasons = [flow.not_measured[name] for name in names if name in flow.not_measured]
        return f"not measured: {reasons[0]}" if reasons else shown(number)

    def exceeds(key: str, mine: str, theirs: str, difference: Estimate) -> InsightPart:
        pair = {"mine": r2[f"r2_{mine}"], "theirs": r2[f"r2_{theirs}"]}
        text = rule.say("against", pair, difference=known(difference, mine, theirs))
        return rule.part(key, difference, text)

    outcome = HOLDS if wide > rule.thresholds.most * len(widths) else FAILS
    random = rule.part("random", UNKNOWN, rule.say("no_random"))
    controls = rule.say("control", r2)
    if control is not None:
        gain = control.gain.value
        drawn = control.recovery
        random = rule.part("random", gain, gain=known(gain, "value"))
        alone = rule.say("control_random", value=drawn.value.value, input=drawn.whole.value)
        controls = alone + controls
    parts = [
        rule.part("wide", outcome, **values),
        random,
        exceeds("gaussian", "value", "gaussian", flow.over_gaussian),
        exceeds("token", "token", "token_directions", flow.token_over_directions),
        rule.part("recovers", recovery.value, value=known(recovery.value, "value")),
    ]
    not_counted = [exceeds("not_counted_whole", "whole", "directions", flow.over_directions)]
    measured = rule.say("measured", values, n=len(flow.heads))
    if recovery.value.value is None:
        measured = rule.say("not_measured", why=flow.not_measured.get("value", "no numbers"))
    gaussian = [
        shape.w_v.effective_rank / shape.d_head
        for shape in flow.spectra.get("gaussian", ())
        if shape.w_v.effective_rank is not None
    ]
    if gaussian:
        controls += rule.say("control_width", width=sum(gaussian) / len(gaussian))
    return rule.concluded(parts, measured, controls, values, not_counted=not_counted)


def judge_interference(rule: Rule, linear: LinearResult) -> Insight:
    """Decide claim 6 by what heads lose without softmax, and what their keys read back.

    That a softmax with beta = sqrt(d_head) reads back better than the linear sum is true of every
    random model; so it must do so by more than there, and at the sharpness that the head has.
    """
    coherence = linear.correlations[0]
    stored = linear.stored
    control = linear.control
    form = linear.form("linear")
    errors = {"linear": stored.linear.value, "softmax": stored.softmax_own.value}
    read_back = rule.say("own", errors, difference=stored.difference_own)
    correlation = rule.say("correlation", vars(coherence))
    control_text = rule.say("no_random")
    random = rule.part("random", UNKNOWN, control_text)
    if control is not None:
        sides = {"stored": stored.difference, "random": control.stored.difference}
        random = rule.part("random", control.over_random, **sides)
        control_text = rule.say("random_spearman", spearman=control.correlations[0].spearman)
    parts = [
        rule.part("coherence", coherence.spearman, correlation)
        if coherence.layers
        else rule.part("coherence", UNKNOWN, rule.say("no_layer")),
        rule.part("own", stored.difference_own, read_back),
        random,
    ]
    values = {
        "spearman": coherence.spearman.value,
        "pearson": coherence.pearson.value,
        "p": coherence.p,
        "error": form.mean.scaled.value,
        "cosine": form.whole_scaled.cosine.value,
        "stored_linear": stored.linear.value,
        "stored_softmax": stored.softmax.value,
        "stored_softmax_own": stored.softmax_own.value,
        "over_random": control and control.over_random.value,
        "random_spearman": control and control.correlations[0].spearman.value,
    }
    centred, entropy = (
        next(row.spearman for row in linear.correlations if (row.number, row.given) == (name, ""))
        for name in ("coherence_centred", "entropy")
    )
    # The error of this form goes to 0 where scores are small.
    small = [form.mean.error.value for form in linear.forms if form.mean.form == "first-order"]
    first = rule.say("first_order", error=small[0]) if small else rule.say("no_first_order")
    others = {"centred": centred, "entropy": entropy, "first_order": first, "random": control_text}
    measured = rule.say("measured", values, correlation=correlation, read_back=read_back)
    return rule.concluded(parts, measured, rule.say("control", others), values)
