"""Claim 5: after the softmax, attention is low rank."""

from __future__ import annotations

from headscope.core.safe_text import listed
from headscope.results.insights import InsightPart
from headscope.results.spectrum import SpectrumResult
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import Estimate
from headscope.verdicts.insights.thresholds import InsightThresholds

__all__ = ["judge"]

#: Heads named in a sentence; all of them are in the values.
_SHOWN = 6


def judge(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 5 by the share of the largest singular values of every head's pattern.

    The classification, where there is one, names the positional heads among the exceptions.
    """
    limit, most = thresholds.low_rank, thresholds.most
    rule = (
        f"Holds if more than {most:.0%} of heads have a share above {limit:g} with their whole 95% "
        f"interval; does not hold if {1 - most:.0%} or more lie wholly at or below it; positional "
        "heads are named as exceptions. Random weights stand beside it: a share that is not above "
        "theirs says nothing about learning."
    )
    spectrum = evidence.spectrum
    if spectrum is None:
        return Finding("not measured yet", rule, "spectrum was not part of this run")
    if not spectrum.heads:
        return Finding("not applicable", rule, "The model has no head.")
    shares = {h.name: Estimate.around(h.share_at_k.mean, h.half_width) for h in spectrum.heads}
    if any(share.low is None for share in shares.values()):
        return Finding(
            "not measured", rule, "One sequence was measured, which has no interval; give more."
        )
    low = [name for name, share in shares.items() if share.above(limit) == "holds"]
    high = [name for name, share in shares.items() if share.above(limit) == "does not hold"]
    roles = {h.name: h.primary for h in evidence.classify.heads} if evidence.classify else {}
    roles |= {h.name: h.role for h in spectrum.heads if h.role}
    positional = [name for name in high if roles.get(name) == "positional"]
    n, mean = len(shares), sum(share.mean for share in shares.values()) / len(shares)
    values = _values(spectrum, mean, low, high, positional)
    measured = (
        f"The {spectrum.k} largest of {spectrum.length} singular values hold more than {limit:g} "
        f"of the sum in {len(low)} of {n} heads, not more in {len(high)} (mean share {mean:.2f})"
        + (f"; positional exceptions: {listed(positional, _SHOWN)}" if positional else "")
        + "."
    )
    verdict = "holds" if len(low) > most * n else "open"
    if verdict == "open" and len(high) >= (1 - most) * n:
        verdict = "does not hold"
    part = InsightPart("most heads are of low rank", verdict, f"{len(low)} of {n}")
    return Finding.concluded([part], measured, _control(spectrum, mean), rule, values)


def _values(
    spectrum: SpectrumResult, mean: float, low: list[str], high: list[str], positional: list[str]
) -> dict[str, object]:
    random, against = spectrum.random_weights, spectrum.over_random_weights()
    return {
        "k": spectrum.k,
        "length": spectrum.length,
        "heads": len(spectrum.heads),
        "low_rank": low,
        "not_low_rank": high,
        "positional_exceptions": positional,
        "mean_share": mean,
        "random_logits": spectrum.controls["random-logits"].share_at_k,
        "identity": spectrum.controls["identity"].share_at_k,
        "random_weights": None if random is None else random.share_at_k.mean,
        "random_weights_above": None if random is None else [draw.above for draw in random.draws],
        "over_random_weights": None if against is None else against.mean,
        "over_random_weights_half_width": None if against is None else against.half_width,
    }


def _control(spectrum: SpectrumResult, mean: float) -> str:
    """Name the random weights first, and say what the verdict is worth beside them."""
    random, identity = (
        spectrum.controls[name].share_at_k for name in ("random-logits", "identity")
    )
    closed = f"Patterns of random scores {random:.2f}, a head that looks at itself {identity:.2f}."
    weights, against = spectrum.random_weights, spectrum.over_random_weights()
    if weights is None or against is None:
        return (
            "Random weights were not measured, so the verdict says nothing about learning. "
            f"{closed}"
        )
    above = min(draw.above for draw in weights.draws)
    text = (
        f"Random weights: mean share {weights.share_at_k.mean:.2f}, {above} of {weights.heads} "
        f"heads above {spectrum.verdict.threshold:g}"
    )
    if against.half_width is None:
        return f"{text}; no interval of the difference, so nothing about learning. {closed}"
    gap = Estimate.around(against.mean, against.half_width)
    meaning = {
        "holds": "training has made the patterns lower in rank than an untrained model's",
        "does not hold": "training has not made the patterns lower in rank, so low rank is no sign "
        "of learning",
        "open": "the two cannot be told apart, so the verdict says nothing about learning",
    }[gap.above(0.0)]
    return (
        f"{text}; this model's mean minus theirs is {gap.mean:+.2f} {gap.interval('+.2f')}: "
        f"{meaning}. {closed}"
    )
