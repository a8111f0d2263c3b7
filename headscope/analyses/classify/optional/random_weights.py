"""The control with random weights: what the same rules label where there is nothing to find.

A :class:`StackLabels` has the labelled heads of one stack: ``encoder``, ``decoder`` or ``cross``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from headscope.analyses.classify.passes import StackLabels
from headscope.analyses.classify.result import ClassifyResult, ControlResult
from headscope.analyses.classify.roles import PAIR, roles_of
from headscope.analyses.classify.scores import HeadResult


def with_random_weights(
    result: ClassifyResult,
    random: Sequence[StackLabels],
    *,
    seed: int,
    labels: Mapping[str, Sequence[str]],
) -> ClassifyResult:
    """Add the counts of roles in the same architecture with random weights of this seed.

    ``random`` are that network's labelled heads; ``labels`` are the labels of a user's pairs that
    are roles of each stack's heads.
    """
    heads: list[HeadResult] = []
    by_stack = {}
    for stack_labels in random:
        stack = stack_labels.corpus.stack
        stack_heads = stack_labels.heads
        heads += stack_heads
        by_stack[stack] = {"heads": len(stack_heads), **_counts(stack_heads, [stack], labels)}
    control = replace(
        result.control or ControlResult(),  # which may have the control with swapped trees
        seed=seed,
        heads=len(heads),
        roles=_counts(heads, list(by_stack), labels),
        false_positives=tuple(_false_positives(heads)),
        by_stack=by_stack if len(by_stack) > 1 else {},
    )
    return replace(result, control=control)


def _counts(
    heads: Sequence[HeadResult], stacks: Sequence[str], labels: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """Count the heads of each role that heads of these stacks could have."""
    labels_of_stacks: list[str] = []
    for stack in stacks:
        labels_of_stacks += labels[stack]
    possible = roles_of(*stacks, labels=labels_of_stacks)
    return {role.key: sum(role.key in head.roles for head in heads) for role in possible}


def _false_positives(heads: Sequence[HeadResult]) -> Iterator[str]:
    """Name the labels that random weights cannot have earned: no tree or word is known to them."""
    for head in heads:
        for label in head.labels:
            if label.role in ("syntactic", "rare") or label.role.startswith(PAIR):
                yield f"{head.name} {label.role} {label.detail}".strip()
