"""Claim 8: LayerNorm parameters are the most useful small set to fine-tune."""

from __future__ import annotations

from collections.abc import Iterator

from headscope.results.insights import InsightPart
from headscope.results.transfer import TransferDifference, TransferResult
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import UNKNOWN, Estimate
from headscope.verdicts.insights.thresholds import InsightThresholds
from headscope.verdicts.insights.tuned import accuracies, reached, unsettled

__all__ = ["judge"]

_RULE = (
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


def judge(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 8 by LayerNorm alone minus each equally large set."""
    found = evidence.transfer
    if found is None:
        return Finding("not measured yet", _RULE, "transfer was not part of this run")
    differences = dict(_differences(found))
    if not differences:
        return Finding("not measured", _RULE, f"Nothing to compare: {reached(found)}")
    size = found.sizes[-1]
    beside = ("layernorm", *_EQUAL, "all_biases", "attention", "all")
    measured = (
        f"Accuracy on '{found.task}', {size} training examples: "
        f"{accuracies(found, beside, size)}. {reached(found)}"
    )
    if open_ends := unsettled(found, ("layernorm", *_EQUAL), size):
        return Finding("not measured", _RULE, f"{open_ends} {measured}")
    parts = [
        _part(name, differences.get(name)) for name in _EQUAL if name not in found.not_possible
    ]
    beaten = any(d.high is not None and d.high < 0 for d in differences.values())
    return Finding.concluded(
        parts,
        measured,
        f"{accuracies(found, ('head',), size)}; equally many others are the control.",
        _RULE,
        {name: {"mean": d.mean, "low": d.low, "high": d.high} for name, d in differences.items()},
        refuted=beaten,
    )


def _part(name: str, found: TransferDifference | None) -> InsightPart:
    title = f"LayerNorm beats {_EQUAL[name]}"
    if found is None:
        return InsightPart(title, UNKNOWN, "not reached")
    estimate = Estimate(found.mean, found.low, found.high)
    return InsightPart(title, estimate.above(0.0), f"{estimate} points, {found.seeds} seeds")


def _differences(found: TransferResult) -> Iterator[tuple[str, TransferDifference]]:
    for name in _EQUAL:
        difference = found.difference("layernorm", name)
        if difference is not None:
            yield name, difference
