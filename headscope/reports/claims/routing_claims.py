"""Claim 1: heads route: they pass on nearly all of what they read, not a narrow part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from headscope.analyses.flow.result import FlowResult
from headscope.analyses.linear.result import HeadCorrelation, LinearResult
from headscope.reports.claims.finding import FAILS, HOLDS, UNKNOWN, Evidence, Finding, Measurement
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import InsightPart
from headscope.stats.estimate import Estimate

__all__ = ["judge_routing", "judge_interference"]

_NEARLY_ALL = 0.8  # What the claim's own words would ask of the R^2; printed, not decided by.


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
    wide = [value for head in flow.heads if (value := head.wide()) is not None]
    if not wide:
        return Finding("not applicable", rule, "No head has values: every W_V is zero.")
    above = sum(value > thresholds.value_width for value in wide)
    own = _estimate(flow.recovery.value)
    parts = (
        InsightPart(
            "W_V uses nearly all of its width in most heads",
            HOLDS if above > thresholds.most * len(wide) else FAILS,
            f"{above} of {len(wide)} heads above {thresholds.value_width:g}, mean "
            f"{sum(wide) / len(wide):.2f}, no sampling",
        ),
        _over_random_recovery(flow),
        _difference(
            flow,
            "z recovers more of the word attended to most than a Gaussian W_V would",
            ("value", "gaussian"),
            flow.over_gaussian,
        ),
        _difference(
            flow,
            "z recovers more of that word's whole state than random directions would",
            ("token", "token_directions"),
            flow.token_over_directions,
        ),
        InsightPart(
            "z recovers most of the word attended to most",
            own.at_least(thresholds.recovered),
            f'R^2 {_shown(own, flow, "value")}; "most" is {thresholds.recovered:g}, "nearly all" '
            f"would be {_NEARLY_ALL:g}",
        ),
    )
    beside = (
        _difference(
            flow,
            "beside the verdict: z recovers more of all that is read than random directions would",
            ("whole", "directions"),
            flow.over_directions,
        ),
        *_trees(flow),
    )
    trees, control = flow.trees, flow.control
    found = Finding.concluded(
        parts,
        _measured(flow),
        _control(flow),
        rule,
        (
            {
                "heads": len(wide),
                "wide": above,
                "mean_width": sum(wide) / len(wide),
                **{f"r2_{name}": found.value for name, found in vars(flow.recovery).items()},
                "r2_value_random_weights": None
                if control is None
                else control.recovery.value.value,
                "r2_whole_random_weights": None
                if control is None
                else control.recovery.whole.value,
                "uas": None if trees is None else trees.combination.uas.value,
                "uas_best_head": None if trees is None else trees.best.uas.value,
                "uas_baseline": None if trees is None else trees.baselines[trees.strongest].value,
            }
        ),
    )
    return dataclasses.replace(found, parts=(*found.parts, *beside))


def _over_random_recovery(flow: FlowResult) -> InsightPart:
    name = "z recovers more of the word attended to most than with random weights"
    if flow.control is None:
        return InsightPart(name, UNKNOWN, "random weights were not measured")
    gain = _estimate(flow.control.gain.value)
    return InsightPart(name, gain.above(0.0), f"R^2 minus theirs {_shown(gain, flow, 'value')}")


def _difference(flow: FlowResult, name: str, pair: tuple[str, str], found: Estimate) -> InsightPart:
    """Judge what z recovers against what random directions do."""
    mine, theirs = (_number(getattr(flow.recovery, one)) for one in pair)
    gain = _estimate(found)
    text = f"R^2 {mine} against {theirs}, difference {_shown(gain, flow, *pair)}"
    return InsightPart(name, gain.above(0.0), text)


def _shown(found: Measurement, flow: FlowResult, *numbers: str) -> str:
    """Write an estimate, or why there is none."""
    why = [flow.not_measured[name] for name in numbers if name in flow.not_measured]
    if why:
        return f"not measured: {why[0]}"
    return "not measured" if math.isnan(found.mean) else str(found)


def _trees(flow: FlowResult) -> tuple[InsightPart, ...]:
    trees = flow.trees
    if trees is None:
        return ()
    gap = _estimate(trees.combination.over_baseline)
    return (
        InsightPart(
            "beside the verdict: attention holds gold trees better than the strongest baseline",
            gap.above(0.0),
            f"UAS {_number(trees.combination.uas, 3)}, best single head "
            f"{_number(trees.best.uas, 3)}, {trees.strongest} "
            f"{_number(trees.baselines[trees.strongest], 3)}; difference {gap}",
        ),
    )


def _estimate(found: Estimate) -> Measurement:
    mean = float("nan") if found.value is None else found.value
    return Measurement.around(mean, found.half_width)


def _number(found: Estimate, digits: int = 2) -> str:
    return "-" if found.value is None else f"{found.value:.{digits}f}"


def _percent(found: Estimate) -> str:
    return "-" if found.value is None else f"{found.value:.0%}"


def _measured(flow: FlowResult) -> str:
    found = flow.recovery
    if found.value.value is None:
        return f"What z recovers was not measured: {flow.not_measured.get('value', 'no numbers')}."
    return (
        f"A linear readout of z recovers {_percent(found.value)} of the variance of the attended "
        f"word's state in the space that W_V reads, and {_percent(found.whole)} of all that is "
        f"read (held out, mean of {len(flow.heads)} heads)."
    )


def _control(flow: FlowResult) -> str:
    found, control = flow.recovery, flow.control
    gaussian = flow.spectra.get("gaussian", ())
    widths = [
        shape.w_v.effective_rank / shape.d_head
        for shape in gaussian
        if shape.w_v.effective_rank is not None
    ]
    text = (
        f"The same patterns with a Gaussian W_V {_percent(found.gaussian)}; a random word of the "
        f"sentence {_percent(found.other)}; of all that is read, d_head random directions "
        f"{_percent(found.directions)}."
    )
    if control is not None:
        weights = control.recovery
        text = (
            f"Random weights {_percent(weights.value)} of the word and {_percent(weights.whole)} "
            f"of all that is read. {text}"
        )
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
    parts = (
        _predicts(linear.correlations[0], limit),
        _storage_part(
            "the linear sum reads back worse than the head's own softmax",
            linear.stored.difference_own,
            limit,
            _stored(linear.stored.linear, linear.stored.softmax_own, linear.stored.difference_own),
        ),
        _over_random_storage(linear, limit),
    )
    whole, stored = linear.form("linear"), linear.stored
    own = _stored(stored.linear, stored.softmax_own, stored.difference_own)
    return Finding.concluded(
        parts,
        (
            f"Without the softmax heads err by {_fixed(whole.mean.scaled.value)} of their "
            f"output's spread at their best scale; with all heads so the cosine is "
            f"{_fixed(whole.whole_scaled.cosine.value)}. Key coherence and that error: "
            f"{_correlation(linear.correlations[0])}. Values read back by own keys: {own}."
        ),
        _interference_control(linear),
        rule,
        _interference_values(linear),
    )


def _predicts(row: HeadCorrelation, limit: float) -> InsightPart:
    name = "key coherence predicts the error within layers"
    if not row.layers:
        why = "no layer in which both vary, or measured over all heads by an older version"
        return InsightPart(name, UNKNOWN, why)
    return _storage_part(name, row.spearman, limit, _correlation(row))


def _over_random_storage(linear: LinearResult, limit: float) -> InsightPart:
    name = "by more than with random weights"
    if linear.control is None:
        return InsightPart(name, UNKNOWN, "random weights were not measured")
    found = linear.control.over_random
    theirs = linear.control.stored.difference
    text = (
        f"linear minus softmax {_storage_text(linear.stored.difference)}, random weights "
        f"{_storage_text(theirs)}; difference {_storage_text(found)}"
    )
    return _storage_part(name, found, limit, text)


def _storage_part(name: str, found: Estimate, limit: float, text: str) -> InsightPart:
    if found.value is None:
        return InsightPart(name, UNKNOWN, text)
    return InsightPart(name, _storage_estimate(found).above(limit), text)


def _storage_estimate(found: Estimate) -> Measurement:
    value = float("nan") if found.value is None else found.value
    return Measurement(value, found.low, found.high)


def _storage_text(found: Estimate) -> str:
    return "not defined" if found.value is None else str(_storage_estimate(found))


def _correlation(row: HeadCorrelation) -> str:
    return f"Spearman {_storage_text(row.spearman)} over {row.heads} heads in {row.layers} layers"


def _stored(linear: Estimate, softmax: Estimate, difference: Estimate) -> str:
    return (
        f"linear {_fixed(linear.value)}, softmax {_fixed(softmax.value)}, difference "
        f"{_storage_text(difference)}"
    )


def _fixed(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _named(rows: Sequence[HeadCorrelation], number: str) -> HeadCorrelation:
    return next(row for row in rows if (row.number, row.given) == (number, ""))


def _interference_control(linear: LinearResult) -> str:
    centred = _named(linear.correlations, "coherence_centred")
    entropy = _named(linear.correlations, "entropy")
    text = (
        f"Keys without their mean: {_storage_text(centred.spearman)}; pattern entropy in place of "
        f"coherence: {_storage_text(entropy.spearman)}; {_first_order(linear)}"
    )
    if linear.control is None:
        return f"{text}; random weights were not measured."
    random = linear.control.correlations[0]
    return f"{text}; random weights: {_storage_text(random.spearman)}."


def _first_order(linear: LinearResult) -> str:
    """Say what the first-order form errs by: nothing, where scores are small."""
    for form in linear.forms:
        if form.mean.form == "first-order":
            return f"the first-order form (1 + q.k) / sum errs by {_fixed(form.mean.error.value)}"
    return "the first-order form was not measured"


def _interference_values(linear: LinearResult) -> dict[str, object]:
    whole = linear.form("linear")
    control = linear.control
    return {
        "spearman": linear.correlations[0].spearman.value,
        "pearson": linear.correlations[0].pearson.value,
        "p": linear.correlations[0].p,
        "error": whole.mean.scaled.value,
        "cosine": whole.whole_scaled.cosine.value,
        "stored_linear": linear.stored.linear.value,
        "stored_softmax": linear.stored.softmax.value,
        "stored_softmax_own": linear.stored.softmax_own.value,
        "over_random": None if control is None else control.over_random.value,
        "random_spearman": None if control is None else control.correlations[0].spearman.value,
    }
