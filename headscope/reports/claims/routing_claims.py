"""Claims 1 and 6: heads route what they read, and keys interfere without the softmax."""

from __future__ import annotations

import dataclasses
import math

from headscope.analyses.flow.result import FlowResult
from headscope.analyses.linear.result import HeadCorrelation, LinearResult
from headscope.reports.claims.finding import (
    FAILS,
    HOLDS,
    UNKNOWN,
    Evidence,
    Finding,
    above,
    shown,
    within,
)
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import InsightPart
from headscope.stats.estimate import Estimate

_NEARLY_ALL = 0.8  # The R^2 that the claim's own words would ask for: printed, it decides nothing


def judge_routing(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 1 by the width of W_V and by what z holds of the word attended to most.

    A wide W_V and a sharp pattern are what an untrained model with large W_Q has as well; so the
    same patterns with a W_V of Gaussian entries, and random directions, are among the controls.
    """
    rule = (
        f"Holds if the effective rank of W_V is above {thresholds.value_width:g} of d_head in more "
        f"than {thresholds.most:.0%} of heads (exact), and if the held-out R^2 of the state of the "
        "word attended to most, from z and in the space that W_V reads, is above that of random "
        "weights, above that of the model's own patterns with a Gaussian W_V, and at least "
        f"{thresholds.recovered:g}; and if z recovers more of the whole state of that word than "
        "as many random directions do (means of heads, whole 95% intervals). Does not hold if none "
        "of the five is so."
    )
    flow = evidence.flow
    if flow is None:
        return Finding("not measured yet", rule, "flow was not part of this run")
    widths = [width for head in flow.heads if (width := head.wide()) is not None]
    if not widths:
        return Finding("not applicable", rule, "No head has values: every W_V is zero.")
    wide, mean_width = sum(w > thresholds.value_width for w in widths), sum(widths) / len(widths)
    recovery, control, trees = flow.recovery, flow.control, flow.trees

    def r2(number: Estimate, *names: str) -> str:
        """Write an estimate, or why it was not measured."""
        reasons = [flow.not_measured[name] for name in names if name in flow.not_measured]
        return f"not measured: {reasons[0]}" if reasons else shown(number)

    def exceeds(name: str, mine: str, theirs: str, difference: Estimate) -> InsightPart:
        pair = (_number(getattr(recovery, key).value) for key in (mine, theirs))
        text = f"R^2 {' against '.join(pair)}, difference {r2(difference, mine, theirs)}"
        return InsightPart(name, above(difference, 0.0), text)

    over_random = UNKNOWN if control is None else above(control.gain.value, 0.0)
    parts = [
        InsightPart(
            "W_V uses nearly all of its width in most heads",
            HOLDS if wide > thresholds.most * len(widths) else FAILS,
            f"{wide} of {len(widths)} heads above {thresholds.value_width:g}, mean "
            f"{mean_width:.2f}, no sampling",
        ),
        InsightPart(
            "z recovers more of the word attended to most than with random weights",
            over_random,
            "random weights were not measured"
            if control is None
            else f"R^2 minus theirs {r2(control.gain.value, 'value')}",
        ),
        exceeds(
            "z recovers more of the word attended to most than a Gaussian W_V would",
            *("value", "gaussian", flow.over_gaussian),
        ),
        exceeds(
            "z recovers more of that word's whole state than random directions would",
            *("token", "token_directions", flow.token_over_directions),
        ),
        InsightPart(
            "z recovers most of the word attended to most",
            within(recovery.value, thresholds.recovered, math.inf),
            f'R^2 {r2(recovery.value, "value")}; "most" is {thresholds.recovered:g}, "nearly all" '
            f"would be {_NEARLY_ALL:g}",
        ),
    ]
    not_counted = [
        exceeds(
            "not counted: z recovers more of all that is read than random directions would",
            *("whole", "directions", flow.over_directions),
        )
    ]
    uas = uas_best = uas_baseline = None
    if trees is not None:
        uas, uas_best = trees.combination.uas.value, trees.best.uas.value
        uas_baseline = trees.baselines[trees.strongest].value
        gap = trees.combination.over_baseline
        not_counted.append(
            InsightPart(
                "not counted: attention holds gold trees better than the strongest baseline",
                above(gap, 0.0),
                f"UAS {_number(uas, 3)}, best single head {_number(uas_best, 3)}, "
                f"{trees.strongest} {_number(uas_baseline, 3)}; difference {shown(gap)}",
            )
        )
    if recovery.value.value is None:
        measured = (
            f"What z recovers was not measured: {flow.not_measured.get('value', 'no numbers')}."
        )
    else:
        measured = (
            f"A linear readout of z recovers {_percent(recovery.value)} of the variance of the "
            f"attended word's state in the space that W_V reads, and {_percent(recovery.whole)} "
            f"of all that is read (held out, mean of {len(flow.heads)} heads)."
        )
    conclusion = Finding.concluded(
        parts,
        measured,
        _routing_control(flow),
        rule,
        {
            "heads": len(widths),
            "wide": wide,
            "mean_width": mean_width,
            **{f"r2_{name}": number.value for name, number in vars(recovery).items()},
            "r2_value_random_weights": control and control.recovery.value.value,
            "r2_whole_random_weights": control and control.recovery.whole.value,
            "uas": uas,
            "uas_best_head": uas_best,
            "uas_baseline": uas_baseline,
        },
    )
    return dataclasses.replace(conclusion, parts=(*conclusion.parts, *not_counted))


def _routing_control(flow: FlowResult) -> str:
    recovery, text = flow.recovery, ""
    if flow.control is not None:
        random = flow.control.recovery
        text = (
            f"Random weights {_percent(random.value)} of the word and {_percent(random.whole)} "
            f"of all that is read. "
        )
    text += (
        f"The same patterns with a Gaussian W_V {_percent(recovery.gaussian)}; a random word of "
        f"the sentence {_percent(recovery.other)}; of all that is read, d_head random directions "
        f"{_percent(recovery.directions)}."
    )
    widths = [
        shape.w_v.effective_rank / shape.d_head
        for shape in flow.spectra.get("gaussian", ())
        if shape.w_v.effective_rank is not None
    ]
    if widths:
        text += (
            f" Gaussian W_V use {sum(widths) / len(widths):.2f} of their width: a wide W_V is no "
            "sign of learning."
        )
    return text


def judge_interference(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 6 by what heads lose without softmax, and what their keys read back.

    That a softmax with beta = sqrt(d_head) reads back better than the linear sum is true of every
    random model; so it must do so by more than there, and at the sharpness that the head has.
    """
    limit = thresholds.interference
    rule = (
        "Holds if within layers the coherence of a head's keys (mean |cosine| of two keys of a "
        "sentence) goes with its error without softmax at its best scale (Spearman over heads, "
        "lower end of the 95% t interval over layers above "
        f"{limit:g}); if values stored under a sentence's own keys are read back worse by the "
        "linear sum than by a softmax as sharp as the head's own scores (mean over heads, lower "
        f"end over sentences above {limit:g}); and if they are read back worse than by a softmax "
        "of beta sqrt(d_head) by more than with random weights (lower end over sentences and "
        f"draws of weights above {limit:g}). Does not hold if none is so."
    )
    linear = evidence.linear
    if linear is None:
        return Finding("not measured yet", rule, "linear was not part of this run")
    coherence, stored, control = linear.correlations[0], linear.stored, linear.control
    form = linear.form("linear")
    own = (
        f"linear {_number(stored.linear.value)}, softmax {_number(stored.softmax_own.value)}, "
        f"difference {_defined(stored.difference_own)}"
    )
    parts = [
        InsightPart(
            "key coherence predicts the error within layers",
            above(coherence.spearman, limit) if coherence.layers else UNKNOWN,
            _correlation(coherence)
            if coherence.layers
            else "no layer in which both vary, or measured over all heads by an older version",
        ),
        InsightPart(
            "the linear sum reads back worse than the head's own softmax",
            above(stored.difference_own, limit),
            own,
        ),
        InsightPart(
            "by more than with random weights",
            UNKNOWN if control is None else above(control.over_random, limit),
            "random weights were not measured"
            if control is None
            else f"linear minus softmax {_defined(stored.difference)}, random weights "
            f"{_defined(control.stored.difference)}; difference {_defined(control.over_random)}",
        ),
    ]
    return Finding.concluded(
        parts,
        f"Without the softmax heads err by {_number(form.mean.scaled.value)} of their output's "
        f"spread at their best scale; with all heads like this the cosine is "
        f"{_number(form.whole_scaled.cosine.value)}. Key coherence and that error: "
        f"{_correlation(coherence)}. Values read back by own keys: {own}.",
        _interference_control(linear),
        rule,
        {
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
        },
    )


def _interference_control(linear: LinearResult) -> str:
    centred, entropy = (
        next(row.spearman for row in linear.correlations if (row.number, row.given) == (name, ""))
        for name in ("coherence_centred", "entropy")
    )
    errors = [form.mean.error.value for form in linear.forms if form.mean.form == "first-order"]
    first_order = "the first-order form was not measured"
    if errors:  # It errs by nothing where scores are small
        first_order = f"the first-order form (1 + q.k) / sum errs by {_number(errors[0])}"
    random = "random weights were not measured"
    if linear.control is not None:
        random = f"random weights: {_defined(linear.control.correlations[0].spearman)}"
    return (
        f"Keys without their mean: {_defined(centred)}; pattern entropy in place of coherence: "
        f"{_defined(entropy)}; {first_order}; {random}."
    )


def _correlation(row: HeadCorrelation) -> str:
    return f"Spearman {_defined(row.spearman)} over {row.heads} heads in {row.layers} layers"


def _defined(number: Estimate) -> str:
    return shown(number, unknown="not defined")


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(number: Estimate) -> str:
    return "-" if number.value is None else f"{number.value:.0%}"
