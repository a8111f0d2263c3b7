"""Claim 10: fine-tuning attention on small data can diverge."""

from __future__ import annotations

from headscope.results import InsightPart, TransferSpread
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import FAILS, HOLDS, OPEN, UNKNOWN, Estimate
from headscope.verdicts.insights.thresholds import InsightThresholds
from headscope.verdicts.insights.tuned import accuracies, reached

__all__ = ["judge"]

_RULE = (
    "At the smallest size, attention alone against LayerNorm alone: holds if more of its runs "
    "diverge or do no better than the majority class (Newcombe's 95% interval of the difference "
    "above 0), or if the accuracy's standard deviation over seeds is larger (F interval of the "
    "ratio above 1); does not hold if neither can be (both intervals below), or if no run of "
    "attention went wrong and its spread is surely not larger."
)


def judge(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 10 by how attention and LayerNorm vary over seeds."""
    found = evidence.transfer
    if found is None:
        return Finding("not measured yet", _RULE, "transfer was not part of this run")
    size = found.sizes[0]
    spread = next((s for s in found.spreads if s.size == size), None)
    if spread is None:
        return Finding("not measured", _RULE, f"Nothing to compare. {reached(found)}")
    more, wider = _more(spread), _wider(spread)
    parts = (
        InsightPart(
            "more runs of attention go wrong",
            more,
            f"{spread.bad} of {spread.seeds} against {spread.other_bad} of {spread.other_seeds}",
        ),
        InsightPart(
            "attention spreads more over seeds",
            wider,
            "no spread to compare"
            if spread.ratio is None
            else f"ratio {Estimate(spread.ratio, spread.low, spread.high)}",
        ),
    )
    return Finding(
        _verdict(more, wider, spread.bad),
        _RULE,
        f"Accuracy on '{found.task}', {size} training examples: "
        f"{accuracies(found, ('attention', 'layernorm'), size)}. {reached(found)}",
        f"LayerNorm alone, {spread.other_seeds} seeds, on the same examples.",
        {"bad": spread.bad, "other_bad": spread.other_bad, "ratio": spread.ratio},
        parts,
    )


def _more(spread: TransferSpread) -> str:
    if spread.more_bad is None:
        return UNKNOWN
    return Estimate(spread.more_bad, spread.more_bad_low, spread.more_bad_high).above(0.0)


def _wider(spread: TransferSpread) -> str:
    if spread.ratio is None:
        return UNKNOWN
    return Estimate(spread.ratio, spread.low, spread.high).above(1.0)


def _verdict(more: str, wider: str, bad: int) -> str:
    """Either part is enough for the claim; against it both must speak."""
    if HOLDS in (more, wider):
        return "holds"
    if wider == FAILS and (more == FAILS or bad == 0):
        return "does not hold"
    return "not measured" if UNKNOWN in (more, wider) and OPEN not in (more, wider) else "mixed"
