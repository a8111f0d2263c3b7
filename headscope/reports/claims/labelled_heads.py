"""Claim 2: a few kinds of heads (positional, syntactic, rare-word) do the work; the rest can go.

Labelled are the heads that ``classify`` gives one of these roles. The claim is decided by a task's
metric with only the labelled heads, against that with as many random heads in every layer. Both are
measured in ``kept_roles.py``, as a :class:`KeptRoles`. Of an encoder-decoder model it is
also decided by which cross-attention heads a joint pruning of all its stacks leaves: those of late
layers, or of any (``survivors.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headscope.core.rounding import ROUNDING
from headscope.reports.claims.bar import Bar
from headscope.reports.claims.intervals import FAILS, HOLDS, NOT_MEASURED, shown
from headscope.reports.claims.rule import Claim, ClaimPart, Evidence, Rule, lies_below
from headscope.reports.claims.survivors import judge_survivors
from headscope.reports.result import Insight, InsightPart, KeptRoles
from headscope.show.cells import joined
from headscope.stats.estimate import Estimate

#: The kinds of heads that the claim names, by key, and how they are called.
KINDS = {"positional": "positional", "syntactic": "syntactic", "rare": "rare-word"}
#: The kinds that causal models have besides.
CAUSAL_KINDS = {"induction": "induction heads", "first_token": "first-token sinks"}
SINK = "first_token"


def kinds_of(stacks: Collection[str]) -> dict[str, str]:
    """Return the kinds that heads of a model with these stacks are kept for."""
    return KINDS | CAUSAL_KINDS if "decoder" in stacks else KINDS


#: What decides the claim. ``rule`` says it in words, ``lies`` where the estimate's interval has
#: to lie for the part to hold (``{bound}`` in these words).
PARTS = {
    "beats": ClaimPart(
        name="labelled heads do better than random ones",
        rule="the model with only its labelled heads beats random sets with as many heads in every "
        "layer (p = (1 + sets that do as well) / (1 + sets) at most {random_p:g})",
    ),
    "little": ClaimPart(
        name="little is lost without the others",
        rule="the share of the metric that it loses is {bound}",
        lies=lambda thresholds: lies_below(thresholds.metric_loss),
        percent=True,
    ),
    "survivors": ClaimPart(
        name="cross-attention survives in the last decoder layers",
        rule="the cross-attention heads that a joint pruning of all stacks leaves lie in later "
        "decoder layers than as many random ones",
    ),
}


def judge(rule: Rule, evidence: Evidence) -> Insight:
    """Decide by the metric with only labelled heads, and by where cross-attention survives."""
    # Where cross-attention survives: this part counts for encoder-decoder models only.
    survivor_parts: list[InsightPart] = []
    survivor_values: dict[str, Any] = {}
    survivor_sentence = ""
    if "cross" in evidence.stacks:
        survivors = judge_survivors(evidence.prune)
        survivor_parts.append(rule.decided("survivors", survivors.outcome, survivors.measured))
        survivor_values = survivors.values or {}
        survivor_sentence = survivors.sentence

    # What is left with only the labelled heads.
    kept_roles = evidence.kept_roles
    if kept_roles is None:
        missing = rule.missing("classify")
        why = missing.measured
        if survivor_sentence:
            why += f".{survivor_sentence}"
        return rule.insight(missing.verdict, why, values=survivor_values, parts=survivor_parts)
    if kept_roles.value is None:
        why = (
            f"On {kept_roles.classified_on}, {len(kept_roles.kept) or 'none'} of "
            f"{kept_roles.n_heads} heads have one of the roles {_kinds(kept_roles)}: nothing to "
            f"compare.{survivor_sentence}"
        )
        return rule.insight("not applicable", why, values=survivor_values, parts=survivor_parts)

    against_random = _against_random(kept_roles, kept_roles.value, rule.thresholds.random_p)
    lost = _lost_share(kept_roles, kept_roles.value)
    return rule.concluded(
        parts=(
            rule.decided("beats", against_random.outcome, against_random.measured),
            rule.part("little", lost, shown(lost, ".1%")),
            *survivor_parts,
        ),
        measured=(
            f"With only the {len(kept_roles.kept)} of {kept_roles.n_heads} heads that are "
            f"{_kinds(kept_roles)} on {kept_roles.classified_on}, {kept_roles.metric} on "
            f"{kept_roles.measured_on} is {kept_roles.value:.4g} (whole model "
            f"{kept_roles.baseline:.4g}): {shown(lost, '.1%')} is lost. Labelled heads "
            f"{against_random.words} random ones: {against_random.as_well} of "
            f"{len(kept_roles.random)} random sets do as well.{_causal_kinds(kept_roles)}"
            f"{survivor_sentence}"
        ),
        control=_control(kept_roles),
        values={
            **_values(kept_roles, lost),
            "random_mean": float(np.mean(kept_roles.random)),
            "random_as_well": against_random.as_well,
            "draws": len(kept_roles.random),
            "sets": kept_roles.sets,
            "p": against_random.p,
            "worse_than_random": against_random.worse,
            **survivor_values,
        },
        refuted=against_random.worse and all(row.verdict != HOLDS for row in survivor_parts),
    )


# --- against random heads -------------------------------------------------------------------------


@dataclass(frozen=True)
class _AgainstRandom:
    """How the model with only its labelled heads compares with random sets of heads."""

    outcome: str  # Whether it does better: ``holds``, ``does not hold`` or ``not measured``
    words: str  # The comparison in words, such as "do better than"
    worse: bool  # Whether it does worse, by the same test
    as_well: int  # Random sets that do as well
    p: float
    measured: str  # ``as_well`` and ``p`` in words


def _against_random(kept_roles: KeptRoles, value: float, limit: float) -> _AgainstRandom:
    """Test whether the labelled heads beat random sets, or are beaten by them.

    ``p`` is (1 + random sets that do as well) / (1 + random sets), at most ``limit`` if they do.
    """
    # Scores of which more is better.
    sign = 1.0 if kept_roles.higher_is_better else -1.0
    labelled_score = sign * value
    random_scores = sign * np.array(kept_roles.random)
    tolerance = ROUNDING * abs(labelled_score)
    as_well = int((random_scores >= labelled_score - tolerance).sum())
    as_badly = int((random_scores <= labelled_score + tolerance).sum())
    p = (1 + as_well) / (1 + len(random_scores))
    p_worse = (1 + as_badly) / (1 + len(random_scores))
    measured = f"{as_well} of {len(random_scores)} random sets do as well, p {p:.3f}"

    outcome = HOLDS if p <= limit else FAILS
    words = "do better than" if p <= limit else "do no better than"
    worse = p_worse <= limit
    if worse:
        words = "do worse than"
    # With few possible sets, of which the labelled heads are one, no p could be small enough.
    if kept_roles.sets is not None and 1 / kept_roles.sets > limit:
        outcome = NOT_MEASURED
        words = "cannot be told from"
        worse = False
        measured += f"; only {kept_roles.sets} sets have as many heads per layer"
    return _AgainstRandom(
        outcome=outcome, words=words, worse=worse, as_well=as_well, p=p, measured=measured
    )


def _control(kept_roles: KeptRoles) -> str:
    """Say how the random sets were drawn, and what they keep of the metric."""
    how = "of all heads alike" if kept_roles.sets is None else "with as many heads in every layer"
    return (
        f"{len(kept_roles.random)} random sets of {len(kept_roles.kept)} heads, {how}: mean "
        f"{np.mean(kept_roles.random):.4g}, {min(kept_roles.random):.4g} to "
        f"{max(kept_roles.random):.4g}."
    )


# --- what is lost ---------------------------------------------------------------------------------


def _lost_share(kept_roles: KeptRoles, value: float) -> Estimate:
    """Return the share of the metric that is lost without the other heads.

    ``difference_ci`` is the interval of value minus baseline; the loss is the other way round.
    """
    sign = 1.0 if kept_roles.higher_is_better else -1.0
    scale = abs(kept_roles.baseline) or 1.0  # a baseline of 0 cannot be divided by
    loss = sign * (kept_roles.baseline - value) / scale
    if not kept_roles.difference_ci:
        return Estimate(loss)
    low, high = sorted(-sign * limit / scale for limit in kept_roles.difference_ci)
    return Estimate(loss, low, high)


def _values(kept_roles: KeptRoles, lost: Estimate) -> dict[str, Any]:
    """Return the numbers of the model with only its labelled heads."""
    loss_interval = None
    value_interval = None
    if kept_roles.difference_ci:
        loss_interval = [lost.low, lost.high]
        value_interval = {
            "low": kept_roles.baseline + min(kept_roles.difference_ci),
            "high": kept_roles.baseline + max(kept_roles.difference_ci),
        }
    return {
        "kept": len(kept_roles.kept),
        "heads": kept_roles.n_heads,
        "metric": kept_roles.metric,
        "baseline": kept_roles.baseline,
        "value": kept_roles.value,
        "loss": lost.value,
        "loss_interval": loss_interval,
        "value_interval": value_interval,
    }


def _kinds(kept_roles: KeptRoles) -> str:
    """Name the kinds of heads: ``positional, syntactic or rare-word``."""
    names = KINDS | CAUSAL_KINDS
    return joined([names.get(role, role) for role in kept_roles.roles], "or")


def _causal_kinds(kept_roles: KeptRoles) -> str:
    """Say how many of a causal model's heads are sinks, and what is kept without these."""
    counted = [
        f"{kept_roles.counts[kind]} {name}"
        for kind, name in CAUSAL_KINDS.items()
        if kind in kept_roles.counts
    ]
    if not counted:
        return ""
    sentence = f" Among them are {joined(counted)}"
    without_sinks = kept_roles.without_sinks
    if without_sinks is None or without_sinks.value is None:
        return f"{sentence}."
    sign = 1.0 if kept_roles.higher_is_better else -1.0
    least = sign * without_sinks.value - ROUNDING * abs(without_sinks.value)
    as_well = sum(sign * value >= least for value in without_sinks.random)
    return (
        f"{sentence}; with the {without_sinks.kept} that have another role than sink alone it is "
        f"{without_sinks.value:.4g} ({as_well} of {len(without_sinks.random)} random sets do as "
        "well)."
    )


def bar(values: Mapping[str, Any]) -> Bar:
    """Lead with the metric that labelled heads keep, as a share of the whole model's."""
    return Bar(
        caption=f"with only the {values['kept']} labelled heads",
        value=values["value"],
        low=values["value_interval"]["low"],
        high=values["value_interval"]["high"],
        control=values["random_mean"],
        control_name="as many random heads",
        reference=values["baseline"],
    )


CLAIM = Claim(
    number=2,
    text="A few kinds of heads (positional, syntactic, rare-word) do the work; the rest can go.",
    paper="Voita et al. 2019, Analyzing multi-head self-attention",
    parts=PARTS,
    closing="The last part counts for encoder-decoder models only. Does not hold if none of these "
    "is so, or if labelled heads do worse than random ones by the same test and the last part, "
    "where it counts, does not hold.",
    judge=judge,
    bar=bar,
)
