"""The facts of ``headscope transfer``."""

from __future__ import annotations

from headscope.results.transfer import TransferResult
from headscope.verdicts.diff.facts.fact import Facts, Number


def collect(result: TransferResult, facts: Facts) -> None:
    """Add the accuracy of every cell and baseline, and how many runs went wrong."""
    for cell in result.cells:
        name = f"{cell.variant}, {cell.weights}, {cell.size} examples"
        interval = None if cell.low is None or cell.high is None else (cell.low, cell.high)
        facts.number(name, "accuracy", Number.within(cell.accuracy, interval))
        facts.text(name, "diverged or failed", f"{cell.diverged}, {cell.failed} of {cell.seeds}")
        facts.text(name, "best rate", cell.optimum)
    for count in result.divergence:
        name = f"{count.variant}, {count.size} examples, {count.factor:g} times its best rate"
        facts.text(name, "diverged", f"{count.diverged} of {count.runs}")
    for row in result.baselines:
        interval = None if row.low is None or row.high is None else (row.low, row.high)
        name = f"{row.name}, {row.size} examples"
        facts.number(name, "accuracy", Number.within(row.accuracy, interval))


def settings(result: TransferResult) -> dict[str, object]:
    """Return the task, and how runs were trained."""
    return {
        "task": result.task,
        "sizes": list(result.sizes),
        "steps": result.steps,
        "batch": result.batch,
        "test examples": result.test_examples,
    }
