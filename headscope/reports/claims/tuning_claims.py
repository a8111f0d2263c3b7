"""Claims 8, 9 and 10: what fine-tuning LayerNorm, attention or everything does."""

from __future__ import annotations

from collections.abc import Iterable

from headscope.analyses.transfer.result import TransferDifference, TransferResult
from headscope.reports.claims.finding import (
    FAILS,
    HOLDS,
    OPEN,
    UNKNOWN,
    Evidence,
    Finding,
    above,
    below,
    negative,
    shown,
)
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import InsightPart
from headscope.stats.estimate import Estimate

_NAMES = {
    "layernorm": "LayerNorm only",
    "head": "head only",
    "lora": "rank-1 LoRA",
    "all": "everything",
}
#: Sets of as many parameters as LayerNorm has, as the parts of claim 8 call them.
_EQUAL = {
    "weights": "as many single weights",
    "biases": "as many biases",
    "lora": "rank-1 LoRA of as many parameters",
}


def judge_layernorm(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 8 by LayerNorm alone minus each equally large set."""
    rule = (
        "Holds if training only LayerNorm beats every set of equally many other parameters (drawn "
        "from the weights of the layers, drawn from the biases, and rank-one changes of matrices) "
        "at the largest size (paired difference of the accuracy, 95% interval over seeds and test "
        "examples, above 0); does not hold if it beats none, or if one of them beats it; a set "
        "that the model does not have does not count. Not measured unless every set's best "
        "learning rate was found inside its grid on development data. All biases, attention and "
        "everything are shown for comparison and have more parameters."
    )
    transfer = evidence.transfer
    if transfer is None:
        return Finding("not measured yet", rule, "transfer was not part of this run")
    pairs = ((name, transfer.difference("layernorm", name)) for name in _EQUAL)
    differences = {name: difference for name, difference in pairs if difference is not None}
    if not differences:
        why = f"Nothing to compare: {_runs_reached(transfer)}"
        return Finding("not measured", rule, why)
    size = transfer.sizes[-1]
    variants = ("layernorm", *_EQUAL, "all_biases", "attention", "all")
    measured = _measured(transfer, variants, size)
    if unsettled := _unsettled(transfer, ("layernorm", *_EQUAL), size):
        return Finding("not measured", rule, f"{unsettled} {measured}")
    parts = []
    for name, words in _EQUAL.items():
        if name not in transfer.not_possible:
            outcome, text = UNKNOWN, "not reached"
            if (difference := differences.get(name)) is not None:
                outcome = above(difference.points, 0.0)
                text = f"{shown(difference.points)} points, {difference.seeds} seeds"
            parts.append(InsightPart(f"LayerNorm beats {words}", outcome, text))
    return Finding.concluded(
        parts,
        measured,
        f"{_accuracies(transfer, ('head',), size)}; equally many others are the control.",
        rule,
        {
            name: {"mean": d.points.value, "low": d.points.low, "high": d.points.high}
            for name, d in differences.items()
        },
        refuted=any(below(d.points, 0.0) == HOLDS for d in differences.values()),
    )


def judge_frozen(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 9 by everything minus LayerNorm alone, and by pretrained minus random."""
    rule = (
        "Frozen means that LayerNorm and the classifier alone are trained. Holds if everything "
        f"trained lies less than {thresholds.tuning_gap:g} points above that with the whole 95% "
        "interval over seeds and test examples of the paired gap (non-inferiority), and if it lies "
        "above the same with random weights by interval. Not measured unless tuning everything "
        "beats the classifier alone by interval, and unless every best learning rate was found "
        "inside its grid on development data."
    )
    transfer = evidence.transfer
    if transfer is None:
        return Finding("not measured yet", rule, "transfer was not part of this run")
    size, variants = transfer.sizes[-1], ("layernorm", "all", "head")
    frozen_over_tuned = transfer.difference("layernorm", "all")
    over_random = transfer.difference("layernorm", "layernorm", other_weights="random")
    worth = transfer.difference("all", "head")
    gap = None if frozen_over_tuned is None else negative(frozen_over_tuned.points)

    def points(what: str, difference: TransferDifference | None, number: Estimate | None) -> str:
        if difference is None or number is None:
            return "not reached"
        return f"{what} {shown(number)} points above, {difference.seeds} seeds"

    measured = _measured(transfer, variants, size)
    unsettled = _unsettled(transfer, variants, size, random=("layernorm",))
    gain = None if worth is None else worth.points
    if gain is None or gain.low is None or gain.low <= 0:
        unsettled += (
            " Tuning everything must beat the classifier alone by its interval; otherwise "
            '"as good as tuned" means nothing: '
            f"{points('everything lies', worth, gain)}."
        )
    if unsettled:
        return Finding("not measured", rule, f"{unsettled.strip()} {measured}")
    over = None if over_random is None else over_random.points
    parts = (
        InsightPart(
            "frozen layers do about as well as tuned ones",
            UNKNOWN if gap is None else below(gap, thresholds.tuning_gap),
            points("everything lies", frozen_over_tuned, gap),
        ),
        InsightPart(
            "frozen pretrained layers do better than frozen random ones",
            UNKNOWN if over is None else above(over, 0.0),
            points("pretrained lies", over_random, over),
        ),
    )
    return Finding.concluded(
        parts,
        measured,
        f"From random weights: {_accuracies(transfer, ('layernorm', 'head'), size, 'random')}.",
        rule,
        {"gap": gap and gap.value, "above_random": over and over.value},
    )


def judge_unstable(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 10 by how attention and LayerNorm vary over seeds."""
    rule = (
        "At the smallest size, attention alone against LayerNorm alone: holds if more of its runs "
        "diverge (at 1, 3 and 10 times each one's best learning rate, equally many runs of each; "
        "Newcombe's 95% interval of the difference above 0), or if the accuracy's standard "
        "deviation over seeds at the best rate is larger (F interval of the ratio above 1; not "
        "counted where no run of attention beats the majority class, as runs at chance differ by "
        "chance). Does not hold if neither can be (both intervals below), or if no run of "
        "attention diverged and its spread is surely not larger. Not measured unless both best "
        "rates were found inside their grids on development data."
    )
    transfer = evidence.transfer
    if transfer is None:
        return Finding("not measured yet", rule, "transfer was not part of this run")
    size, variants = transfer.sizes[0], ("attention", "layernorm")
    spread = next((spread for spread in transfer.spreads if spread.size == size), None)
    if spread is None:
        why = f"Nothing to compare. {_runs_reached(transfer)}"
        return Finding("not measured", rule, why)
    measured = _measured(transfer, variants, size)
    if unsettled := _unsettled(transfer, variants, size):
        return Finding("not measured", rule, f"{unsettled} {measured}")

    more, diverged = UNKNOWN, "not reached"
    if spread.tries:
        more = above(spread.more_bad, 0.0)
        diverged = f"{spread.bad} of {spread.tries} against {spread.other_bad} of {spread.tries}"
    wider, ratio_text = UNKNOWN, "no spread to compare"
    if spread.ratio.value is not None:
        wider = above(spread.ratio, 1.0)
        if not spread.learned and wider != FAILS:
            wider = UNKNOWN
        ratio_text = f"ratio {shown(spread.ratio)}{'' if spread.learned else ', at chance'}"
    # Either part is enough for the claim; against it both must speak.
    verdict = "mixed"
    if HOLDS in (more, wider):
        verdict = HOLDS
    elif wider == FAILS and (more == FAILS or (spread.tries and not spread.bad)):
        verdict = FAILS
    elif UNKNOWN in (more, wider) and OPEN not in (more, wider):
        verdict = UNKNOWN
    return Finding(
        verdict,
        rule,
        measured,
        f"LayerNorm alone, {spread.other_seeds} seeds, on the same examples.",
        {"bad": spread.bad, "other_bad": spread.other_bad, "ratio": spread.ratio.value},
        (
            InsightPart("more runs of attention diverge", more, diverged),
            InsightPart("attention spreads more over seeds", wider, ratio_text),
        ),
    )


def _measured(transfer: TransferResult, variants: Iterable[str], size: int) -> str:
    accuracies = _accuracies(transfer, variants, size)
    return (
        f"Accuracy on '{transfer.task}', {size} training examples: {accuracies}. "
        f"{_runs_reached(transfer)}"
    )


def _accuracies(
    transfer: TransferResult, variants: Iterable[str], size: int, weights: str = "pretrained"
) -> str:
    """List the accuracy of variants with intervals; those that were not reached are left out."""
    cells = (transfer.cell(variant, weights, size) for variant in variants)
    return ", ".join(
        f"{_NAMES.get(cell.variant, cell.variant)} {shown(cell.accuracy, '.1f')}"
        for cell in cells
        if cell is not None
    )


def _unsettled(
    transfer: TransferResult, variants: Iterable[str], size: int, random: Iterable[str] = ()
) -> str:
    """Name the cells whose best learning rate is not known; empty where all are known."""
    starts = [(name, "pretrained") for name in variants] + [(name, "random") for name in random]
    cells = [cell for start in starts if (cell := transfer.cell(*start, size)) is not None]
    sentences = []
    for optimum, text in (
        ("edge", "The best learning rate lies at the edge of the grid that was searched"),
        ("not searched", "No learning rate was searched for"),
    ):
        names = [
            f"{_NAMES.get(cell.variant, cell.variant)}"
            f"{' from random weights' if cell.weights == 'random' else ''} ({cell.rate:g})"
            for cell in cells
            if cell.optimum == optimum
        ]
        if names:
            sentences.append(f"{text}: {', '.join(names)}.")
    return " ".join(sentences)


def _runs_reached(transfer: TransferResult) -> str:
    """Say how many runs the budget reached; nothing where it reached all."""
    if not transfer.missed:
        return ""
    done, wanted = len(transfer.runs), len(transfer.runs) + len(transfer.missed)
    return f"The budget of {transfer.budget:g} s reached {done} of {wanted} runs."
