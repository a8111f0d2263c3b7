"""Claim 8: LayerNorm parameters are the most useful small set to fine-tune.

Decided by the accuracy with only LayerNorm trained, less that with each equally large set.
``headscope transfer`` fine-tunes a *variant* of the model for each set of parameters, at several
sizes of the training data; the largest counts here.
"""

from __future__ import annotations

from headscope.reports.claims.intervals import HOLDS, NOT_MEASURED, below, shown
from headscope.reports.claims.rule import Claim, ClaimPart, Evidence, Rule, lies_above
from headscope.reports.claims.tuning import (
    NOT_REACHED,
    accuracies,
    accuracies_and_budget,
    runs_reached,
    unsettled,
)
from headscope.reports.result import Insight, InsightPart

#: What decides the claim: a part for each set of as many parameters as LayerNorm has, by its name
#: in ``transfer``. ``rule`` says it in words, ``lies`` where the interval has to lie (``{bound}``).
PARTS = {
    "weights": ClaimPart(
        name="LayerNorm beats as many single weights",
        rule="the accuracy with only LayerNorm trained, less that with as many single weights of "
        "the layers, is {bound}",
        lies=lambda thresholds: lies_above(0),
    ),
    "biases": ClaimPart(
        name="LayerNorm beats as many biases",
        rule="the same less that with as many biases is {bound}",
        lies=lambda thresholds: lies_above(0),
    ),
    "lora": ClaimPart(
        name="LayerNorm beats rank-1 LoRA of as many parameters",
        rule="the same less that with rank-one changes of as many parameters is {bound}",
        lies=lambda thresholds: lies_above(0),
    ),
}
_COMPARED = ("layernorm", *PARTS)
#: Larger sets, shown for comparison.
_LARGER = ("all_biases", "attention", "all")


def judge(rule: Rule, evidence: Evidence) -> Insight:
    """Decide by LayerNorm alone minus each equally large set, at the largest size."""
    transfer = evidence.transfer
    if transfer is None:
        return rule.missing("transfer")
    size = transfer.sizes[-1]

    # Compare LayerNorm with each set that was trained.
    set_parts: list[InsightPart] = []
    values: dict[str, object] = {}
    is_beaten = False  # by one of the sets
    for name in PARTS:
        difference = transfer.difference("layernorm", name)
        if difference is not None:
            points = difference.points
            text = f"{shown(points)} points, {difference.seeds} seeds"
            set_parts.append(rule.part(name, points, text))
            values[name] = {"mean": points.value, "low": points.low, "high": points.high}
            is_beaten = is_beaten or below(points, 0.0) == HOLDS
        elif name not in transfer.not_possible:
            set_parts.append(rule.decided(name, NOT_MEASURED, NOT_REACHED))
    if not values:
        return rule.insight(NOT_MEASURED, f"Nothing to compare: {runs_reached(transfer)}")

    # The verdict, unless a best learning rate is unknown.
    measured = accuracies_and_budget(transfer, (*_COMPARED, *_LARGER), size)
    reasons = unsettled(transfer, _COMPARED, size)
    if reasons:
        return rule.insight(NOT_MEASURED, f"{reasons} {measured}")
    head_only = accuracies(transfer, ["head"], size)
    control = f"{head_only}; the other sets of as many parameters are the control."
    return rule.concluded(set_parts, measured, control, values, refuted=is_beaten)


CLAIM = Claim(
    number=8,
    text="LayerNorm parameters are the most useful small set to fine-tune.",
    paper="Lu et al. 2021, Pretrained transformers as universal computation engines",
    parts=PARTS,
    closing="Accuracies are those at the largest size; differences are paired, over seeds and test "
    "examples. Does not hold if LayerNorm beats none, or if one of them beats it; a set that the "
    "model does not have does not count. Not measured unless every set's best learning rate was "
    "found inside its grid on development data. All biases, attention and everything are shown for "
    "comparison and have more parameters.",
    judge=judge,
)
