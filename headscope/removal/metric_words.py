"""What the metrics of tasks are called, how many digits mean something, and what a loss is called.

The sentences that the terminal, the report and model cards share are here, so that they agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

#: What the metrics are called, and what is good.
METRIC_NAMES = {
    "cosine": "cosine to the full model's pooled states (1 is unchanged)",
    "loss": "loss at masked tokens (nats, lower is better)",
    "accuracy": "accuracy (%)",
    "spearman": "Spearman correlation with gold (x 100)",
    "token_accuracy": "token accuracy (%), each token after the true ones before it",
    "exact_match": "exact match (%)",
    "ndcg_at_10": "mean nDCG@10 (x 100)",
    "recall_at_10": "recall@10 (%)",
    "top_10_changed": "queries whose first ten documents changed (%)",
    "kendall_tau": "Kendall's tau with the full model's order (x 100; 100 is unchanged)",
    "entity_f1": "F1 of entities (%)",
    "word_accuracy": "accuracy over words (%)",
    "answer_f1": "F1 of the words of answers (%)",
    "bleu": "BLEU",
    "bleu_characters": "BLEU of characters",
}
#: The same in a sentence.
SHORT_NAMES = {
    "cosine": "the cosine",
    "loss": "the loss",
    "spearman": "Spearman",
    "token_accuracy": "token accuracy",
    "ndcg_at_10": "nDCG@10",
    "kendall_tau": "Kendall's tau",
    "entity_f1": "the F1 of entities",
    "word_accuracy": "word accuracy",
    "answer_f1": "the F1 of answers",
}


def scale_of(metric: str) -> float | None:
    """Return the best value that a metric can have: 1 or 100; None for a loss: less is better."""
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


def percent(level: float) -> str:
    """Write a level of confidence: ``95%``, ``99.17%``."""
    return f"{100 * level:.4g}%"


def amount(value: float, metric: str) -> str:
    """Write a difference with its unit: ``1.10 points``, ``0.190 nats``; a cosine has none."""
    if not math.isfinite(value):
        return "an unknown amount"
    unit = {"cosine": "", "loss": " nats"}.get(metric, " points")
    text = number(value, metric)
    if value > 0 and not float(text):  # it is small, not nothing
        return f"less than {text[:-1]}1{unit}"
    return f"{text}{unit}"


def most_lost(metric: str, ci: Sequence[float]) -> float:
    """Return a change as a loss at the bad end of its interval; below 0 if the metric improves."""
    return 0.0 + (max(ci) if scale_of(metric) is None else -min(ci))  # no -0.0


def change_words(
    metric: str, difference: float | None, ci: Sequence[float] | None, level: float = 0.95
) -> str:
    """Say what a paired interval allows to be said: how much is lost at most, or what is gained."""
    name = SHORT_NAMES.get(metric, metric)
    if difference is None or ci is None or not all(map(math.isfinite, ci)):
        return "what is lost at most is not known"
    if most_lost(metric, ci) < 0:
        ends = sorted(abs(end) for end in ci)
        verb = "falls" if difference < 0 else "rises"
        size = amount(abs(difference), metric)
        return f"{name} {verb} by {size} ({percent(level)}: {span(ends, metric)})"
    lost = amount(most_lost(metric, ci), metric)
    lost = lost if lost.startswith("less") else f"at most {lost}"
    if scale_of(metric) is None:
        return f"{name} rises by {lost} ({percent(level)})"
    are = "are lost" if lost.endswith("points") else f"of {name} is lost"
    return f"{lost} {are} ({percent(level)})"
