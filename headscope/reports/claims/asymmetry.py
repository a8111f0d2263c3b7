"""Claim 0: self-attention is not symmetric.

The asymmetry of a matrix B is ``||B - B^T||_F / ||B||_F``: 0 where B is symmetric (as W_Q W_K^T is
where W_Q = W_K), sqrt(2) for independent random factors, 2 where B is antisymmetric.

The claim is decided by each head's weights and patterns, from ``headscope rank``; by its scores on
a text, from ``headscope symmetric``, where there are none or where positions rotate queries and
keys, so that W_Q W_K^T is not the score. A causal mask makes every pattern asymmetric, so those of
decoders are left out. ``headscope symmetric`` also makes all scores symmetric and compares the
model's output with its own (a cosine), which is a part of the claim.

:func:`judge` gets what was measured of a model (``evidence``) and returns the verdict.
``rule.part`` decides a part of the claim by where an estimate's interval lies, ``rule.decided``
takes the outcome of a test made here, and ``rule.concluded`` makes the verdict of all parts. Two
controls of weights have names: ``gaussian`` are independent random factors, ``fresh`` a newly
initialised model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

from headscope.analyses.rank.result import RankResult
from headscope.analyses.symmetric.result import SymmetricResult
from headscope.core.rounding import ROUNDING
from headscope.reports.claims.bar import Bar
from headscope.reports.claims.intervals import (
    FAILS,
    HOLDS,
    NOT_MEASURED,
    OPEN,
    above,
    every,
    shown,
)
from headscope.reports.claims.rule import NOT_YET, Claim, ClaimPart, Evidence, Rule, lies_above
from headscope.reports.result import Insight, InsightPart
from headscope.stats.estimate import Estimate

#: What decides the claim. ``rule`` says it in words, ``lies`` where the estimate's interval has
#: to lie for the part to hold (``{bound}`` in these words).
PARTS = {
    "weights": ClaimPart(
        name="W_QW_Kᵀ of every head is asymmetric",
        rule="every head's W_QW_Kᵀ (exact) has an asymmetry above {asymmetry:g}",
    ),
    "scores": ClaimPart(
        name="every head's scores are asymmetric",
        rule="where W_QW_Kᵀ was not measured or is not the score, every head's scores have one "
        "{bound}",
        lies=lambda thresholds: lies_above(thresholds.asymmetry),
        join=every,
    ),
    "patterns": ClaimPart(
        name="every head's pattern is asymmetric",
        rule="every head's pattern has one {bound} over lines, unless a mask is causal",
        lies=lambda thresholds: lies_above(thresholds.asymmetry),
        join=every,
    ),
    "output": ClaimPart(
        name="symmetric scores move the output more than random changes",
        rule="making all scores symmetric before the softmax moves the output further than random "
        "changes of the scores of the same size",
    ),
}
#: Other changes of the model that are named for comparison, and how they are called.
_OTHER_CHANGES = {
    "removed": "all heads removed",
    "pairs": "symmetric pairs alone (sinks kept)",
}


def judge(rule: Rule, evidence: Evidence) -> Insight:
    """Decide by every head's weights and patterns, and by the output with symmetric scores.

    Where W_Q W_K^T was not measured, or queries and keys are rotated, the scores of the text
    replace it.
    """
    rank = evidence.rank
    symmetric = evidence.symmetric
    if rank is not None and not rank.rotates:
        return _by_weights(rule, rank, symmetric)
    if symmetric is not None:
        return _by_scores(rule, symmetric, rank)
    if rank is not None:
        return rule.missing("symmetric")
    return rule.missing("rank", "symmetric")


def _by_weights(rule: Rule, rank: RankResult, symmetric: SymmetricResult | None) -> Insight:
    """Decide by W_Q W_K^T of every head, exactly, and by its pattern on a text."""
    # The asymmetry of each head's weights, and of its pattern, by the head's name.
    weights: dict[str, float] = {}
    patterns: dict[str, Estimate] = {}
    for head in rank.heads:
        if head.asymmetry is not None:
            weights[head.name] = head.asymmetry
        if head.pattern_asymmetry is not None and head.stack != "decoder":
            patterns[head.name] = head.pattern_asymmetry
    if not weights:
        return rule.insight("not applicable", "Every W_QW_Kᵀ is zero.")

    values = _weight_values(rank, weights, patterns)
    is_symmetric = [asymmetry <= rule.thresholds.asymmetry for asymmetry in weights.values()]
    weights_part = rule.decided(
        "weights",
        FAILS if any(is_symmetric) else HOLDS,
        f"least {values['least']:.2f} ({values['least_head']}), no sampling",
    )
    decided = [weights_part, _output_part(rule, symmetric)]
    causal = all(head.stack == "decoder" for head in rank.heads)
    if not causal:
        decided.insert(1, _every_head_part(rule, "patterns", patterns))
    return rule.concluded(
        parts=decided,
        measured=_weights_in_words(values, causal=causal),
        control=(
            f"0 where W_Q = W_K{_random_in_words(values)}: asymmetry alone is no sign of learning."
            f"{_other_changes(symmetric)}"
        ),
        values={**_output_values(symmetric), **values},
        refuted=all(is_symmetric),
    )


def _weight_values(
    rank: RankResult, weights: Mapping[str, float], patterns: Mapping[str, Estimate]
) -> dict[str, Any]:
    """Return the numbers of the result: asymmetries of heads, and of random weights.

    ``weights`` and ``patterns`` have the asymmetry of each head's weights and of its pattern, by
    the head's name.
    """
    least_head = min(weights, key=lambda name: weights[name])
    median_asymmetry = median(weights.values())
    pattern_means = [pattern.value for pattern in patterns.values() if pattern.value is not None]
    gaussian = _random_asymmetry(rank, "gaussian")
    return {
        "heads": len(weights),
        "undefined": len(rank.heads) - len(weights),
        "least": weights[least_head],
        "least_head": least_head,
        "median": median_asymmetry,
        "most": max(weights.values()),
        "pattern_least": min(pattern_means, default=None),
        "pattern_median": median(pattern_means) if pattern_means else None,
        "gaussian": gaussian,
        "fresh": _random_asymmetry(rank, "fresh"),
        "below_gaussian": 1 - median_asymmetry / gaussian if gaussian else None,
    }


def _weights_in_words(values: Mapping[str, Any], *, causal: bool) -> str:
    """Say how asymmetric the heads' weights are, and their patterns."""
    text = (
        f"Asymmetry of W_QW_Kᵀ over {values['heads']} heads: least {values['least']:.2f} "
        f"({values['least_head']}), median {values['median']:.2f}, most {values['most']:.2f}"
    )
    if values["undefined"]:
        text += f" ({values['undefined']} more have W_QW_Kᵀ = 0)"
    if causal:
        return f"{text}; a causal mask makes every pattern asymmetric, so they do not count."
    if values["pattern_least"] is None:
        return f"{text}; of the patterns: not measured (no text)."
    return (
        f"{text}; of the patterns: least {values['pattern_least']:.2f}, median "
        f"{values['pattern_median']:.2f}."
    )


