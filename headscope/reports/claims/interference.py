"""Claim 6: without the softmax, keys interfere unless they are orthogonal.

``headscope linear`` measures what heads lose without the softmax (the *linear form*), how coherent
a head's keys are (mean |cosine| of two keys of a sentence), and how well values are read back that
were stored under a sentence's own keys. The claim is decided by these.

A softmax with beta = sqrt(d_head) reads back better than the linear sum in every random model; so
it must do so by more than there, and also with the sharpness of the head's own scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headscope.analyses.linear.result import LinearResult
from headscope.reports.claims.bar import Bar
from headscope.reports.claims.intervals import NOT_MEASURED, or_dash, shown
from headscope.reports.claims.rule import Claim, ClaimPart, Evidence, Rule, lies_above
from headscope.reports.result import Insight, InsightPart
from headscope.stats.estimate import Estimate

#: What decides the claim. ``rule`` says it in words, ``lies`` where the estimate's interval has
#: to lie for the part to hold (``{bound}`` in these words).
PARTS = {
    "coherence": ClaimPart(
        name="key coherence predicts the error within layers",
        rule="within layers the rank correlation (Spearman) of the coherence of a head's keys "
        "(mean |cosine| of two keys of a sentence) with its error without softmax at its best "
        "scale is {bound}",
        lies=lambda thresholds: lies_above(thresholds.interference),
    ),
    "own": ClaimPart(
        name="the linear sum reads back worse than the head's own softmax",
        rule="the error of reading back values stored under a sentence's own keys, by the linear "
        "sum less by a softmax as sharp as the head's own scores, is {bound}",
        lies=lambda thresholds: lies_above(thresholds.interference),
    ),
    "random": ClaimPart(
        name="by more than with random weights",
        rule="the same error less that of a softmax of beta sqrt(d_head), less this difference "
        "with random weights, is {bound}",
        lies=lambda thresholds: lies_above(thresholds.interference),
    ),
}
_NO_RANDOM = "random weights were not measured"


def judge(rule: Rule, evidence: Evidence) -> Insight:
    """Decide by what heads lose without softmax, and what their keys read back."""
    linear = evidence.linear
    if linear is None:
        return rule.missing("linear")
    coherence = linear.correlations[0]  # of key coherence with the error without softmax
    correlation = (
        f"Spearman {_or_undefined(coherence.spearman)} over {coherence.heads} heads in "
        f"{coherence.layers} layers"
    )
    if coherence.layers:
        coherence_part = rule.part("coherence", coherence.spearman, correlation)
    else:
        why = "no layer in which both vary"
        coherence_part = rule.decided("coherence", NOT_MEASURED, why)
    stored = linear.stored
    read_back = (
        f"linear {or_dash(stored.linear.value)}, softmax {or_dash(stored.softmax_own.value)}, "
        f"difference {_or_undefined(stored.difference_own)}"
    )
    form = linear.form("linear")
    random = linear.control
    return rule.concluded(
        parts=[
            coherence_part,
            rule.part("own", stored.difference_own, read_back),
            _random_part(rule, linear),
        ],
        measured=(
            f"Without the softmax heads err by {or_dash(form.mean.scaled.value)} of their output's "
            "spread at their best scale; with all heads like this the cosine is "
            f"{or_dash(form.whole_scaled.cosine.value)}. Key coherence and that error: "
            f"{correlation}. Values read back by own keys: {read_back}."
        ),
        control=_control(linear),
        values={
            "spearman": coherence.spearman.value,
            "pearson": coherence.pearson.value,
            "p": coherence.p,
            "error": form.mean.scaled.value,
            "cosine": form.whole_scaled.cosine.value,
            "stored_linear": stored.linear.value,
            "stored_softmax": stored.softmax.value,
            "stored_softmax_own": stored.softmax_own.value,
            "over_random": None if random is None else random.over_random.value,
            "random_spearman": None if random is None else random.correlations[0].spearman.value,
        },
    )


def _random_part(rule: Rule, linear: LinearResult) -> InsightPart:
    """Decide whether the softmax gains more than in the same model with random weights."""
    random = linear.control
    if random is None:
        return rule.decided("random", NOT_MEASURED, _NO_RANDOM)
    text = (
        f"linear minus softmax {_or_undefined(linear.stored.difference)}, random weights "
        f"{_or_undefined(random.stored.difference)}; difference {_or_undefined(random.over_random)}"
    )
    return rule.part("random", random.over_random, text)


def _control(linear: LinearResult) -> str:
    """Say what other numbers of a head correlate with its error, and what other forms err by."""
    centred = _spearman_of(linear, "coherence_centred")
    entropy = _spearman_of(linear, "entropy")
    # The error of this form goes to 0 where scores are small.
    first_order = "the first-order form was not measured"
    for form in linear.forms:
        if form.mean.form == "first-order":
            error = or_dash(form.mean.error.value)
            first_order = f"the first-order form (1 + q.k) / sum errs by {error}"
    random = _NO_RANDOM
    if linear.control is not None:
        random = f"random weights: {_or_undefined(linear.control.correlations[0].spearman)}"
    return (
        f"Keys without their mean: {_or_undefined(centred)}; pattern entropy in place of "
        f"coherence: {_or_undefined(entropy)}; {first_order}; {random}."
    )


def _spearman_of(linear: LinearResult, number: str) -> Estimate:
    """Return the rank correlation of one number of a head with its error.

    Not the partial one, for which another number is held fixed (``given``).
    """
    for correlation in linear.correlations:
        if correlation.number == number and correlation.given == "":
            return correlation.spearman
    raise KeyError(number)


def _or_undefined(number: Estimate) -> str:
    """Write a correlation, or a difference, with its interval."""
    return shown(number, ".2f", "not defined")


def bar(values: Mapping[str, Any]) -> Bar:
    """Lead with the correlation of key coherence and error."""
    return Bar(
        caption="rank correlation of coherence and error",
        value=values["spearman"],
        control=values["random_spearman"],
        control_name="random weights",
    )


CLAIM = Claim(
    number=6,
    text="Without the softmax, keys interfere unless they are orthogonal.",
    paper="Schlag et al. 2021, Linear transformers are secretly fast weight programmers",
    parts=PARTS,
    closing="Intervals are over layers (t), over sentences, and over sentences and draws of "
    "weights. Does not hold if none is so.",
    judge=judge,
    bar=bar,
)
