"""Claims 8, 9 and 10: what fine-tuning LayerNorm, attention or everything does."""

from __future__ import annotations

from collections.abc import Iterable

from headscope.analyses.transfer.result import TransferDifference, TransferResult
from headscope.reports.claims.rule import (
    FAILS,
    HOLDS,
    OPEN,
    UNKNOWN,
    Rule,
    below,
    negative,
    shown,
)
from headscope.reports.result import Insight, InsightPart
from headscope.stats.estimate import Estimate

_NAMES = {
    "layernorm": "LayerNorm only",
    "head": "head only",
    "lora": "rank-1 LoRA",
    "all": "everything",
}
#: Sets of as many parameters as LayerNorm has: the parts of claim 8.
_EQUAL = ("weights", "biases", "lora")


def judge_layernorm(rule: Rule, transfer: TransferResult) -> Insight:
    """Decide claim 8 by LayerNorm alone minus each equally large set."""
    parts: list[InsightPart] = []
    values: dict[str, object] = {}
    size = transfer.sizes[-1]
    worse = False
    for name in _EQUAL:
        difference = transfer.difference("layernorm", name)
        if difference is not None:
            points = difference.points
            text = rule.say("points", points=points, seeds=difference.seeds)
            parts.append(rule.part(name, points, text))
            values[name] = {"mean": points.value, "low": points.low, "high": points.high}
            worse = worse or below(points, 0.0) == HOLDS
        elif name not in transfer.not_possible:
            parts.append(rule.part(name, UNKNOWN, rule.say("not_reached")))
    if not values:
        return rule.undecided("not measured", "nothing", reached=_runs_reached(transfer))
    others = ("all_biases", "attention", "all")
    measured = _measured(transfer, ("layernorm", *_EQUAL, *others), size)
    if unsettled := _unsettled(transfer, ("layernorm", *_EQUAL), size):
        return rule.insight("not measured", f"{unsettled} {measured}")
    control = rule.say("control", accuracies=_accuracies(transfer, ("head",), size))
    return rule.concluded(parts, measured, control, values, refuted=worse)


def judge_frozen(rule: Rule, transfer: TransferResult) -> Insight:
    """Decide claim 9 by everything minus LayerNorm alone, and by pretrained minus random."""
    size = transfer.sizes[-1]
    variants = ("layernorm", "all", "head")
    tuned = transfer.difference("layernorm", "all")
    over_random = transfer.difference("layernorm", "layernorm", other_weights="random")
    worth = transfer.difference("all", "head")

    def points(what: str, difference: TransferDifference | None, number: Estimate | None) -> str:
        if difference is None or number is None:
            return rule.say("not_reached")
        return rule.say("points", what=rule.say(what), points=number, seeds=difference.seeds)

    measured = _measured(transfer, variants, size)
    unsettled = _unsettled(transfer, variants, size, random=("layernorm",))
    gain = None if worth is None else worth.points
    if gain is None or gain.low is None or gain.low <= 0:
        unsettled += rule.say("worthless", points=points("everything", worth, gain))
    if unsettled:
        return rule.insight("not measured", f"{unsettled.strip()} {measured}")
    gap = None if tuned is None else negative(tuned.points)
    over = None if over_random is None else over_random.points
    parts = (
        rule.part("tuned", gap or UNKNOWN, points("everything", tuned, gap)),
        rule.part("random", over or UNKNOWN, points("pretrained", over_random, over)),
    )
    accuracies = _accuracies(transfer, ("layernorm", "head"), size, "random")
    values = {"gap": gap and gap.value, "above_random": over and over.value}
    return rule.concluded(parts, measured, rule.say("control", accuracies=accuracies), values)


def judge_unstable(rule: Rule, transfer: TransferResult) -> Insight:
    """Decide claim 10 by how attention and LayerNorm vary over seeds."""
    size = transfer.sizes[0]
    variants = ("attention", "layernorm")
    spread = next((spread for spread in transfer.spreads if spread.size == size), None)
    if spread is None:
        return rule.undecided("not measured", "nothing", reached=_runs_reached(transfer))
    measured = _measured(transfer, variants, size)
    if unsettled := _unsettled(transfer, variants, size):
        return rule.insight("not measured", f"{unsettled} {measured}")

    diverge = rule.part("diverge", UNKNOWN, rule.say("not_reached"))
    if spread.tries:
        diverge = rule.part("diverge", spread.more_bad, **vars(spread))
    wider = rule.part("spread", UNKNOWN, rule.say("no_spread"))
    if spread.ratio.value is not None:
        chance = "" if spread.learned else rule.say("chance")
        wider = rule.part("spread", spread.ratio, ratio=spread.ratio, chance=chance)
        if not spread.learned and wider.verdict != FAILS:
            wider = rule.part("spread", UNKNOWN, wider.measured)
    # Either part is enough for the claim; against it both must speak.
    outcomes = (diverge.verdict, wider.verdict)
    verdict = "mixed"
    if HOLDS in outcomes:
        verdict = HOLDS
    elif wider.verdict == FAILS and (diverge.verdict == FAILS or (spread.tries and not spread.bad)):
        verdict = FAILS
    elif UNKNOWN in outcomes and OPEN not in outcomes:
        verdict = UNKNOWN
    return rule.insight(
        verdict,
        measured,
        rule.say("control", seeds=spread.other_seeds),
        {"bad": spread.bad, "other_bad": spread.other_bad, "ratio": spread.ratio.value},
        (diverge, wider),
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
    texts = {
        "edge": "The best learning rate lies at the edge of the grid that was searched",
        "not searched": "No learning rate was searched for",
    }
    names: dict[str, list[str]] = {optimum: [] for optimum in texts}
    for cell in (transfer.cell(*start, size) for start in starts):
        if cell is not None and cell.optimum in texts:
            where = " from random weights" if cell.weights == "random" else ""
            name = f"{_NAMES.get(cell.variant, cell.variant)}{where} ({cell.rate:g})"
            names[cell.optimum].append(name)
    return " ".join(f"{texts[key]}: {', '.join(cells)}." for key, cells in names.items() if cells)


def _runs_reached(transfer: TransferResult) -> str:
    """Say how many runs the budget reached; nothing where it reached all."""
    if not transfer.missed:
        return ""
    done = len(transfer.runs)
    wanted = len(transfer.runs) + len(transfer.missed)
    return f"The budget of {transfer.budget:g} s reached {done} of {wanted} runs."
