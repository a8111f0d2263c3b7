"""What the claims about fine-tuning say in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headscope.analyses.transfer.result import TransferDifference, TransferResult, TransferSpread
from headscope.reports.claims.finding import (
    FAILS,
    HOLDS,
    OPEN,
    UNKNOWN,
    Evidence,
    Finding,
    Measurement,
)
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import InsightPart

__all__ = [
    "accuracies",
    "reached",
    "unsettled",
    "judge_layernorm",
    "judge_frozen",
    "judge_unstable",
]

_NAMES = {
    "layernorm": "LayerNorm only",
    "head": "head only",
    "lora": "rank-1 LoRA",
    "all": "everything",
}


def accuracies(
    found: TransferResult, variants: Iterable[str], size: int, weights: str = "pretrained"
) -> str:
    """List the accuracy of variants with intervals; those that were not reached are left out."""
    cells = (found.cell(variant, weights, size) for variant in variants)
    parts = [
        f"{_NAMES.get(cell.variant, cell.variant)} "
        f"{cell.accuracy:.1f} {Measurement(cell.accuracy, cell.low, cell.high).interval('.1f')}"
        for cell in cells
        if cell is not None
    ]
    return ", ".join(parts)


def unsettled(
    found: TransferResult, variants: Iterable[str], size: int, random: Iterable[str] = ()
) -> str:
    """Name the cells whose best learning rate is not known; empty where all are known."""
    wanted = [(name, "pretrained") for name in variants] + [(name, "random") for name in random]
    cells = (found.cell(*kind, size) for kind in wanted)
    open_ends: dict[str, list[str]] = {"edge": [], "not searched": []}
    for cell in cells:
        if cell is not None and cell.optimum in open_ends:
            start = " from random weights" if cell.weights == "random" else ""
            name = _NAMES.get(cell.variant, cell.variant) + start
            open_ends[cell.optimum].append(f"{name} ({cell.rate:g})")
    texts = {
        "edge": "The best learning rate lies at the edge of the grid that was searched",
        "not searched": "No learning rate was searched for",
    }
    return " ".join(
        f"{texts[kind]}: {', '.join(names)}." for kind, names in open_ends.items() if names
    )


def reached(found: TransferResult) -> str:
    """Say how many runs the budget reached; nothing where it reached all."""
    if not found.missed:
        return ""
    done, wanted = len(found.runs), len(found.runs) + len(found.missed)
    return f"The budget of {found.budget:g} s reached {done} of {wanted} runs."


_LAYERNORM_RULE = (
    "Holds if training only LayerNorm beats every set of equally many other parameters (drawn from "
    "the weights of the layers, drawn from the biases, and rank-one changes of matrices) at the "
    "largest size (paired difference of the accuracy, 95% interval over seeds and test examples, "
    "above 0); does not hold if it beats none, or if one of them beats it; a set that the model "
    "does not have does not count. Not measured unless every set's best learning rate was found "
    "inside its grid on development data. All biases, attention and everything stand beside it "
    "with more parameters."
)
#: Sets of equally many parameters, with what the parts say of them.
_EQUAL = {
    "weights": "as many single weights",
    "biases": "as many biases",
    "lora": "rank-1 LoRA of as many parameters",
}


def judge_layernorm(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 8 by LayerNorm alone minus each equally large set."""
    found = evidence.transfer
    if found is None:
        return Finding("not measured yet", _LAYERNORM_RULE, "transfer was not part of this run")
    differences = dict(_differences(found))
    if not differences:
        return Finding("not measured", _LAYERNORM_RULE, f"Nothing to compare: {reached(found)}")
    size = found.sizes[-1]
    beside = ("layernorm", *_EQUAL, "all_biases", "attention", "all")
    measured = (
        f"Accuracy on '{found.task}', {size} training examples: "
        f"{accuracies(found, beside, size)}. {reached(found)}"
    )
    if open_ends := unsettled(found, ("layernorm", *_EQUAL), size):
        return Finding("not measured", _LAYERNORM_RULE, f"{open_ends} {measured}")
    parts = [
        _beats_part(name, differences.get(name))
        for name in _EQUAL
        if name not in found.not_possible
    ]
    beaten = any(d.high is not None and d.high < 0 for d in differences.values())
    return Finding.concluded(
        parts,
        measured,
        f"{accuracies(found, ('head',), size)}; equally many others are the control.",
        _LAYERNORM_RULE,
        {name: {"mean": d.mean, "low": d.low, "high": d.high} for name, d in differences.items()},
        refuted=beaten,
    )


