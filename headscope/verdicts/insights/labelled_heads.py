"""Claim 2: heads of a few kinds do the work."""

from __future__ import annotations

import numpy as np

from headscope.results import InsightPart, KeptRoles
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import Estimate
from headscope.verdicts.insights.thresholds import InsightThresholds

__all__ = ["ROLES", "judge"]

#: The kinds that the claim names.
ROLES = ("positional", "syntactic", "rare")


def judge(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 2 by the metric with only labelled heads, against as many random heads."""
    rule, kept = _rule(thresholds), evidence.kept
    if kept is None:
        return Finding("not measured yet", rule, "classify was not part of this run")
    n_kept = len(kept.kept)
    if kept.value is None:
        found = f"{n_kept or 'none'} of {kept.n_heads} heads have one of the roles {_named(kept)}"
        why = f"On {kept.classified_on}, {found}: nothing to compare."
        return Finding("not applicable", rule, why)
    quantile = thresholds.random_quantile
    sign = 1.0 if kept.higher_is_better else -1.0
    random = sign * np.array(kept.random)
    bar, floor = (float(np.quantile(random, q)) for q in (quantile, 1 - quantile))
    loss = _loss(kept, sign * (kept.baseline - kept.value), sign)
    beats, worse = sign * kept.value > bar, sign * kept.value < floor
    below_mean = sign * kept.value < sign * float(np.mean(kept.random))
    values: dict[str, object] = {
        "kept": n_kept,
        "heads": kept.n_heads,
        "metric": kept.metric,
        "baseline": kept.baseline,
        "value": kept.value,
        "loss": loss.mean,
        "loss_interval": None if loss.low is None else [loss.low, loss.high],
        "random_mean": float(np.mean(kept.random)),
        "random_bar": sign * bar,
        "random_better": int((random > sign * kept.value).sum()),
        "draws": len(kept.random),
        "beats_random": beats,
        "worse_than_random": worse,
    }
    parts = (
        InsightPart(
            "labelled heads do better than random ones",
            "holds" if beats else "does not hold",
            f"{values['random_better']} of {values['draws']} random sets do better",
        ),
        InsightPart(
            "little is lost without the others",
            loss.below(thresholds.metric_loss),
            f"{loss.mean:.1%} {loss.interval('.1%')}",
        ),
    )
    return Finding.concluded(
        parts,
        f"With only the {n_kept} of {kept.n_heads} heads that are {_named(kept)} on "
        f"{kept.classified_on}, {kept.metric} on {kept.measured_on} is {kept.value:.4g} "
        f"(whole model {kept.baseline:.4g}): {loss.mean:.1%} lost {loss.interval('.1%')}. "
        f"{_plainly(values, below_mean)}",
        f"{len(kept.random)} random sets of {n_kept} heads: mean {np.mean(kept.random):.4g}, "
        f"{quantile:.0%} quantile {sign * bar:.4g}.",
        rule,
        values,
        refuted=worse,
    )


def _rule(t: InsightThresholds) -> str:
    return (
        f"Holds if keeping only labelled heads beats the {t.random_quantile:.0%} quantile of "
        "random sets of as many heads and (upper end of the 95% interval) loses less than "
        f"{t.metric_loss:.0%} of the metric; does not hold if neither, or if it lies below the "
        f"{1 - t.random_quantile:.0%} quantile of random sets."
    )


def _loss(kept: KeptRoles, lost: float, sign: float) -> Estimate:
    """Share of the metric that is lost; its interval is unknown where that of the change is."""
    scale = abs(kept.baseline) or 1.0
    ends = sorted(-sign * end / scale for end in kept.difference_ci or ())
    low, high = ends or (None, None)
    return Estimate(lost / scale, low, high)


def _plainly(v: dict[str, object], below_mean: bool) -> str:
    """Say in plain words how labelled heads compare with random ones."""
    if v["beats_random"]:
        return "Labelled heads do better than random ones."
    words = "no better than random ones can"
    if v["worse_than_random"]:
        words = "worse than random ones"
    elif below_mean:
        words = "worse than the mean of random ones, within their spread"
    return f"Labelled heads do {words}: {v['random_better']} of {v['draws']} random sets do better."


def _named(kept: KeptRoles) -> str:
    *first, last = [{"rare": "rare-word"}.get(role, role) for role in kept.roles]
    return f"{', '.join(first)} or {last}" if first else last
