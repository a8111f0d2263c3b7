"""Claim 6: without the softmax, keys interfere unless they are orthogonal."""

from __future__ import annotations

from collections.abc import Sequence

from headscope.results.estimated import Estimated
from headscope.results.insights import InsightPart
from headscope.results.linear import HeadCorrelation, LinearResult
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import UNKNOWN, Estimate
from headscope.verdicts.insights.thresholds import InsightThresholds

__all__ = ["judge"]


def judge(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
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
        _part(
            "the linear sum reads back worse than the head's own softmax",
            linear.stored.difference_own,
            limit,
            _stored(linear.stored.linear, linear.stored.softmax_own, linear.stored.difference_own),
        ),
        _over_random_weights(linear, limit),
    )
    return Finding.concluded(parts, _measured(linear), _control(linear), rule, _values(linear))


def _predicts(row: HeadCorrelation, limit: float) -> InsightPart:
    name = "key coherence predicts the error within layers"
    if not row.layers:
        why = "no layer in which both vary, or measured over all heads by an older version"
        return InsightPart(name, UNKNOWN, why)
    return _part(name, row.spearman, limit, _correlation(row))


def _over_random_weights(linear: LinearResult, limit: float) -> InsightPart:
    name = "by more than with random weights"
    if linear.control is None:
        return InsightPart(name, UNKNOWN, "random weights were not measured")
    found = linear.control.over_random
    theirs = linear.control.stored.difference
    text = (
        f"linear minus softmax {_shown(linear.stored.difference)}, random weights "
        f"{_shown(theirs)}; difference {_shown(found)}"
    )
    return _part(name, found, limit, text)


def _part(name: str, found: Estimated, limit: float, text: str) -> InsightPart:
    if found.value is None:
        return InsightPart(name, UNKNOWN, text)
    return InsightPart(name, _estimate(found).above(limit), text)


def _estimate(found: Estimated) -> Estimate:
    value = float("nan") if found.value is None else found.value
    return Estimate(value, found.low, found.high)


def _shown(found: Estimated) -> str:
    return "not defined" if found.value is None else str(_estimate(found))


def _correlation(row: HeadCorrelation) -> str:
    return f"Spearman {_shown(row.spearman)} over {row.heads} heads in {row.layers} layers"


def _stored(linear: Estimated, softmax: Estimated, difference: Estimated) -> str:
    return (
        f"linear {_number(linear.value)}, softmax {_number(softmax.value)}, difference "
        f"{_shown(difference)}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _named(rows: Sequence[HeadCorrelation], number: str) -> HeadCorrelation:
    return next(row for row in rows if (row.number, row.given) == (number, ""))


def _measured(linear: LinearResult) -> str:
    whole, stored = linear.form("linear"), linear.stored
    own = _stored(stored.linear, stored.softmax_own, stored.difference_own)
    return (
        f"Without the softmax heads err by {_number(whole.mean.scaled.value)} of their output's "
        f"spread at their best scale; with all heads so the cosine is "
        f"{_number(whole.whole_scaled.cosine.value)}. Key coherence and that error: "
        f"{_correlation(linear.correlations[0])}. Values read back by own keys: {own}."
    )


def _control(linear: LinearResult) -> str:
    centred = _named(linear.correlations, "coherence_centred")
    entropy = _named(linear.correlations, "entropy")
    text = (
        f"Keys without their mean: {_shown(centred.spearman)}; pattern entropy in place of "
        f"coherence: {_shown(entropy.spearman)}; {_first_order(linear)}"
    )
    if linear.control is None:
        return f"{text}; random weights were not measured."
    random = linear.control.correlations[0]
    return f"{text}; random weights: {_shown(random.spearman)}."


def _first_order(linear: LinearResult) -> str:
    """Say what the first-order form errs by: nothing, where scores are small."""
    for form in linear.forms:
        if form.mean.form == "first-order":
            return f"the first-order form (1 + q.k) / sum errs by {_number(form.mean.error.value)}"
    return "the first-order form was not measured"


def _values(linear: LinearResult) -> dict[str, object]:
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