def _beats_part(name: str, found: TransferDifference | None) -> InsightPart:
    title = f"LayerNorm beats {_EQUAL[name]}"
    if found is None:
        return InsightPart(title, UNKNOWN, "not reached")
    estimate = Measurement(found.mean, found.low, found.high)
    return InsightPart(title, estimate.above(0.0), f"{estimate} points, {found.seeds} seeds")


def _differences(found: TransferResult) -> Iterator[tuple[str, TransferDifference]]:
    for name in _EQUAL:
        difference = found.difference("layernorm", name)
        if difference is not None:
            yield name, difference


def judge_frozen(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 9 by everything minus LayerNorm alone, and by pretrained minus random."""
    rule, found = _frozen_rule(thresholds), evidence.transfer
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
            f"means nothing: {_gap_text(worth, 'everything lies', 1)}."
        )
    if open_ends:
        return Finding("not measured", rule, f"{open_ends.strip()} {measured}")
    parts = (
        InsightPart(
            "frozen layers do about as well as tuned ones",
            _near(gap, thresholds.tuning_gap),
            _gap_text(gap, "everything lies", -1),
        ),
        InsightPart(
            "frozen pretrained layers do better than frozen random ones",
            UNKNOWN if over is None else Measurement(over.mean, over.low, over.high).above(0.0),
            _gap_text(over, "pretrained lies", 1),
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


def _frozen_rule(t: InsightThresholds) -> str:
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
    return Measurement(-gap.mean, -gap.high, -gap.low).below(limit)


def _gap_text(found: TransferDifference | None, what: str, sign: int) -> str:
    if found is None:
        return "not reached"
    ends = [sign * end for end in (found.low, found.high) if end is not None]
    low, high = sorted(ends) or (None, None)
    estimate = Measurement(sign * found.mean, low, high)
    return f"{what} {estimate} points above, {found.seeds} seeds"


_UNSTABLE_RULE = (
    "At the smallest size, attention alone against LayerNorm alone: holds if more of its runs "
    "diverge (at 1, 3 and 10 times each one's best learning rate, equally many runs of each; "
    "Newcombe's 95% interval of the difference above 0), or if the accuracy's standard deviation "
    "over seeds at the best rate is larger (F interval of the ratio above 1; not counted where no "
    "run of attention beats the majority class, as runs at chance differ by chance). Does not hold "
    "if neither can be (both intervals below), or if no run of attention diverged and its spread "
    "is surely not larger. Not measured unless both best rates were found inside their grids on "
    "development data."
)


def judge_unstable(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 10 by how attention and LayerNorm vary over seeds."""
    found = evidence.transfer
    if found is None:
        return Finding("not measured yet", _UNSTABLE_RULE, "transfer was not part of this run")
    size = found.sizes[0]
    spread = next((s for s in found.spreads if s.size == size), None)
    if spread is None:
        return Finding("not measured", _UNSTABLE_RULE, f"Nothing to compare. {reached(found)}")
    measured = (
        f"Accuracy on '{found.task}', {size} training examples: "
        f"{accuracies(found, ('attention', 'layernorm'), size)}. {reached(found)}"
    )
    if open_ends := unsettled(found, ("attention", "layernorm"), size):
        return Finding("not measured", _UNSTABLE_RULE, f"{open_ends} {measured}")
    more, wider = _more_diverge(spread), _spreads_wider(spread)
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
            _spread_text(spread),
        ),
    )
    return Finding(
        _unstable_verdict(more, wider, never=bool(spread.tries) and not spread.bad),
        _UNSTABLE_RULE,
        measured,
        f"LayerNorm alone, {spread.other_seeds} seeds, on the same examples.",
        {"bad": spread.bad, "other_bad": spread.other_bad, "ratio": spread.ratio},
        parts,
    )


def _more_diverge(spread: TransferSpread) -> str:
    if spread.more_bad is None or not spread.tries:
        return UNKNOWN
    return Measurement(spread.more_bad, spread.more_bad_low, spread.more_bad_high).above(0.0)


def _spreads_wider(spread: TransferSpread) -> str:
    if spread.ratio is None:
        return UNKNOWN
    found = Measurement(spread.ratio, spread.low, spread.high).above(1.0)
    return found if spread.learned or found == FAILS else UNKNOWN


def _spread_text(spread: TransferSpread) -> str:
    if spread.ratio is None:
        return "no spread to compare"
    chance = "" if spread.learned else ", at chance"
    return f"ratio {Measurement(spread.ratio, spread.low, spread.high)}{chance}"


def _unstable_verdict(more: str, wider: str, *, never: bool) -> str:
    """Either part is enough for the claim; against it both must speak."""
    if HOLDS in (more, wider):
        return "holds"
    if wider == FAILS and (more == FAILS or never):
        return "does not hold"
    return "not measured" if UNKNOWN in (more, wider) and OPEN not in (more, wider) else "mixed"
