"""Claim 5: after the softmax, attention is low rank."""

from __future__ import annotations

from collections.abc import Mapping

from headscope.measures.insights.claims import CLAIMS, concluded, not_measured
from headscope.measures.insights.thresholds import InsightThresholds
from headscope.results import Insight, SpectrumHead, SpectrumResult

__all__ = ["judge_low_rank"]

#: Heads named in a sentence; all of them are in the values.
_SHOWN = 6


def judge_low_rank(
    spectrum: SpectrumResult | None,
    thresholds: InsightThresholds,
    roles: Mapping[tuple[int, int], str] | None = None,
) -> Insight:
    """Decide claim 5 by the share of the largest singular values of every head's pattern.

    Parameters
    ----------
    spectrum : SpectrumResult or None
    thresholds : InsightThresholds
    roles : mapping of (layer, head) to primary role, optional
        Names the positional heads among the exceptions.
    """
    limit = thresholds.low_rank
    rule = (
        f"Holds if more than {thresholds.most:.0%} of heads have a share above {limit:g} with "
        "their whole 95% interval; does not hold if at least as many heads lie wholly at or below "
        "it; positional heads are named as exceptions."
    )
    if spectrum is None:
        return not_measured(5, rule, "spectrum was not part of this run")
    if not spectrum.heads:
        return Insight(5, CLAIMS[5], "not applicable", "The model has no head.", "", rule, {})
    low = [h.name for h in spectrum.heads if _bounds(h)[0] > limit]
    high = [h for h in spectrum.heads if _bounds(h)[1] <= limit]
    positional = [h.name for h in high if _role(h, roles) == "positional"]
    n, shares = len(spectrum.heads), [h.share_at_k.mean for h in spectrum.heads]
    random, identity = (
        spectrum.controls[name].share_at_k for name in ("random-logits", "identity")
    )
    values: dict[str, object] = {
        "k": spectrum.k,
        "length": spectrum.length,
        "heads": n,
        "low_rank": low,
        "not_low_rank": [h.name for h in high],
        "positional_exceptions": positional,
        "mean_share": sum(shares) / n,
        "random_logits": random,
        "identity": identity,
    }
    condition = (
        True
        if len(low) > thresholds.most * n
        else (False if len(high) >= thresholds.most * n else None)
    )
    return concluded(
        5,
        [condition],
        f"The {spectrum.k} largest of {spectrum.length} singular values hold more than {limit:g} "
        f"of the sum in {len(low)} of {n} heads (mean {sum(shares) / n:.2f})"
        + (f"; positional exceptions: {_listed(positional)}" if positional else "")
        + ".",
        f"Patterns of random scores {random:.2f}, a head that looks at itself {identity:.2f}.",
        rule,
        values,
    )  # fmt: skip


def _bounds(head: SpectrumHead) -> tuple[float, float]:
    half = head.half_width or 0.0
    return head.share_at_k.mean - half, head.share_at_k.mean + half


def _role(head: SpectrumHead, roles: Mapping[tuple[int, int], str] | None) -> str | None:
    return head.role or (roles or {}).get((head.layer, head.head))


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
