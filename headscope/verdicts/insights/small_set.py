"""Claim 8: LayerNorm parameters are the most useful small set to fine-tune."""

from __future__ import annotations

from collections.abc import Iterator

from headscope.results import InsightPart, TransferDifference, TransferResult
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import UNKNOWN, Estimate
from headscope.verdicts.insights.thresholds import InsightThresholds
from headscope.verdicts.insights.tuned import accuracies, reached

__all__ = ["judge"]

_RULE = (
    "Holds if training only LayerNorm beats every set of equally many other parameters, drawn from "
    "the biases and from the weights of the layers, at the largest size (paired difference of the "
    "accuracy, 95% interval over seeds and test examples, above 0); does not hold if it beats "
    "none, or if one of them beats it; a set that the model does not have does not count. "
    "Attention alone stands beside it with many more parameters."
)
#: Sets of equally many parameters, with what the parts say of them.
_EQUAL = {"biases": "as many biases", "weights": "as many single weights"}


def judge(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 8 by LayerNorm alone minus each equally large set."""
    found = evidence.transfer
    if found is None:
        return Finding("not measured yet", _RULE, "transfer was not part of this run")
    differences = dict(_differences(found))
    if not differences:
        return Finding("not measured", _RULE, f"Nothing to compare: {reached(found)}")
    parts = [
        _part(name, differences.get(name)) for name in _EQUAL if name not in found.not_possible
    ]
    beaten = any(d.high is not None and d.high < 0 for d in differences.values())
    size = found.sizes[-1]
    return Finding.concluded(
        parts,
        f"Accuracy on '{found.task}', {size} training examples: "
        f"{accuracies(found, ('layernorm', *_EQUAL, 'attention', 'all'), size)}. {reached(found)}",
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