def _random_in_words(values: Mapping[str, Any]) -> str:
    """Say how asymmetric random weights are, where that is known."""
    text = ""
    if values["gaussian"] is not None:
        text += f", {values['gaussian']:.2f} for independent random factors"
    if values["fresh"] is not None:
        text += f", {values['fresh']:.2f} freshly initialised"
    below_gaussian = values["below_gaussian"]
    if below_gaussian is not None:
        direction = "below" if below_gaussian >= 0 else "above"
        text += f"; the median head lies {abs(below_gaussian):.0%} {direction} random"
    return text


def _by_scores(rule: Rule, symmetric: SymmetricResult, rank: RankResult | None) -> Insight:
    """Decide by the scores of every head on a text; name weights that are rotated beside them."""
    limit = rule.thresholds.asymmetry
    # The asymmetry of each head's scores, by the head's name: with its interval, and alone.
    scores: dict[str, Estimate] = {}
    means: list[float] = []
    for head in symmetric.heads:
        if head.asymmetry.value is not None:
            scores[head.name] = head.asymmetry
            means.append(head.asymmetry.value)
    median_asymmetry = median(means) if means else math.nan
    scores_part = _every_head_part(rule, "scores", scores)
    return rule.concluded(
        parts=(scores_part, _output_part(rule, symmetric)),
        measured=(
            f"Asymmetry of the scores over {len(scores)} heads: {scores_part.measured}, median "
            f"{median_asymmetry:.2f}. {_beside_scores(rank)}"
        ),
        control=(
            f"0 for symmetric scores, 1.41 for independent directions.{_other_changes(symmetric)}"
        ),
        values={
            **_output_values(symmetric),
            "heads": len(scores),
            "scores_least": min(means, default=None),
        },
        refuted=bool(scores) and all(above(mean, limit) == FAILS for mean in scores.values()),
    )


def _beside_scores(rank: RankResult | None) -> str:
    """Say how asymmetric W_Q R(D) W_K^T is where it was measured: it is not decided by that."""
    if rank is None:
        return "W_QW_Kᵀ was not measured."
    at_0: list[float] = []
    lows: list[float] = []
    highs: list[float] = []
    for head in rank.heads:
        extremes = head.over_distances
        if head.asymmetry is not None:
            at_0.append(head.asymmetry)
        if (
            extremes is not None
            and extremes.asymmetry_low is not None
            and extremes.asymmetry_high is not None
        ):
            lows.append(extremes.asymmetry_low)
            highs.append(extremes.asymmetry_high)
    if not at_0 or not lows:
        return "Every W_QW_Kᵀ is zero."
    return (
        f"W_QW_Kᵀ, which positions rotate, has one of {min(at_0):.2f} at least at distance 0 "
        f"(median {median(at_0):.2f}) and of {min(lows):.2f} to {max(highs):.2f} at others."
    )


