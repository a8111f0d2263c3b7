"""Claim 8: LayerNorm parameters are the most useful small set to fine-tune."""

from __future__ import annotations

from collections.abc import Iterator

from headscope.results import InsightPart, TransferDifference, TransferResult
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import Estimate
from headscope.verdicts.insights.thresholds import InsightThresholds
from headscope.verdicts.insights.tuned import accuracies, reached

__all__ = ["judge"]

_RULE = (
    "Holds if training only LayerNorm beats every set of equally many other parameters, drawn from "
    "the biases and from the weights of the layers, at the largest size (paired difference of the "
    "accuracy, 95% interval over seeds and test examples, above 0); does not hold if it beats "
    "none, or if one of them beats it. Attention alone stands beside it with many more parameters."
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
        InsightPart(
            f"LayerNorm beats {_EQUAL[name]}",
            Estimate(d.mean, d.low, d.high).above(0.0),
            f"{Estimate(d.mean, d.low, d.high)} points, {d.seeds} seeds",
        )
        for name, d in differences.items()
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


def _differences(found: TransferResult) -> Iterator[tuple[str, TransferDifference]]:
    for name in _EQUAL:
        difference = found.difference("layernorm", name)
        if difference is not None:
            yield name, difference
