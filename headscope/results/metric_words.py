"""What the metrics of tasks are called, and how many of their digits mean something."""

from __future__ import annotations

import math
from collections.abc import Iterable

#: What the metrics are called, and what is good.
METRIC_NAMES = {
    "cosine": "cosine to the full model's pooled states (1 is unchanged)",
    "loss": "loss at masked tokens (nats, lower is better)",
    "accuracy": "accuracy (%)",
    "spearman": "Spearman correlation with gold (x 100)",
    "token_accuracy": "token accuracy (%), each token after the true ones before it",
    "exact_match": "exact match (%)",
    "bleu": "BLEU",
    "bleu_characters": "BLEU of characters",
}


def scale_of(metric: str) -> float | None:
    """Return the best value that a metric can have: 1 or 100; None for a loss, which has none."""
    return {"cosine": 1.0, "loss": None}.get(metric, 100.0)


def number(value: float | None, metric: str, *, signed: bool = False, short: bool = False) -> str:
    """Write a value of a metric with the digits that mean something."""
    if value is None:
        return "-"
    long, brief = {"cosine": (4, 3), "loss": (3, 2)}.get(metric, (2, 1))
    digits = brief if short else long
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def span(interval: Iterable[float] | None, metric: str, *, signed: bool = False) -> str:
    """Write both ends of an interval of a metric; one that is unknown is None, or infinite."""
    ends = tuple(interval or ())
    if not all(map(math.isfinite, ends)) or not ends:
        return "no interval"
    return " to ".join(number(value, metric, signed=signed) for value in ends)
