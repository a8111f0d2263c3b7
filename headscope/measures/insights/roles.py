"""Claim 2: heads of a few kinds do the work."""

from __future__ import annotations

import numpy as np

from headscope.measures.insights.claims import CLAIMS, concluded, not_measured
from headscope.measures.insights.thresholds import InsightThresholds
from headscope.results import Insight, KeptRoles

__all__ = ["ROLES", "judge_roles"]

#: The kinds that the claim names.
ROLES = ("positional", "syntactic", "rare")


def judge_roles(kept: KeptRoles | None, thresholds: InsightThresholds, why: str = "") -> Insight:
    """Decide claim 2 by the metric with only labelled heads, against as many random heads."""
    rule = (
        f"Holds if keeping only labelled heads beats the {thresholds.random_quantile:.0%} quantile "
        f"of random sets of as many heads and (upper end of the 95% interval) loses less than "
        f"{thresholds.metric_loss:.0%} of the metric; does not hold if neither."
    )
    if kept is None:
        return not_measured(2, rule, why or "classify was not part of this run")
    n_kept = len(kept.kept)
    if kept.value is None or kept.difference_ci is None:
        found = f"{n_kept or 'none'} of {kept.n_heads} heads have one of the roles {_named(kept)}"
        text = f"On {kept.classified_on}, {found}: there is nothing to compare."
        return Insight(2, CLAIMS[2], "not applicable", text, "", rule, {"kept": n_kept})
    sign = 1.0 if kept.higher_is_better else -1.0
    bar = sign * float(np.quantile(sign * np.array(kept.random), thresholds.random_quantile))
    worst = min(sign * end for end in kept.difference_ci)
    best = max(sign * end for end in kept.difference_ci)
    scale = abs(kept.baseline) or 1.0
    limit = -thresholds.metric_loss * scale
    small = True if worst > limit else False if best <= limit else None
    loss = sign * (kept.baseline - kept.value) / scale
    beats = sign * kept.value > sign * bar
    values: dict[str, object] = {
        "kept": n_kept,
        "heads": kept.n_heads,
        "metric": kept.metric,
        "baseline": kept.baseline,
        "value": kept.value,
        "loss": loss,
        "loss_interval": [-best / scale, -worst / scale],
        "random_mean": float(np.mean(kept.random)),
        "random_bar": bar,
        "draws": len(kept.random),
        "beats_random": beats,
    }
    return concluded(
        2,
        [beats, small],
        f"With only the {n_kept} of {kept.n_heads} heads that are {_named(kept)} on "
        f"{kept.classified_on}, {kept.metric} on {kept.measured_on} is {kept.value:.4g} "
        f"(whole model {kept.baseline:.4g}): {loss:.1%} lost [{-best / scale:.1%}, "
        f"{-worst / scale:.1%}].",
        f"{len(kept.random)} random sets of {n_kept} heads: mean {np.mean(kept.random):.4g}, "
        f"{thresholds.random_quantile:.0%} quantile {bar:.4g}.",
        rule,
        values,
    )


def _named(kept: KeptRoles) -> str:
    *first, last = [{"rare": "rare-word"}.get(role, role) for role in kept.roles]
    return f"{', '.join(first)} or {last}" if first else last
