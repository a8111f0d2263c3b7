"""Claim 6: without the softmax, keys interfere unless they are orthogonal."""

from __future__ import annotations

from collections.abc import Sequence

from headscope.results import HeadCorrelation, InsightPart, LinearResult
from headscope.results.estimated import Estimated
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import UNKNOWN, Estimate
from headscope.verdicts.insights.thresholds import InsightThresholds

__all__ = ["judge"]


def judge(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 6 by what heads lose without softmax, and what their keys read back."""
    limit = thresholds.interference
    rule = (
        "Holds if over heads the coherence of keys (mean |cosine| of two keys of a sentence) goes "
        "with the error of attention without softmax at its best scale (Spearman, lower end of the "
        f"95% bootstrap interval over heads above {limit:g}), and if values stored under a "
        "sentence's own keys are read back worse by the linear sum than by a softmax (mean over "
        f"heads, lower end over sentences above {limit:g}). Does not hold if neither is so."
    )
    linear = evidence.linear
    if linear is None:
        return Finding("not measured yet", rule, "linear was not part of this run")
    first = linear.correlations[0]
    parts = (
        _part("key coherence predicts the error", first.spearman, limit, _correlation(first)),
        _part(
            "the linear sum reads back worse than a softmax",
            linear.stored.difference,
            limit,
            _stored(linear),
        ),
    )
    return Finding.concluded(parts, _measured(linear), _control(linear), rule, _values(linear))


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
    return f"Spearman {_shown(row.spearman)} over {row.heads} heads"


def _stored(linear: LinearResult) -> str:
    own = linear.stored
    return (
        f"linear {_number(own.linear.value)}, softmax {_number(own.softmax.value)}, difference "
        f"{_shown(own.difference)}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _named(rows: Sequence[HeadCorrelation], number: str, given: str = "") -> HeadCorrelation:
    return next(row for row in rows if (row.number, row.given) == (number, given))


def _measured(linear: LinearResult) -> str:
    whole = linear.form("linear")
    return (
        f"Without the softmax heads err by {_number(whole.mean.scaled.value)} of their output's "
        f"spread at their best scale; with all heads so the cosine is "
        f"{_number(whole.whole_scaled.cosine.value)}. Key coherence and that error: "
        f"{_correlation(linear.correlations[0])}. Values read back by own keys: {_stored(linear)}."
    )


def _control(linear: LinearResult) -> str:
    centred = _named(linear.correlations, "coherence_centred")
    entropy = _named(linear.correlations, "entropy")
    layer = _named(linear.correlations, "coherence", "layer")
    text = (
        f"Keys without their mean: {_shown(centred.spearman)}; pattern entropy in place of "
        f"coherence: {_shown(entropy.spearman)}; within layers: {_shown(layer.spearman)}"
    )
    if linear.control is None:
        return f"{text}; random weights were not measured."
    random = linear.control.correlations[0]
    return f"{text}; random weights: {_shown(random.spearman)}."


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
        "random_spearman": None if control is None else control.correlations[0].spearman.value,
    }
