"""Claim 1: heads route; they pass on nearly all of what they read, rather than a narrow part.

Decided by the width of W_V (its effective rank, as a share of d_head), and by what a linear readout
of a head's output z recovers of the word that a token attends to most: R^2 on held-out sentences.
``headscope flow`` measures both; its :class:`Recovery` has one R^2 for each target, and each
control.

A wide W_V and a sharp pattern are found in an untrained model with large W_Q as well; so the same
patterns with a W_V of Gaussian entries, and random directions, are among the controls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from headscope.analyses.flow.result import FlowResult
from headscope.reports.claims.bar import Bar
from headscope.reports.claims.intervals import FAILS, HOLDS, NOT_MEASURED, or_dash, shown
from headscope.reports.claims.rule import (
    Claim,
    ClaimPart,
    Evidence,
    Rule,
    lies_above,
    lies_at_least,
)
from headscope.reports.result import Insight, InsightPart
from headscope.stats.estimate import Estimate

#: What decides the claim. ``rule`` says it in words, ``lies`` where the estimate's interval has
#: to lie for the part to hold (``{bound}`` in these words).
PARTS = {
    "wide": ClaimPart(
        name="W_V uses nearly all of its width in most heads",
        rule="the effective rank of W_V is above {value_width:g} of d_head in more than "
        "{most:.0%} of heads (exact)",
    ),
    "random": ClaimPart(
        name="the output recovers more of the word attended to most than with random weights",
        rule="the R^2 of the state of the word attended to most, from the head's output and in the "
        "space that W_V reads, less that with random weights is {bound}",
        lies=lambda thresholds: lies_above(0),
    ),
    "gaussian": ClaimPart(
        name="the output recovers more of the word attended to most than a Gaussian W_V would",
        rule="the same less that of the model's own patterns with a Gaussian W_V is {bound}",
        lies=lambda thresholds: lies_above(0),
    ),
    "token": ClaimPart(
        name="the output recovers more of that word's whole state than random directions would",
        rule="the R^2 of the whole state of that word, less that from as many random directions, "
        "is {bound}",
        lies=lambda thresholds: lies_above(0),
    ),
    "recovers": ClaimPart(
        name="the output recovers most of the word attended to most",
        rule="the first R^2 is {bound}",
        lies=lambda thresholds: lies_at_least(thresholds.recovered),
    ),
    "not_counted_whole": ClaimPart(
        name="not counted: it recovers more of all that is read than random directions would",
        lies=lambda thresholds: lies_above(0),
    ),
}


def judge(rule: Rule, evidence: Evidence) -> Insight:
    """Decide by the width of W_V, and by what z holds of the word attended to most."""
    flow = evidence.flow
    if flow is None:
        return rule.missing("flow")

    # How many heads are wide.
    all_widths = [head.wide() for head in flow.heads]
    widths = [width for width in all_widths if width is not None]
    if not widths:
        return rule.insight("not applicable", "No head has values: every W_V is zero.")
    mean_width = sum(widths) / len(widths)
    wide_heads = sum(width > rule.thresholds.value_width for width in widths)
    most_are_wide = wide_heads > rule.thresholds.most * len(widths)

    # What z recovers: R^2 by the name of the field, such as ``value`` and ``whole``.
    r2 = {field.name: getattr(flow.recovery, field.name).value for field in fields(flow.recovery)}
    random = None if flow.control is None else flow.control.recovery
    return rule.concluded(
        parts=(
            rule.decided(
                "wide",
                HOLDS if most_are_wide else FAILS,
                f"{wide_heads} of {len(widths)} heads above {rule.thresholds.value_width:g}, mean "
                f"{mean_width:.2f}, no sampling",
            ),
            _random_part(rule, flow),
            _difference_part(
                rule,
                flow,
                key="gaussian",
                difference=flow.over_gaussian,
                name="value",
                control="gaussian",
            ),
            _difference_part(
                rule,
                flow,
                key="token",
                difference=flow.token_over_directions,
                name="token",
                control="token_directions",
            ),
            _recovers_part(rule, flow),
        ),
        measured=_recovered_in_words(flow),
        control=_control(flow),
        values={
            "heads": len(widths),
            "wide": wide_heads,
            "mean_width": mean_width,
            **{f"r2_{name}": value for name, value in r2.items()},
            "r2_value_random_weights": None if random is None else random.value.value,
            "r2_whole_random_weights": None if random is None else random.whole.value,
        },
        not_counted=[
            _difference_part(
                rule,
                flow,
                key="not_counted_whole",
                difference=flow.over_directions,
                name="whole",
                control="directions",
            )
        ],
    )


# --- the parts ------------------------------------------------------------------------------------


def _random_part(rule: Rule, flow: FlowResult) -> InsightPart:
    """Decide whether z recovers more than in the same model with random weights."""
    if flow.control is None:
        return rule.decided("random", NOT_MEASURED, "random weights were not measured")
    gain = flow.control.gain.value
    return rule.part("random", gain, f"R^2 minus theirs {_shown_or_reason(flow, gain, 'value')}")


def _recovers_part(rule: Rule, flow: FlowResult) -> InsightPart:
    """Decide whether z holds most of the word attended to most."""
    recovered = flow.recovery.value
    r2 = _shown_or_reason(flow, recovered, "value")
    text = f'R^2 {r2}; "most" is {rule.thresholds.recovered:g}, "nearly all" would be 0.8'
    return rule.part("recovers", recovered, text)


def _difference_part(
    rule: Rule, flow: FlowResult, key: str, difference: Estimate, name: str, control: str
) -> InsightPart:
    """Decide whether one R^2 exceeds its control, by their ``difference``.

    ``name`` and ``control`` are the fields of ``flow.recovery`` that have the two.
    """
    r2 = or_dash(getattr(flow.recovery, name).value)
    control_r2 = or_dash(getattr(flow.recovery, control).value)
    text = _shown_or_reason(flow, difference, name, control)
    return rule.part(key, difference, f"R^2 {r2} against {control_r2}, difference {text}")


def _shown_or_reason(flow: FlowResult, number: Estimate, *names: str) -> str:
    """Write an estimate, or why one of the R^2 that it is made of (``names``) was not measured."""
    for name in names:
        if name in flow.not_measured:
            return f"not measured: {flow.not_measured[name]}"
    return shown(number)


# --- what is written ------------------------------------------------------------------------------


def _recovered_in_words(flow: FlowResult) -> str:
    """Say what z recovers of the word attended to most, and of all that is read."""
    word = flow.recovery.value.value
    if word is None:
        why = flow.not_measured.get("value", "no numbers")
        return f"What a head's output recovers was not measured: {why}."
    return (
        f"A linear readout of a head's output recovers {word:.0%} of the variance of the attended "
        "word's state in the space that W_V reads, and "
        f"{or_dash(flow.recovery.whole.value, '.0%')} of all that is read "
        f"(held out, mean of {len(flow.heads)} heads)."
    )


def _control(flow: FlowResult) -> str:
    """Say what z recovers with random weights, words and directions; how wide Gaussian W_V are."""
    recovery = flow.recovery
    text = ""
    if flow.control is not None:
        random = flow.control.recovery
        text += (
            f"Random weights {or_dash(random.value.value, '.0%')} of the word and "
            f"{or_dash(random.whole.value, '.0%')} of all that is read. "
        )
    text += (
        f"The same patterns with a Gaussian W_V {or_dash(recovery.gaussian.value, '.0%')}; a "
        f"random word of the sentence {or_dash(recovery.other.value, '.0%')}; of all that is read, "
        f"d_head random directions {or_dash(recovery.directions.value, '.0%')}."
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


def bar(values: Mapping[str, Any]) -> Bar:
    """Lead with what z recovers of the word attended to most."""
    return Bar(
        caption="share recovered",
        value=values["r2_value"],
        control=values["r2_value_random_weights"],
        control_name="random weights",
    )


CLAIM = Claim(
    number=1,
    text="Heads route: they pass on nearly all of what they read, rather than a narrow part.",
    paper="Elhage et al. 2021, A mathematical framework for transformer circuits",
    parts=PARTS,
    closing="R^2 are of held-out sentences, means over heads. Does not hold if none of the five is "
    "so.",
    judge=judge,
    bar=bar,
)
