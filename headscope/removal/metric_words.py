"""Metrics in words: their names, their numbers with the digits that mean something, their changes.

A metric goes by its key, such as ``spearman``. An ``Estimate`` is a value with its 95% interval.

The terminal, the report and model cards share these sentences, so that they agree.
"""

from __future__ import annotations

import math
from functools import partial

from headscope.show.cells import interval_text
from headscope.show.metric_names import SHORT_NAMES
from headscope.stats.estimate import Estimate

#: The metrics in full, and which values are good.
METRIC_NAMES = {
    "cosine": "cosine to the full model's pooled states (1 is unchanged)",
    "loss": "loss at masked tokens (nats, lower is better)",
    "nll": "negative log-likelihood of the next token (nats, lower is better)",
    "perplexity": "perplexity (lower is better)",
    "next_token_accuracy": "accuracy of the next token (%)",
    "kl": "KL divergence from the full model's outputs (nats, 0 is unchanged)",
    "squared_change": "squared change of the full model's scores (0 is unchanged)",
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
#: Metrics of which less is better.
_LOSSES = ("loss", "nll", "perplexity", "kl", "squared_change")


def scale_of(metric: str) -> float | None:
    """Return the best value that a metric can have, 1 or 100; None if less is better."""
    if metric in _LOSSES:
        return None
    return 1.0 if metric == "cosine" else 100.0


def number(value: float | None, metric: str, *, signed: bool = False, short: bool = False) -> str:
    """Write a value of a metric with the digits that mean something; ``short`` is one digit less.

    0.98765 is ``0.9877`` as a cosine, ``0.988`` as a loss, ``0.99`` as an accuracy in percent.
    """
    if value is None:
        return "-"
    digits = 2
    if metric == "cosine":
        digits = 4
    elif metric in _LOSSES:
        digits = 3
    if short:
        digits -= 1
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def span(estimate: Estimate, metric: str, *, signed: bool = False) -> str:
    """Write a metric's interval: ``[79.79, 84.20]``."""
    if estimate.interval is None:
        return "no interval"
    return interval_text(estimate.interval, partial(number, metric=metric, signed=signed))


def with_interval(estimate: Estimate, metric: str, *, signed: bool = False) -> str:
    """Write a metric with its interval: ``82.03 [79.79, 84.20]``, or ``82.03 [no interval]``."""
    value = number(estimate.value, metric, signed=signed)
    if estimate.interval is None:
        return f"{value} [no interval]"
    return f"{value} {span(estimate, metric, signed=signed)}"


def amount(value: float, metric: str) -> str:
    """Write a difference with its unit: ``1.10 points``, ``0.190 nats``; a cosine has none."""
    if not math.isfinite(value):
        return "an unknown amount"
    unit = {"cosine": "", "perplexity": "", "loss": " nats", "nll": " nats"}.get(metric, " points")
    text = number(value, metric)
    is_rounded_to_zero = value > 0 and float(text) == 0
    if is_rounded_to_zero:
        smallest = f"{text[:-1]}1"  # 0.00 -> 0.01
        return f"less than {smallest}{unit}"
    return f"{text}{unit}"


def change_words(metric: str, change: Estimate | None) -> str:
    """Say from the interval of a change how much is lost at most, or that something is gained.

    Spearman with a change of -2.1 to 0.3: ``at most 2.10 points are lost (95%)``.
    """
    name = SHORT_NAMES.get(metric, metric)
    if change is None or change.value is None or change.interval is None:
        return "what is lost at most is not known"
    low, high = change.interval
    less_is_better = scale_of(metric) is None
    most_lost = high if less_is_better else -low
    most_lost += 0.0  # makes 0.0 of -0.0

    # The whole interval lies on the better side: something is gained.
    if most_lost < 0:
        gain = Estimate(abs(change.value), *sorted((abs(low), abs(high))))
        verb = "falls" if change.value < 0 else "rises"
        return f"{name} {verb} by {amount(abs(change.value), metric)} {span(gain, metric)}"

    # Something may be lost.
    lost = amount(most_lost, metric)
    if not lost.startswith("less"):
        lost = f"at most {lost}"
    if less_is_better:
        return f"{name} rises by {lost} (95%)"
    if lost.endswith("points"):
        return f"{lost} are lost (95%)"
    return f"{lost} of {name} is lost (95%)"
