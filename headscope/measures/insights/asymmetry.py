"""Claim 0: attention is a directed graph."""

from __future__ import annotations

from statistics import median

from headscope.measures.insights.claims import CLAIMS, concluded, not_measured
from headscope.measures.insights.thresholds import InsightThresholds
from headscope.measures.statistics import Z95
from headscope.results import Insight, RankResult

__all__ = ["judge_asymmetry"]


def judge_asymmetry(rank: RankResult | None, thresholds: InsightThresholds) -> Insight:
    """Decide claim 0 by every head's asymmetry of W_Q W_K^T and of its pattern P.

    ``||B - B^T||_F / ||B||_F``: 0 where W_Q = W_K, sqrt(2) for independent random factors, 2 where
    B is antisymmetric.
    """
    limit = thresholds.asymmetry
    rule = (
        f"Holds if every head's W_Q W_K^T and (lower end of the 95% interval) pattern have an "
        f"asymmetry above {limit:g}; does not hold if no head's W_Q W_K^T has."
    )
    if rank is None:
        return not_measured(0, rule, "rank was not part of this run")
    weights = {h.name: h.asymmetry for h in rank.heads if h.asymmetry is not None}
    if not weights:
        return Insight(0, CLAIMS[0], "not applicable", "Every W_Q W_K^T is zero.", "", rule, {})
    patterns = {
        h.name: (h.pattern_asymmetry.mean, Z95 * (h.pattern_asymmetry.sem or 0.0))
        for h in rank.heads
        if h.pattern_asymmetry is not None
    }
    symmetric = [name for name, value in weights.items() if value <= limit]
    flat = [name for name, (mean, half) in patterns.items() if mean - half <= limit]
    values = _values(rank, weights, {name: mean for name, (mean, _) in patterns.items()})
    values |= {"symmetric_weights": symmetric, "symmetric_patterns": flat}
    conditions = [not symmetric, *([not flat] if patterns else [])]
    return concluded(
        0, conditions, _measured(values), _control(values), rule, values,
        refuted=len(symmetric) == len(weights),
    )  # fmt: skip


def _values(
    rank: RankResult, weights: dict[str, float], patterns: dict[str, float]
) -> dict[str, object]:
    names = sorted(weights, key=lambda name: weights[name])
    gaussian, fresh = (_control_of(rank, name) for name in ("gaussian", "fresh"))
    return {
        "heads": len(weights),
        "least": weights[names[0]],
        "least_head": names[0],
        "median": median(weights.values()),
        "most": weights[names[-1]],
        "pattern_least": min(patterns.values(), default=None),
        "pattern_median": median(patterns.values()) if patterns else None,
        "gaussian": gaussian,
        "fresh": fresh,
        "below_gaussian": None if not gaussian else 1 - median(weights.values()) / gaussian,
    }


def _control_of(rank: RankResult, name: str) -> float | None:
    control = rank.controls.get(name)
    found = [g.asymmetry for g in control.geometries if g.asymmetry is not None] if control else []
    return found[0] if found else None


def _measured(v: dict[str, object]) -> str:
    text = (
        f"Asymmetry of W_Q W_K^T over {v['heads']} heads: least {v['least']:.2f} "
        f"({v['least_head']}), median {v['median']:.2f}, most {v['most']:.2f}"
    )
    if v["pattern_least"] is None:
        return f"{text}; of the patterns: not measured (no text)."
    return (
        f"{text}; of the patterns: least {v['pattern_least']:.2f}, "
        f"median {v['pattern_median']:.2f}."
    )


def _control(v: dict[str, object]) -> str:
    text = "0 where W_Q = W_K"
    if v["gaussian"] is not None:
        text += f", {v['gaussian']:.2f} for independent random factors"
    if v["fresh"] is not None:
        text += f", {v['fresh']:.2f} freshly initialised"
    if v["below_gaussian"] is not None:
        share = float(str(v["below_gaussian"]))
        text += (
            f"; the median head lies {abs(share):.0%} {'below' if share >= 0 else 'above'} random"
        )
    return f"{text}."
