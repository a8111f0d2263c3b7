"""Claim 9: pretrained attention is a ready computation primitive: frozen does about as well."""

from __future__ import annotations

from headscope.results.insights import InsightPart
from headscope.results.transfer import TransferDifference
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import UNKNOWN, Estimate
from headscope.verdicts.insights.thresholds import InsightThresholds
from headscope.verdicts.insights.tuned import accuracies, reached, unsettled

__all__ = ["judge"]


def judge(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 9 by everything minus LayerNorm alone, and by pretrained minus random."""
    rule, found = _rule(thresholds), evidence.transfer
    if found is None:
        return Finding("not measured yet", rule, "transfer was not part of this run")
    gap = found.difference("layernorm", "all")
    over = found.difference("layernorm", "layernorm", other_weights="random")
    worth = found.difference("all", "head")
    size = found.sizes[-1]
    measured = (
        f"Accuracy on '{found.task}', {size} training examples: "
        f"{accuracies(found, ('layernorm', 'all', 'head'), size)}. {reached(found)}"
    )
    open_ends = unsettled(found, ("layernorm", "all", "head"), size, random=("layernorm",))
    if worth is None or worth.low is None or worth.low <= 0:
        open_ends += (
            " Tuning everything must beat the classifier alone by interval, else as good as tuned "
            f"means nothing: {_shown(worth, 'everything lies', 1)}."
        )
    if open_ends:
        return Finding("not measured", rule, f"{open_ends.strip()} {measured}")
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
        measured,
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
        f"trained lies less than {t.tuning_gap:g} points above that with the whole 95% interval "
        "over seeds and test examples of the paired gap (non-inferiority), and if it lies above "
        "the same with random weights by interval. Not measured unless tuning everything beats the "
        "classifier alone by interval, and unless every best learning rate was found inside its "
        "grid on development data."
    )


def _near(gap: TransferDifference | None, limit: float) -> str:
    """Whether everything surely gains less than the limit."""
    if gap is None or gap.low is None or gap.high is None:
        return UNKNOWN
    return Estimate(-gap.mean, -gap.high, -gap.low).below(limit)


def _shown(found: TransferDifference | None, what: str, sign: int) -> str:
    if found is None:
        return "not reached"
    ends = [sign * end for end in (found.low, found.high) if end is not None]
    low, high = sorted(ends) or (None, None)
    estimate = Estimate(sign * found.mean, low, high)
    return f"{what} {estimate} points above, {found.seeds} seeds"
