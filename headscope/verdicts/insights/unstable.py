"""Claim 10: fine-tuning attention on small data can diverge."""

from __future__ import annotations

from headscope.results.insights import InsightPart
from headscope.results.transfer import TransferSpread
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import FAILS, HOLDS, OPEN, UNKNOWN, Estimate
from headscope.verdicts.insights.thresholds import InsightThresholds
from headscope.verdicts.insights.tuned import accuracies, reached, unsettled

__all__ = ["judge"]

_RULE = (
    "At the smallest size, attention alone against LayerNorm alone: holds if more of its runs "
    "diverge (at 1, 3 and 10 times each one's best learning rate, equally many runs of each; "
    "Newcombe's 95% interval of the difference above 0), or if the accuracy's standard deviation "
    "over seeds at the best rate is larger (F interval of the ratio above 1; not counted where no "
    "run of attention beats the majority class, as runs at chance differ by chance). Does not hold "
    "if neither can be (both intervals below), or if no run of attention diverged and its spread "
    "is surely not larger. Not measured unless both best rates were found inside their grids on "
    "development data."
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
    measured = (
        f"Accuracy on '{found.task}', {size} training examples: "
        f"{accuracies(found, ('attention', 'layernorm'), size)}. {reached(found)}"
    )
    if open_ends := unsettled(found, ("attention", "layernorm"), size):
        return Finding("not measured", _RULE, f"{open_ends} {measured}")
    more, wider = _more(spread), _wider(spread)
    parts = (
        InsightPart(
            "more runs of attention diverge",
            more,
            f"{spread.bad} of {spread.tries} against {spread.other_bad} of {spread.tries}"
            if spread.tries
            else "not reached",
        ),
        InsightPart(
            "attention spreads more over seeds",
            wider,
            _ratio(spread),
        ),
    )
    return Finding(
        _verdict(more, wider, never=bool(spread.tries) and not spread.bad),
        _RULE,
        measured,
        f"LayerNorm alone, {spread.other_seeds} seeds, on the same examples.",
        {"bad": spread.bad, "other_bad": spread.other_bad, "ratio": spread.ratio},
        parts,
    )


def _more(spread: TransferSpread) -> str:
    if spread.more_bad is None or not spread.tries:
        return UNKNOWN
    return Estimate(spread.more_bad, spread.more_bad_low, spread.more_bad_high).above(0.0)


def _wider(spread: TransferSpread) -> str:
    if spread.ratio is None:
        return UNKNOWN
    found = Estimate(spread.ratio, spread.low, spread.high).above(1.0)
    return found if spread.learned or found == FAILS else UNKNOWN


def _ratio(spread: TransferSpread) -> str:
    if spread.ratio is None:
        return "no spread to compare"
    chance = "" if spread.learned else ", at chance"
    return f"ratio {Estimate(spread.ratio, spread.low, spread.high)}{chance}"


def _verdict(more: str, wider: str, *, never: bool) -> str:
    """Either part is enough for the claim; against it both must speak."""
    if HOLDS in (more, wider):
        return "holds"
    if wider == FAILS and (more == FAILS or never):
        return "does not hold"
    return "not measured" if UNKNOWN in (more, wider) and OPEN not in (more, wider) else "mixed"
