"""Claims 1 and 6: heads route what they read, and keys interfere without the softmax."""

from __future__ import annotations

import dataclasses

from headscope.analyses.flow.result import FlowResult
from headscope.analyses.linear.result import HeadCorrelation, LinearResult
from headscope.reports.claims.finding import FAILS, HOLDS, UNKNOWN, Evidence, Finding, shown
from headscope.reports.claims.rule import Rule
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import InsightPart
from headscope.stats.estimate import Estimate


def judge_routing(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 1 by the width of W_V and by what z holds of the word attended to most.

    A wide W_V and a sharp pattern are what an untrained model with large W_Q has as well; so the
    same patterns with a W_V of Gaussian entries, and random directions, are among the controls.
    """
    rule, flow = Rule("routing", thresholds), evidence.flow
    if flow is None:
        return rule.missing()
    widths = [width for head in flow.heads if (width := head.wide()) is not None]
    if not widths:
        return rule.undecided("not applicable", "no_values")
    recovery, control, trees = flow.recovery, flow.control, flow.trees
    wide = sum(width > thresholds.value_width for width in widths)
    r2 = {f"r2_{name}": number.value for name, number in vars(recovery).items()}
    values = {
        "heads": len(widths),
        "wide": wide,
        "mean_width": sum(widths) / len(widths),
        **r2,
        "r2_value_random_weights": control and control.recovery.value.value,
        "r2_whole_random_weights": control and control.recovery.whole.value,
        "uas": trees and trees.combination.uas.value,
        "uas_best_head": trees and trees.best.uas.value,
        "uas_baseline": trees and trees.baselines[trees.strongest].value,
    }

    def known(number: Estimate, *names: str) -> str:
        """Write an estimate, or why it was not measured."""
        reasons = [flow.not_measured[name] for name in names if name in flow.not_measured]
        return f"not measured: {reasons[0]}" if reasons else shown(number)

    def exceeds(key: str, mine: str, theirs: str, difference: Estimate) -> InsightPart:
        pair = {"mine": r2[f"r2_{mine}"], "theirs": r2[f"r2_{theirs}"]}
        text = rule.say("against", pair, difference=known(difference, mine, theirs))
        return rule.part(key, difference, text)

    parts = [
        rule.part(
            "wide",
            HOLDS if wide > thresholds.most * len(widths) else FAILS,
            rule.say("width", values),
        ),
        rule.part("random", UNKNOWN, rule.say("no_random"))
        if control is None
        else rule.part(
            "random",
            control.gain.value,
            rule.say("over_random", gain=known(control.gain.value, "value")),
        ),
        exceeds("gaussian", "value", "gaussian", flow.over_gaussian),
        exceeds("token", "token", "token_directions", flow.token_over_directions),
        rule.part(
            "recovers",
            recovery.value,
            rule.say("recovers", value=known(recovery.value, "value")),
        ),
    ]
    not_counted = [exceeds("not_counted_whole", "whole", "directions", flow.over_directions)]
    if trees is not None:
        gap = trees.combination.over_baseline
        text = rule.say("trees", values, strongest=trees.strongest, gap=gap)
        not_counted.append(rule.part("not_counted_trees", gap, text))
    if recovery.value.value is None:
        why = flow.not_measured.get("value", "no numbers")
        measured = rule.say("not_measured", why=why)
    else:
        measured = rule.say("measured", values, n=len(flow.heads))
    finding = Finding.concluded(parts, measured, _routing_control(rule, flow, r2), values)
    return dataclasses.replace(finding, parts=(*finding.parts, *not_counted))


def _routing_control(rule: Rule, flow: FlowResult, r2: dict[str, float | None]) -> str:
    text = ""
    if flow.control is not None:
        random = flow.control.recovery
        text = rule.say("control_random", value=random.value.value, whole=random.whole.value)
    text += rule.say("control", r2)
    widths = [
        shape.w_v.effective_rank / shape.d_head
        for shape in flow.spectra.get("gaussian", ())
        if shape.w_v.effective_rank is not None
    ]
    if widths:
        text += rule.say("control_width", width=sum(widths) / len(widths))
    return text


def judge_interference(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 6 by what heads lose without softmax, and what their keys read back.

    That a softmax with beta = sqrt(d_head) reads back better than the linear sum is true of every
    random model; so it must do so by more than there, and at the sharpness that the head has.
    """
    rule, linear = Rule("interference", thresholds), evidence.linear
    if linear is None:
        return rule.missing()
    coherence, stored, control = linear.correlations[0], linear.stored, linear.control
    form = linear.form("linear")
    own = rule.say(
        "own",
        linear=stored.linear.value,
        softmax=stored.softmax_own.value,
        difference=_defined(stored.difference_own),
    )
    parts = [
        rule.part("coherence", coherence.spearman, _correlation(rule, coherence))
        if coherence.layers
        else rule.part("coherence", UNKNOWN, rule.say("no_layer")),
        rule.part("own", stored.difference_own, own),
        rule.part("random", UNKNOWN, rule.say("no_random"))
        if control is None
        else rule.part(
            "random",
            control.over_random,
            rule.say(
                "over_random",
                stored=_defined(stored.difference),
                random=_defined(control.stored.difference),
                over=_defined(control.over_random),
            ),
        ),
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
    correlation = _correlation(rule, coherence)
    return Finding.concluded(
        parts,
        rule.say("measured", values, correlation=correlation, own=own),
        _interference_control(rule, linear),
        values,
    )


def _interference_control(rule: Rule, linear: LinearResult) -> str:
    centred, entropy = (
        next(row.spearman for row in linear.correlations if (row.number, row.given) == (name, ""))
        for name in ("coherence_centred", "entropy")
    )
    # The error of this form goes to 0 where scores are small.
    errors = [form.mean.error.value for form in linear.forms if form.mean.form == "first-order"]
    random = rule.say("no_random")
    if linear.control is not None:
        spearman = linear.control.correlations[0].spearman
        random = rule.say("random", spearman=_defined(spearman))
    return rule.say(
        "control",
        centred=_defined(centred),
        entropy=_defined(entropy),
        first_order=rule.say("first_order", error=errors[0])
        if errors
        else rule.say("no_first_order"),
        random=random,
    )


def _correlation(rule: Rule, row: HeadCorrelation) -> str:
    spearman = _defined(row.spearman)
    return rule.say("correlation", spearman=spearman, heads=row.heads, layers=row.layers)


def _defined(number: Estimate) -> str:
    return shown(number, unknown="not defined")
