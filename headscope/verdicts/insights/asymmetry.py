"""Claim 0: attention is a directed graph."""

from __future__ import annotations

from statistics import median

import numpy as np

from headscope.measures.statistics import t_half_width
from headscope.results import ControlRank, InsightPart, RankResult, SymmetricResult
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import UNKNOWN, Estimate, every
from headscope.verdicts.insights.thresholds import InsightThresholds

__all__ = ["judge"]


def judge(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 0 by every head's asymmetry of W_Q W_K^T and of its pattern P.

    ``||B - B^T||_F / ||B||_F``: 0 where W_Q = W_K, sqrt(2) for independent random factors, 2 where
    B is antisymmetric. What symmetric scores do to the model's output is a part of its own, which
    counts where it was measured.
    """
    limit, same = thresholds.asymmetry, thresholds.symmetric_cosine
    rule = (
        f"Holds if every head's W_Q W_K^T (exact) and pattern (lower end of the 95% interval over "
        f"lines) have an asymmetry above {limit:g}, a weak bound, as independent random factors "
        "have 1.41; and, where that is measured, if making all scores symmetric before the softmax "
        f"moves the output (upper end of the cosine's interval below {same:g}). Does "
        "not hold if no head's W_Q W_K^T is above."
    )
    rank = evidence.rank
    if rank is None:
        return Finding("not measured yet", rule, "rank was not part of this run")
    weights = {h.name: h.asymmetry for h in rank.heads if h.asymmetry is not None}
    if not weights:
        return Finding("not applicable", rule, "Every W_Q W_K^T is zero.")
    patterns = _patterns(rank)
    symmetric = [name for name, value in weights.items() if value <= limit]
    values = _values(rank, weights, patterns)
    values |= {
        "symmetric_weights": symmetric,
        "symmetric_patterns": [n for n, p in patterns.items() if p.above(limit) == "does not hold"],
    }
    parts = (
        InsightPart(
            "W_Q W_K^T of every head is asymmetric",
            "does not hold" if symmetric else "holds",
            f"least {values['least']:.2f} ({values['least_head']}), no sampling",
        ),
        _of_patterns(patterns, limit),
        _of_output(evidence.symmetric, same),
    )
    values |= _function(evidence.symmetric)
    return Finding.concluded(
        parts,
        _measured(rank, values),
        _control(values) + _beside(evidence.symmetric),
        rule,
        values,
        refuted=len(symmetric) == len(weights),
    )


def _patterns(rank: RankResult) -> dict[str, Estimate]:
    """Asymmetry of each head's pattern; the interval of a single line is unknown."""
    lines = np.array(rank.text["lines"] if rank.text else 0)
    found = {}
    for head in rank.heads:
        pattern = head.pattern_asymmetry
        if pattern is not None:
            sem = np.nan if pattern.sem is None else pattern.sem
            found[head.name] = Estimate.around(pattern.mean, float(t_half_width(sem, lines)))
    return found


def _of_patterns(patterns: dict[str, Estimate], limit: float) -> InsightPart:
    name = "every head's pattern is asymmetric"
    if not patterns:
        return InsightPart(name, UNKNOWN, "no text was read")
    least = min(patterns, key=lambda head: patterns[head].mean)
    return InsightPart(
        name,
        every([pattern.above(limit) for pattern in patterns.values()]),
        f"least {patterns[least]} ({least})",
    )


def _of_output(symmetric: SymmetricResult | None, limit: float) -> InsightPart:
    """Whether the model makes use of the asymmetry: by its output with all scores symmetric."""
    name = "symmetric scores change the output"
    if symmetric is None:
        return InsightPart(
            name, "not measured yet", "so whether the model makes use of the asymmetry is open"
        )
    found = symmetric.whole["symmetric"].cosine
    if found.value is None:
        return InsightPart(name, UNKNOWN, "the embeddings are not finite")
    cosine = Estimate(found.value, found.low, found.high)
    text = f"cosine {cosine.mean:.3f} {cosine.interval('.3f')} with all heads symmetric"
    equal = symmetric.equivalent_heads.value
    if equal is not None:
        n = len(symmetric.heads)
        text += f", as far as removing about {equal:.0f} random heads of {n} moves it"
    return InsightPart(name, cosine.below(limit), text)


def _function(symmetric: SymmetricResult | None) -> dict[str, object]:
    if symmetric is None:
        return {}
    return {
        "symmetric_cosine": symmetric.whole["symmetric"].cosine.value,
        "noise_cosine": symmetric.whole["noise"].cosine.value,
        "removed_cosine": symmetric.whole["removed"].cosine.value,
        "equivalent_heads": symmetric.equivalent_heads.value,
    }


def _beside(symmetric: SymmetricResult | None) -> str:
    """Say what other changes of all heads do: as many heads removed, noise of the same size."""
    if symmetric is None:
        return ""
    whole = symmetric.whole
    found = {name: whole[name].cosine.value for name in ("removed", "noise", "pairs")}
    texts = {
        "removed": "all heads removed",
        "noise": "a random change of the scores of the same size",
        "pairs": "symmetric pairs alone (sinks kept)",
    }
    shown = (f"{texts[n]} {value:.3f}" for n, value in found.items() if value is not None)
    return f" Cosine with other changes: {', '.join(shown)}."


def _values(
    rank: RankResult, weights: dict[str, float], patterns: dict[str, Estimate]
) -> dict[str, object]:
    names = sorted(weights, key=lambda name: weights[name])
    means = [pattern.mean for pattern in patterns.values()]
    gaussian, fresh = (_random(rank.controls.get(name)) for name in ("gaussian", "fresh"))
    return {
        "heads": len(weights),
        "undefined": len(rank.heads) - len(weights),
        "least": weights[names[0]],
        "least_head": names[0],
        "median": median(weights.values()),
        "most": weights[names[-1]],
        "pattern_least": min(means, default=None),
        "pattern_median": median(means) if means else None,
        "gaussian": gaussian,
        "fresh": fresh,
        "below_gaussian": None if not gaussian else 1 - median(weights.values()) / gaussian,
    }


def _random(control: ControlRank | None) -> float | None:
    geometries = control.geometries if control else ()
    return next((g.asymmetry for g in geometries if g.asymmetry is not None), None)


def _measured(rank: RankResult, v: dict[str, object]) -> str:
    text = (
        f"Asymmetry of W_Q W_K^T over {v['heads']} heads: least {v['least']:.2f} "
        f"({v['least_head']}), median {v['median']:.2f}, most {v['most']:.2f}"
    )
    if v["undefined"]:
        text += f" ({v['undefined']} more have W_Q W_K^T = 0)"
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
    share = v["below_gaussian"]
    if isinstance(share, float):
        text += (
            f"; the median head lies {abs(share):.0%} {'below' if share >= 0 else 'above'} random"
        )
    return f"{text}: asymmetry alone is no sign of learning."
