"""What is said of the scores on repeated random tokens: what they were measured on, or why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headscope.analyses.classify.passes import StackLabels
from headscope.analyses.classify.repeats import PLACES, Repeats
from headscope.analyses.classify.result import ClassifyResult


def with_prefix_matching(
    result: ClassifyResult,
    repeats: Repeats | None,
    random: Sequence[StackLabels],
    stacks: Sequence[str],
) -> ClassifyResult:
    """Say what the heads' scores were measured on, with the largest gains of random weights.

    ``repeats`` are the sequences that were read; None where there is room for too few. ``random``
    are the labelled heads of the network with random weights, where that was measured.
    """
    if repeats is None:
        return _not_measured(result, "too few tokens")
    if repeats.stack not in stacks:
        return _not_measured(result, f"only the {repeats.stack} reads random tokens")
    random_scores = []
    for stack_labels in random:
        random_scores += [head.prefix for head in stack_labels.heads if head.prefix is not None]
    largest_gains = {}
    if random_scores:
        for name in PLACES:
            gains = [float(getattr(score, name).gain) for score in random_scores]
            largest_gains[name] = max(gains)
    return replace(result, prefix=repeats.described(largest_gains))


def _not_measured(result: ClassifyResult, reason: str) -> ClassifyResult:
    """Say in a result why there are no scores."""
    return replace(result, untestable={**result.untestable, "prefix matching": reason})
