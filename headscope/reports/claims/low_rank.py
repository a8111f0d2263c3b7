"""Claim 5: after the softmax, attention is low rank.

Decided by how much of the sum of singular values the k largest of every head's pattern hold (its
*share*), from ``headscope spectrum``. The patterns of an untrained model may be of low rank as
well, so the same architecture with random weights is the control
(``spectrum.over_random_weights()`` is the mean share minus theirs); ``spectrum.controls`` are
patterns whose spectrum is known.

:func:`judge` gets what was measured of a model (``evidence``) and returns the verdict.
``rule.decided`` makes a part of it, ``rule.concluded`` the verdict of all parts; ``rule.insight``
gives a verdict without any part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headscope.analyses.spectrum.result import SpectrumResult
from headscope.core.safe_text import listed
from headscope.reports.claims.bar import Bar
from headscope.reports.claims.intervals import (
    FAILS,
    HOLDS,
    NOT_MEASURED,
    OPEN,
    above,
    or_dash,
    shown,
)
from headscope.reports.claims.rule import Claim, ClaimPart, Evidence, Rule
from headscope.reports.result import Insight

#: What decides the claim; ``rule`` says it in words.
PARTS = {
    "most": ClaimPart(
        name="most heads are of low rank",
        rule="the share of the sum in the largest singular values lies above {low_rank:g} in more "
        "than {most:.0%} of heads",
    ),
}
#: What the mean share, minus that of random weights, says of learning: by whether it is above 0.
_MEANINGS = {
    HOLDS: "training has made the patterns lower in rank than an untrained model's",
    FAILS: "training has not made the patterns lower in rank, so low rank is no sign of learning",
    OPEN: "the two cannot be told apart, so the verdict says nothing about learning",
}
_MOST_NAMES = 6  # Positional heads that are named as exceptions, at most


def judge(rule: Rule, evidence: Evidence) -> Insight:
    """Decide by how many heads have most of the sum in their largest singular values."""
    spectrum = evidence.spectrum
    if spectrum is None:
        return rule.missing("spectrum")
    if not spectrum.heads:
        return rule.insight("not applicable", "The model has no head.")
    if any(head.share_at_k.interval is None for head in spectrum.heads):
        why = "One sequence was measured, which has no interval; give more."
        return rule.insight(NOT_MEASURED, why)

    # Heads whose whole interval lies above the bound, and those whose interval lies at or below it.
    limit = rule.thresholds.low_rank
    most = rule.thresholds.most
    outcomes = {head.name: above(head.share_at_k, limit) for head in spectrum.heads}
    low_rank = [name for name, outcome in outcomes.items() if outcome == HOLDS]
    not_low_rank = [name for name, outcome in outcomes.items() if outcome == FAILS]
    n_heads = len(spectrum.heads)
    outcome = OPEN
    if len(low_rank) > most * n_heads:
        outcome = HOLDS
    elif len(not_low_rank) >= (1 - most) * n_heads:
        outcome = FAILS
    roles = {head.name: head.role for head in spectrum.heads}
    positional = [name for name in not_low_rank if roles[name] == "positional"]

    exceptions = ""
    if positional:
        exceptions = f"; positional exceptions: {listed(positional, _MOST_NAMES)}"
    measured = (
        f"The {spectrum.k} largest of {spectrum.length} singular values hold more than {limit:g} "
        f"of the sum in {len(low_rank)} of {n_heads} heads, not more in {len(not_low_rank)} (mean "
        f"share {spectrum.mean_share:.2f}){exceptions}."
    )
    random = spectrum.random_weights
    difference = spectrum.over_random_weights()
    return rule.concluded(
        parts=[rule.decided("most", outcome, f"{len(low_rank)} of {n_heads}")],
        measured=measured,
        control=_control(spectrum),
        values={
            "k": spectrum.k,
            "length": spectrum.length,
            "heads": n_heads,
            "positional_exceptions": positional,
            "mean_share": spectrum.mean_share,
            "random_logits": spectrum.controls["random-logits"].share_at_k,
            "identity": spectrum.controls["identity"].share_at_k,
            "random_weights": None if random is None else random.share_at_k.value,
            "over_random_weights": None if difference is None else difference.value,
        },
    )


def _control(spectrum: SpectrumResult) -> str:
    """Say what share random weights have, and two patterns whose spectrum is known."""
    random_scores = or_dash(spectrum.controls["random-logits"].share_at_k)
    identity = or_dash(spectrum.controls["identity"].share_at_k)
    known_patterns = (
        f"Patterns of random scores {random_scores}, a head that looks at itself {identity}."
    )
    if {head.stack for head in spectrum.heads} == {"decoder"}:  # then they are over visible keys
        uniform = or_dash(spectrum.controls["uniform"].share_at_k)
        previous = or_dash(spectrum.controls["previous-token"].share_at_k)
        known_patterns = (
            f"Over visible keys, patterns of random scores {random_scores}, evenly spread "
            f"{uniform}, a head that looks at itself {identity}, at the token before {previous}."
        )

    random = spectrum.random_weights
    difference = spectrum.over_random_weights()
    if random is None or difference is None:
        return (
            "Random weights were not measured, so the verdict says nothing about learning. "
            f"{known_patterns}"
        )
    least_above = min(draw.above for draw in random.draws)
    text = (
        f"Random weights: mean share {or_dash(random.share_at_k.value)}, {least_above} of "
        f"{random.heads} heads above {spectrum.verdict.threshold:g}"
    )
    if difference.half_width is None:
        return f"{text}; no interval of the difference, so nothing about learning. {known_patterns}"
    meaning = _MEANINGS[above(difference, 0.0)]
    gap = shown(difference, "+.2f")
    return f"{text}; this model's mean minus theirs is {gap}: {meaning}. {known_patterns}"


def bar(values: Mapping[str, Any]) -> Bar:
    """Lead with the mean share of the largest singular values."""
    return Bar(
        caption=f"share that {values['k']} of {values['length']} singular values hold",
        value=values["mean_share"],
        control=values["random_weights"],
        control_name="random weights",
    )


CLAIM = Claim(
    number=5,
    text="After the softmax, attention is low rank.",
    paper="Wang et al. 2020, Linformer",
    parts=PARTS,
    closing="Does not hold if in {rest:.0%} or more of the heads the whole interval lies at or "
    "below. Positional heads are named as exceptions. Random weights are the control: a share that "
    "is not above theirs says nothing about learning.",
    judge=judge,
    bar=bar,
)
