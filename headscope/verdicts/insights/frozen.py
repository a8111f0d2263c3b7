"""Claim 9: pretrained attention is a ready computation primitive: frozen does about as well."""

from __future__ import annotations

from headscope.results import InsightPart, TransferDifference
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import FAILS, HOLDS, OPEN, UNKNOWN, Estimate
from headscope.verdicts.insights.thresholds import InsightThresholds
from headscope.verdicts.insights.tuned import accuracies, reached

__all__ = ["judge"]


def judge(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 9 by everything minus LayerNorm alone, and by pretrained minus random."""
    rule, found = _rule(thresholds), evidence.transfer
    if found is None:
        return Finding("not measured yet", rule, "transfer was not part of this run")
    gap = found.difference("layernorm", "all")
    over = found.difference("layernorm", "layernorm", other_weights="random")
    size = found.sizes[-1]
    parts = (
        InsightPart(
            "frozen layers do about as well as tuned ones",
            _near(gap, thresholds.tuning_gap),
            _shown(gap, "everything lies", -1),
        ),
        InsightPart(
            "frozen pretrained layers do better than frozen random ones",
            UNKNOWN if over is None else Estimate(over.mean, over.low, over.high).above(0.0),
            _shown(over, "pretrained lies", 1),
        ),
    )
    return Finding.concluded(
        parts,
        f"Accuracy on '{found.task}', {size} training examples: "
        f"{accuracies(found, ('layernorm', 'all', 'head'), size)}. {reached(found)}",
        f"From random weights: {accuracies(found, ('layernorm', 'head'), size, 'random')}.",
        rule,
        {
            "gap": None if gap is None else -gap.mean,
            "above_random": None if over is None else over.mean,
        },
    )


def _rule(t: InsightThresholds) -> str:
    return (
        "Frozen means that LayerNorm and the classifier alone are trained. Holds if everything "
        f"trained lies less than {t.tuning_gap:g} points above that, and the 95% interval over "
        f"seeds and test examples of the gap reaches down to 0 or lies below {t.tuning_gap:g}; "
        "and if it lies above the same with random weights by interval."
    )


def _near(gap: TransferDifference | None, limit: float) -> str:
    """Whether everything gains little: not told from nothing, or surely below the limit."""
    if gap is None or gap.low is None or gap.high is None:
        return UNKNOWN
    mean, low, high = -gap.mean, -gap.high, -gap.low
    if mean < limit and (low <= 0 or high < limit):
        return HOLDS
    return FAILS if mean >= limit and low > 0 else OPEN


def _shown(found: TransferDifference | None, what: str, sign: int) -> str:
    if found is None:
        return "not reached"
    ends = [sign * end for end in (found.low, found.high) if end is not None]
    low, high = sorted(ends) or (None, None)
    estimate = Estimate(sign * found.mean, low, high)
    return f"{what} {estimate} points above, {found.seeds} seeds"
