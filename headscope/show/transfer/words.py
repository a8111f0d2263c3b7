"""The sentences of ``transfer``, the same in the terminal and on the page."""

from __future__ import annotations

from collections import Counter

from headscope.results.transfer import TransferCell, TransferDifference, TransferResult
from headscope.show.cells import joined, plural

#: Variants in order, as people read them.
VARIANTS = {
    "head": "head only",
    "layernorm": "LayerNorm only",
    "biases": "as many biases",
    "weights": "as many weights",
    "lora": "rank-1 LoRA, as many",
    "all_biases": "all biases",
    "attention": "attention only",
    "all": "everything",
}
BASELINES = {"majority": "majority class", "words": "words (naive Bayes)"}  # Baselines, likewise.


def task_sentence(result: TransferResult) -> str:
    """Say what was classified, with how many examples."""
    dropped = f", {result.dropped} left out" if result.dropped else ""
    return (
        f"{result.task}: {len(result.classes)} classes; {result.sizes[-1]} training examples at "
        f"most{dropped}, {result.validation_examples} for validation, {result.test_examples} for "
        "the test."
    )


def result_sentence(result: TransferResult) -> str:
    """Compare LayerNorm alone with the others at the largest size."""
    own = result.cell("layernorm", "pretrained", result.sizes[-1])
    if own is None:
        return "LayerNorm alone was not measured at the largest size."
    found = (
        ("as many biases", result.difference("layernorm", "biases")),
        ("as many weights", result.difference("layernorm", "weights")),
        ("rank-1 LoRA of that size", result.difference("layernorm", "lora")),
        ("attention only", result.difference("layernorm", "attention")),
        ("everything", result.difference("layernorm", "all")),
        (
            "the same from random weights",
            result.difference("layernorm", "layernorm", other_weights="random"),
        ),
    )
    parts = [f"{points(d)} against {name}" for name, d in found if d is not None]
    if not parts:
        return f"LayerNorm only: {accuracy(own)}."
    return f"LayerNorm only: {accuracy(own)}; in points, {joined(parts)}."


def accuracy(cell: TransferCell) -> str:
    """Write a cell's accuracy with its interval."""
    return f"{cell.accuracy:.1f} {interval(cell.low, cell.high)}"


def points(found: TransferDifference) -> str:
    """Write a difference with its sign and interval."""
    return f"{found.mean:+.1f} {interval(found.low, found.high)}"


def interval(low: float | None, high: float | None) -> str:
    """Write an interval of percentages."""
    return "[no interval]" if low is None or high is None else f"[{low:.1f}, {high:.1f}]"


def wrong_sentence(result: TransferResult) -> str:
    """Count the runs that diverged or learned nothing, and compare the spreads."""
    diverged = sum(run.diverged for run in result.runs)
    failed = sum(run.failed for run in result.runs)
    text = (
        f"Of {len(result.runs)} runs at the best rates {diverged} diverged, and {failed} did no "
        "better than the majority class."
    )
    for spread in result.spreads:
        if spread.ratio is not None and spread.low is not None and spread.high is not None:
            text += (
                f" Over seeds at {spread.size} examples, attention's standard deviation is "
                f"{spread.ratio:.2f} [{spread.low:.2f}, {spread.high:.2f}] times LayerNorm's."
            )
    return text


def divergence_sentence(result: TransferResult) -> str:
    """Say how many runs diverged at multiples of the best rates; empty where none were made."""
    by_variant: dict[str, list[str]] = {}
    for count in result.divergence:
        found = f"{count.diverged} of {count.runs} runs at {count.factor:g}x"
        by_variant.setdefault(VARIANTS[count.variant], []).append(found)
    if not by_variant:
        return ""
    parts = [f"{name} {joined(found)}" for name, found in by_variant.items()]
    return (
        f"Diverged with {result.sizes[0]} examples, by multiples of each one's best rate: "
        f"{'; '.join(parts)}."
    )


def search_sentence(result: TransferResult) -> str:
    """Say which learning rates are no known optimum; empty where all are."""
    edge = [c for c in result.cells if c.optimum == "edge"]
    text = ""
    if edge:
        names = [
            f"{VARIANTS[c.variant]} ({c.weights}, {c.size} examples, {c.rate:g})" for c in edge
        ]
        text = f"The best rate lies at the edge of what was searched: {joined(names)}."
    if any(c.optimum == "not searched" for c in result.cells):
        text += " Rates marked ? were not searched."
    return text.strip()


def missed_sentence(result: TransferResult) -> str:
    """Say what the budget did not reach; empty where it reached everything."""
    if not result.missed:
        return ""
    counts = Counter((m.variant, m.weights, m.size) for m in result.missed)
    parts = [
        f"{VARIANTS[variant]} ({weights}, {size} examples): {n} {plural(n, 'run')}"
        for (variant, weights, size), n in counts.items()
    ]
    total = len(result.missed) + len(result.runs) + len(result.stress)
    return (
        f"The budget of {result.budget:g} s did not reach {len(result.missed)} of {total} runs: "
        f"{'; '.join(parts)}."
    )


def impossible_sentence(result: TransferResult) -> str:
    """Say which variants the model does not have."""
    return " ".join(result.not_possible.values())
