"""Claim 2: heads of a few kinds do the work."""

from __future__ import annotations

import numpy as np

from headscope.measures.paired_change import FEWEST
from headscope.measures.rounding import ROUNDING
from headscope.results.insights import InsightPart, KeptRoles
from headscope.verdicts.insights import last_layers
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import FAILS, HOLDS, UNKNOWN, Estimate
from headscope.verdicts.insights.thresholds import InsightThresholds

__all__ = ["ROLES", "judge"]

#: The kinds that the claim names.
ROLES = ("positional", "syntactic", "rare")
_UNKNOWN = "classify was not part of this run"


def judge(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 2 by the metric with only labelled heads, against as many random heads.

    Of an encoder-decoder model also by where the cross-attention heads lie that a joint pruning of
    all its stacks leaves.
    """
    rule, kept = _rule(thresholds), evidence.kept
    last = last_layers.of_survivors(evidence.prune) if "cross" in evidence.stacks else None
    beside = () if last is None else (last.part,)
    values = {} if last is None else last.values
    shown = "" if last is None else f" {last.sentence}"
    if kept is None:
        why = f"classify was not part of this run.{shown}" if shown else _UNKNOWN
        return Finding("not measured yet", rule, why, values=values, parts=beside)
    if kept.value is None:
        found = f"{len(kept.kept) or 'none'} of {kept.n_heads} heads have one of the roles"
        why = f"On {kept.classified_on}, {found} {_named(kept)}: nothing to compare.{shown}"
        return Finding("not applicable", rule, why, values=values, parts=beside)
    return _judged(kept, kept.value, thresholds, rule, last)


def _judged(
    kept: KeptRoles,
    value: float,
    thresholds: InsightThresholds,
    rule: str,
    last: last_layers.Survivors | None,
) -> Finding:
    sign = 1.0 if kept.higher_is_better else -1.0
    random = sign * np.array(kept.random)
    own, equal = sign * value, ROUNDING * abs(value)
    draws, as_well = len(random), int((random >= own - equal).sum())
    p, p_worse = (
        (1 + int(count)) / (1 + draws) for count in (as_well, (random <= own + equal).sum())
    )
    beats = _told(kept, p, thresholds.random_p)
    worse = _told(kept, p_worse, thresholds.random_p) == HOLDS
    loss = _loss(kept, sign * (kept.baseline - value), sign)
    values: dict[str, object] = {
        "kept": len(kept.kept),
        "heads": kept.n_heads,
        "metric": kept.metric,
        "baseline": kept.baseline,
        "value": value,
        "loss": loss.mean,
        "loss_interval": None if loss.low is None else [loss.low, loss.high],
        "random_mean": float(np.mean(kept.random)),
        "random_as_well": as_well,
        "draws": draws,
        "sets": kept.sets,
        "p": p,
        "worse_than_random": worse,
        **({} if last is None else last.values),
    }
    few = "" if beats != UNKNOWN else f"; only {kept.sets} sets have as many heads per layer"
    parts = (
        InsightPart(
            "labelled heads do better than random ones",
            beats,
            f"{as_well} of {draws} random sets do as well, p {p:.3f}{few}",
        ),
        InsightPart(
            "little is lost without the others",
            _little(kept, loss, thresholds.metric_loss),
            f"{loss.mean:.1%} {loss.interval('.1%')}",
        ),
        *(() if last is None else (last.part,)),
    )
    how = "of all heads alike" if kept.sets is None else "with as many heads in every layer"
    return Finding.concluded(
        parts,
        f"With only the {len(kept.kept)} of {kept.n_heads} heads that are {_named(kept)} on "
        f"{kept.classified_on}, {kept.metric} on {kept.measured_on} is {value:.4g} "
        f"(whole model {kept.baseline:.4g}): {loss.mean:.1%} lost {loss.interval('.1%')}. "
        f"{_plainly(beats, worse, as_well, draws)}{'' if last is None else f' {last.sentence}'}",
        f"{draws} random sets of {len(kept.kept)} heads, {how}: mean {np.mean(kept.random):.4g}, "
        f"{np.min(kept.random):.4g} to {np.max(kept.random):.4g}.",
        rule,
        values,
        refuted=worse and (last is None or last.part.verdict != HOLDS),
    )


def _told(kept: KeptRoles, p: float, limit: float) -> str:
    """Whether labelled heads are told from random ones; unknown where no p could be so small."""
    if kept.sets is not None and 1 / kept.sets > limit:
        return UNKNOWN
    return HOLDS if p <= limit else FAILS


def _rule(t: InsightThresholds) -> str:
    return (
        "Holds if keeping only labelled heads beats random sets with as many heads in every layer "
        f"((1 + sets that do as well) / (1 + sets) at most {t.random_p:g}) and (upper end of the "
        f"95% interval) loses less than {t.metric_loss:.0%} of the metric; of an encoder-decoder "
        "model also, if the cross-attention heads that a joint pruning of all stacks leaves lie "
        "in later decoder layers than as many random ones. Does not hold if none of these, or if "
        "labelled heads do worse than random ones by the same test."
    )


def _loss(kept: KeptRoles, lost: float, sign: float) -> Estimate:
    """Share of the metric that is lost; its interval is unknown where that of the change is."""
    scale = abs(kept.baseline) or 1.0
    ends = sorted(-sign * end / scale for end in kept.difference_ci or ())
    low, high = ends or (None, None)
    return Estimate(lost / scale, low, high)


def _little(kept: KeptRoles, loss: Estimate, limit: float) -> str:
    """Whether little is lost: by the interval, or by the loss that all examples agree on.

    Where outputs of all examples changed alike, or not at all beyond rounding, resamples do not
    differ and give no interval; a few examples may agree by chance.
    """
    if loss.low is None and kept.examples >= FEWEST:
        return HOLDS if loss.mean < limit else FAILS
    return loss.below(limit)


def _plainly(beats: str, worse: bool, as_well: int, draws: int) -> str:
    """Say in plain words how labelled heads compare with random ones."""
    if beats == HOLDS:
        return f"Labelled heads do better than random ones: {as_well} of {draws} sets do as well."
    words = "worse than random ones" if worse else "no better than random ones can"
    return f"Labelled heads do {words}: {as_well} of {draws} random sets do as well."


def _named(kept: KeptRoles) -> str:
    *first, last = [{"rare": "rare-word"}.get(role, role) for role in kept.roles]
    return f"{', '.join(first)} or {last}" if first else last