def _random_asymmetry(rank: RankResult, name: str) -> float | None:
    """Return the mean asymmetry of heads with random weights; None where it was not measured.

    ``name`` is ``gaussian`` or ``fresh``. Each control has a geometry for each number of heads that
    layers have: the first one that is known is taken.
    """
    control = rank.controls.get(name)
    if control is None:
        return None
    for geometry in control.geometries:
        if geometry.asymmetry is not None:
            return geometry.asymmetry
    return None


def _every_head_part(rule: Rule, key: str, asymmetries: Mapping[str, Estimate]) -> InsightPart:
    """Decide whether every head's asymmetry lies above the bound, and name the lowest head."""
    if not asymmetries:
        return rule.decided(key, NOT_MEASURED, "no text was read")
    lowest = min(asymmetries, key=lambda head: asymmetries[head].value or 0.0)
    return rule.part(key, asymmetries.values(), f"least {shown(asymmetries[lowest])} ({lowest})")


def _output_part(rule: Rule, symmetric: SymmetricResult | None) -> InsightPart:
    """Decide whether the model uses the asymmetry, by its output with all scores symmetric."""
    if symmetric is None:
        return rule.decided(
            "output", NOT_YET, "so whether the model makes use of the asymmetry is open"
        )
    # ``whole`` has the output with all heads changed, by the name of the change. Two changes are
    # random, each as large as what symmetric scores change: noise, and scores of shuffled tokens.
    if any(name not in symmetric.whole for name in ("symmetric", "noise", "shuffled")):
        return rule.decided("output", NOT_YET, "without scores of shuffled tokens")
    with_symmetric = symmetric.whole["symmetric"].cosine
    with_noise = symmetric.whole["noise"].cosine
    with_shuffled = symmetric.whole["shuffled"].cosine
    if None in (with_symmetric.value, with_noise.value, with_shuffled.value):
        return rule.decided("output", NOT_MEASURED, "the embeddings are not finite")

    outcomes = [
        _moves_further(with_symmetric, with_noise),
        _moves_further(with_symmetric, with_shuffled),
    ]
    text = (
        f"cosine {shown(with_symmetric, '.3f')} with all heads symmetric, "
        f"{shown(with_noise, '.3f')} with noise, {shown(with_shuffled, '.3f')} with a step towards "
        "the scores of shuffled tokens"
    )
    equivalent = symmetric.equivalent_heads.value
    if equivalent is not None:
        text += (
            f"; as far as removing about {equivalent:.0f} random heads of {len(symmetric.heads)} "
            "moves it"
        )
    return rule.decided("output", every(outcomes), text)


def _moves_further(cosine: Estimate, random_cosine: Estimate) -> str:
    """Decide whether a change moves the output further than a random one: to a lower cosine.

    It holds where the whole interval lies below that of the random change.
    """
    if cosine.low is None or cosine.high is None:
        return NOT_MEASURED
    if random_cosine.low is None or random_cosine.high is None:
        return NOT_MEASURED
    if cosine.high < random_cosine.low - ROUNDING:
        return HOLDS
    return FAILS if cosine.low >= random_cosine.high - ROUNDING else OPEN


def _output_values(symmetric: SymmetricResult | None) -> dict[str, float | None]:
    """Return the numbers of the result that tell how near the output stays with each change."""
    if symmetric is None:
        return {}
    cosines = {f"{name}_cosine": change.cosine.value for name, change in symmetric.whole.items()}
    return {**cosines, "equivalent_heads": symmetric.equivalent_heads.value}


def _other_changes(symmetric: SymmetricResult | None) -> str:
    """Say what other changes do to the output; a sentence that begins with a space."""
    if symmetric is None:
        return ""
    texts = []
    for name, words in _OTHER_CHANGES.items():
        cosine = symmetric.whole[name].cosine.value
        if cosine is not None:
            texts.append(f"{words} {cosine:.3f}")
    return f" Cosine with other changes: {', '.join(texts)}."


def bar(values: Mapping[str, Any]) -> Bar:
    """Lead with the median head's weights."""
    return Bar(
        caption="asymmetry, median head",
        value=values["median"],
        control=values["gaussian"],
        control_name="random",
    )


CLAIM = Claim(
    number=0,
    text="Self-attention is not symmetric: attention is a directed graph.",
    paper="Saponati et al. 2025, The underlying structures of self-attention",
    parts=PARTS,
    closing="Independent random factors have 1.41, so the bound is weak. The last part counts "
    "where it is measured. Does not hold if no head's W_QW_Kᵀ, or scores, are above.",
    judge=judge,
    bar=bar,
)
