"""The sentences that say what ``symmetric`` found."""

from __future__ import annotations

from headscope.results.symmetric import DrawnEffect, HeadSymmetry, SymmetricResult
from headscope.show.cells import decimal, joined, mean_of
from headscope.show.estimates import ranged

#: What the changes of all heads are called.
CHANGES = {
    "symmetric": "scores symmetric",
    "pairs": "pairs symmetric, row and column means kept",
    "signs": "antisymmetric part, random signs",
    "noise": "random change of the same size",
    "shuffled": "the same step towards scores of shuffled tokens",
    "even": "even attention",
    "removed": "heads removed",
}


def whole_sentence(result: SymmetricResult) -> str:
    """Say what symmetric scores in all heads do, and how many removed heads that is."""
    found = ranged(result.whole["symmetric"].cosine)
    n, equal = len(result.heads), result.equivalent_heads
    text = (
        f"With symmetric scores in all {n} heads the embeddings' cosine to the model's is {found}"
    )
    if equal.value is None:
        return f"{text}: further than removing every head moves them."
    between = ""
    if equal.interval is not None:
        between = f" ({equal.interval[0]:.0f} to {equal.interval[1]:.0f})"
    return f"{text}: as far as removing about {equal.value:.0f}{between} random heads of {n} does."


def control_sentence(result: SymmetricResult) -> str:
    """Say what other changes of the scores do."""
    whole, shuffled = result.whole, ""
    if "shuffled" in whole:  # a result of an earlier version has none
        shuffled = f", the same step towards scores of shuffled tokens {_short(whole['shuffled'])}"
    return (
        "Beside it, in all heads: a random change of the scores of the same size "
        f"{_short(whole['noise'])}{shuffled}; the antisymmetric part with random signs "
        f"{_short(whole['signs'])}; only pairs made symmetric, with what each token is sought for "
        f"by all kept, {_short(whole['pairs'])}; even attention {_short(whole['even'])}; no head "
        f"at all {_short(whole['removed'])}."
    )


def alone_sentence(result: SymmetricResult) -> str:
    """Say what symmetric scores in single heads do; empty where that was not measured."""
    known = [head for head in result.heads if head.symmetric is not None]
    if not known:
        return ""
    most = sorted(known, key=_cosine)[:3]
    names = joined([f"{head.name} ({decimal(_cosine(head), 3)})" for head in most])
    means = {name: mean_alone(result, name) for name in ("symmetric", "noise", "removed")}
    return (
        f"In one head alone: mean cosine {decimal(means['symmetric'], 4)}, with a random change of "
        f"the same size {decimal(means['noise'], 4)}, with the head removed "
        f"{decimal(means['removed'], 4)}; most in {names}."
    )


def mean_alone(result: SymmetricResult, change: str) -> float | None:
    """Return the cosine with one head changed, mean over heads."""
    effects = (getattr(head, change) for head in result.heads)
    return mean_of(effect.cosine.value for effect in effects if effect is not None)


def notes(result: SymmetricResult) -> list[str]:
    """Say what the numbers leave out."""
    found = []
    if result.causal:
        found.append(
            "A mask hides later tokens: scores are made symmetric before it, so that each query "
            "attends to earlier tokens by the mean of both directions."
        )
    if result.left_out:
        found.append(
            f"Left out: {joined(result.left_out)}, which no text alone shows"
            + (
                "; cross-attention has no square of scores to make symmetric."
                if "cross" in result.left_out
                else "."
            )
        )
    return found


def _short(found: DrawnEffect) -> str:
    text = decimal(found.cosine.value)
    if found.cosine_std is None:
        return text
    return f"{text} (std {found.cosine_std:.3f} over {found.draws} draws)"


def _cosine(head: HeadSymmetry) -> float:
    effect = head.symmetric
    return 1.0 if effect is None or effect.cosine.value is None else effect.cosine.value
