"""Claim 10: fine-tuning attention on small data can diverge.

``headscope transfer`` fine-tunes a model with attention alone trained, and with LayerNorm alone,
with several seeds and sizes of the training data. The claim is decided at the smallest size, by how
many runs of either diverge and by how far their accuracies differ from seed to seed. A
:class:`TransferSpread` compares the two; ``bad`` are the runs that diverged.
"""

from __future__ import annotations

from headscope.analyses.transfer.result import TransferSpread
from headscope.reports.claims.intervals import FAILS, HOLDS, NOT_MEASURED, OPEN, shown
from headscope.reports.claims.rule import Claim, ClaimPart, Evidence, Rule, lies_above
from headscope.reports.claims.tuning import (
    NOT_REACHED,
    accuracies_and_budget,
    runs_reached,
    unsettled,
)
from headscope.reports.result import Insight, InsightPart

#: What decides the claim. ``rule`` says it in words, ``lies`` where the estimate's interval has
#: to lie for the part to hold (``{bound}`` in these words).
PARTS = {
    "diverge": ClaimPart(
        name="more runs of attention diverge",
        rule="the share of runs that diverge with attention alone trained, less that with "
        "LayerNorm alone, is {bound}",
        lies=lambda thresholds: lies_above(0),
    ),
    "spread": ClaimPart(
        name="attention spreads more over seeds",
        rule="the standard deviation of the accuracy over seeds, divided by LayerNorm's, is "
        "{bound}",
        lies=lambda thresholds: lies_above(1),
    ),
}
_VARIANTS = ("attention", "layernorm")


def judge(rule: Rule, evidence: Evidence) -> Insight:
    """Decide by how attention and LayerNorm vary over seeds; either part is enough."""
    transfer = evidence.transfer
    if transfer is None:
        return rule.missing("transfer")
    size = transfer.sizes[0]
    spread = next((row for row in transfer.spreads if row.size == size), None)
    if spread is None:
        return rule.insight(NOT_MEASURED, f"Nothing to compare. {runs_reached(transfer)}")
    measured = accuracies_and_budget(transfer, _VARIANTS, size)
    reasons = unsettled(transfer, _VARIANTS, size)
    if reasons:
        return rule.insight(NOT_MEASURED, f"{reasons} {measured}")

    diverge = _diverge_part(rule, spread)
    wider = _spread_part(rule, spread)
    return rule.insight(
        verdict=_verdict(diverge, wider, spread),
        measured=measured,
        control=f"LayerNorm alone, {spread.other_seeds} seeds, on the same examples.",
        values={"bad": spread.bad, "other_bad": spread.other_bad, "ratio": spread.ratio.value},
        parts=(diverge, wider),
    )


def _diverge_part(rule: Rule, spread: TransferSpread) -> InsightPart:
    """Decide whether more runs of attention diverge."""
    if not spread.tries:
        return rule.decided("diverge", NOT_MEASURED, NOT_REACHED)
    text = f"{spread.bad} of {spread.tries} against {spread.other_bad} of {spread.tries}"
    return rule.part("diverge", spread.more_bad, text)


def _spread_part(rule: Rule, spread: TransferSpread) -> InsightPart:
    """Decide whether attention's accuracies spread more over seeds.

    Where no run of attention has learned anything, accuracies differ by chance, so the part can
    fail and not hold.
    """
    if spread.ratio.value is None:
        return rule.decided("spread", NOT_MEASURED, "no spread to compare")
    text = f"ratio {shown(spread.ratio)}"
    if spread.learned:
        return rule.part("spread", spread.ratio, text)
    at_chance = rule.part("spread", spread.ratio, f"{text}, at chance")
    if at_chance.verdict == FAILS:
        return at_chance
    return rule.decided("spread", NOT_MEASURED, at_chance.measured)


def _verdict(diverge: InsightPart, wider: InsightPart, spread: TransferSpread) -> str:
    """Join the parts: either is enough for the claim; against it both must speak."""
    outcomes = (diverge.verdict, wider.verdict)
    no_run_diverged = spread.tries > 0 and spread.bad == 0
    if HOLDS in outcomes:
        return HOLDS
    if wider.verdict == FAILS and (diverge.verdict == FAILS or no_run_diverged):
        return FAILS
    if NOT_MEASURED in outcomes and OPEN not in outcomes:
        return NOT_MEASURED
    return "mixed"


CLAIM = Claim(
    number=10,
    text="Fine-tuning attention on small data can diverge.",
    paper="Lu et al. 2021, Pretrained transformers as universal computation engines",
    parts=PARTS,
    opening="Holds if one of these does, by its whole 95% interval, at the smallest size:",
    closing="Runs are at 1, 3 and 10 times each one's best learning rate, equally many of each "
    "(Newcombe's interval), and the ratio is that at the best rate (permutation interval), not "
    "counted where no run of attention beats the majority class, as runs at chance differ by "
    "chance. Does not hold if neither can be (both intervals below), or if no run of attention "
    "diverged and its spread is surely not larger. Not measured unless both best rates were found "
    "inside their grids on development data.",
    judge=judge,
)
