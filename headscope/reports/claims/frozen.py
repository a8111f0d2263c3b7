"""Claim 9: pretrained attention is a ready computation primitive; frozen does as well as tuned.

Frozen means that LayerNorm and the classifier alone are trained. Decided by the accuracy with
everything trained, less that with frozen layers, and by pretrained minus random frozen layers.

``headscope transfer`` fine-tunes variants of a model, each training other parameters:
``layernorm`` (frozen layers), ``all`` (everything) and ``head`` (the classifier alone), at several
sizes of the training data, from pretrained and from random weights.
"""

from __future__ import annotations

from headscope.analyses.transfer.result import TransferDifference
from headscope.reports.claims.intervals import NOT_MEASURED, negative, shown
from headscope.reports.claims.rule import Claim, ClaimPart, Evidence, Rule, lies_above, lies_below
from headscope.reports.claims.tuning import (
    NOT_REACHED,
    accuracies,
    accuracies_and_budget,
    unsettled,
)
from headscope.reports.result import Insight, InsightPart
from headscope.stats.estimate import Estimate

#: What decides the claim. ``rule`` says it in words, ``lies`` where the estimate's interval has
#: to lie for the part to hold (``{bound}`` in these words).
PARTS = {
    "tuned": ClaimPart(
        name="frozen layers do about as well as tuned ones",
        rule="the accuracy with everything trained, less that with frozen layers, is {bound} "
        "points",
        lies=lambda thresholds: lies_below(thresholds.tuning_gap),
    ),
    "random": ClaimPart(
        name="frozen pretrained layers do better than frozen random ones",
        rule="the accuracy with frozen layers, less that with frozen layers of random weights, is "
        "{bound}",
        lies=lambda thresholds: lies_above(0),
    ),
}
_VARIANTS = ("layernorm", "all", "head")


def judge(rule: Rule, evidence: Evidence) -> Insight:
    """Decide by everything minus LayerNorm alone, and by pretrained minus random weights."""
    transfer = evidence.transfer
    if transfer is None:
        return rule.missing("transfer")
    size = transfer.sizes[-1]
    measured = accuracies_and_budget(transfer, _VARIANTS, size)

    # "As good as tuned" means something only where tuning is good, and where every variant's best
    # learning rate is known.
    reasons = unsettled(transfer, _VARIANTS, size, random=["layernorm"])
    over_head = transfer.difference("all", "head")
    gain = None if over_head is None else over_head.points
    if gain is None or gain.low is None or gain.low <= 0:
        reasons += (
            " Tuning everything must beat the classifier alone by its interval; otherwise "
            f'"as good as tuned" means nothing: {_points("everything", over_head, gain)}.'
        )
    if reasons:
        return rule.insight(NOT_MEASURED, f"{reasons.strip()} {measured}")

    # How far frozen layers lie below tuned ones, and above random ones.
    to_tuned = transfer.difference("layernorm", "all")
    gap = None if to_tuned is None else negative(to_tuned.points)
    to_random = transfer.difference("layernorm", "layernorm", other_weights="random")
    above_random = None if to_random is None else to_random.points
    random_accuracies = accuracies(transfer, ["layernorm", "head"], size, weights="random")
    return rule.concluded(
        parts=(
            _part(rule, "tuned", _points("everything", to_tuned, gap), gap),
            _part(rule, "random", _points("pretrained", to_random, above_random), above_random),
        ),
        measured=measured,
        control=f"From random weights: {random_accuracies}.",
        values={
            "gap": None if gap is None else gap.value,
            "above_random": None if above_random is None else above_random.value,
        },
    )


def _part(rule: Rule, key: str, measured: str, points: Estimate | None) -> InsightPart:
    """Decide a part by a difference in points; None where the budget did not reach its runs."""
    if points is None:
        return rule.decided(key, NOT_MEASURED, measured)
    return rule.part(key, points, measured)


def _points(name: str, difference: TransferDifference | None, points: Estimate | None) -> str:
    """Say by how many points one way of training, such as "everything", lies above the other."""
    if difference is None or points is None:
        return NOT_REACHED
    return f"{name} lies {shown(points)} points above, {difference.seeds} seeds"


CLAIM = Claim(
    number=9,
    text="Pretrained attention is a ready computation primitive: frozen does about as well as "
    "tuned.",
    paper="Lu et al. 2021, Pretrained transformers as universal computation engines",
    parts=PARTS,
    closing="Frozen means that LayerNorm and the classifier alone are trained; differences are "
    "paired, over seeds and test examples (non-inferiority). Not measured unless tuning everything "
    "beats the classifier alone by interval, and unless every best learning rate was found inside "
    "its grid on development data.",
    judge=judge,
)
