"""From sums to labelled heads: every role is judged, and each head's result gathered.

What is judged is the :class:`Evidence` of one stack: sums over the corpus, and thresholds. A label
needs three things: the score reaches its threshold, it beats its baseline, and the
Benjamini-Hochberg adjusted p-value of that comparison is at most q, over all heads.

:func:`judge` asks each role's own test, which is in its module of ``roles/``; roles that are just a
mean over queries have none, and share the test in this file. Below it: which roles the corpus
cannot show, and the control with other sentences' trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headscope.analyses.classify.evidence import Evidence, HeadIndex, HeadNumbers, Judged
from headscope.analyses.classify.result import SwappedControl
from headscope.analyses.classify.roles import (
    NO_ROLE,
    Role,
    Thresholds,
    roles_of,
    roles_with_keys,
)
from headscope.analyses.classify.scores import HeadResult, Label
from headscope.analyses.classify.sums import HeadMeasures
from headscope.analyses.classify.syntactic import Syntactic
from headscope.analyses.classify.two_halves import judge_relations
from headscope.core.accumulator import Array
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import adjust, finite, share_interval, t_p

#: What the heads of each layer are called: original indices, with gaps where heads were removed.
HeadIds = Sequence[Sequence[int]]


def existing(shape: tuple[int, ...], head_ids: HeadIds) -> Array:
    """Return which entries of sums of this shape, (n_layers, n_heads), belong to a head.

    Heads that are left come first: shape (2, 3), head_ids [[0, 2], [1]] -> [[1, 1, 0], [1, 0, 0]].
    """
    exists = np.zeros(shape, dtype=bool)
    for layer, ids in enumerate(head_ids):
        exists[layer, : len(ids)] = True
    return exists


def judge(evidence: Evidence, head_ids: HeadIds) -> tuple[HeadResult, ...]:
    """Judge all roles of a stack, and return a :class:`HeadResult` for each head, in order."""
    possible = roles_of(evidence.stack, labels=evidence.labels)
    # What is measured of each head, by the name of the field in its result; and what it earned.
    fields = _means_by_head(evidence)
    labels: dict[HeadIndex, list[Label]] = {head: [] for head in evidence.heads}
    for judged in _judgements(evidence, possible):
        fields[judged.head][judged.field] = judged.score
        labels[judged.head] += judged.labels
    pictures: list[list[str]] | None = None
    if isinstance(evidence.sums, HeadMeasures):
        pictures = evidence.sums.mean_pattern.pictures()

    # One result a head, its roles in the order of priority.
    results = []
    for layer, index in evidence.heads:
        earned = {label.role for label in labels[layer, index]}
        roles = tuple(role.key for role in possible if role.key in earned)
        results.append(
            HeadResult(
                layer=layer,
                head=head_ids[layer][index],
                stack=evidence.stack,
                primary=roles[0] if roles else NO_ROLE.key,
                roles=roles,
                labels=tuple(labels[layer, index]),
                mean_pattern=pictures[layer][index] if pictures else "",
                **fields[layer, index],
            )
        )
    return tuple(results)


def _means_by_head(evidence: Evidence) -> dict[HeadIndex, dict[str, Any]]:
    """Return every head's means by name, but for those that get a field with an interval.

    With its scores on repeated tokens, where there are some.
    """
    with_interval = {"alignment", "diagonal", "first_token"}
    with_interval |= {role.key for role in roles_with_keys()}
    means = evidence.means.means()
    fields: dict[HeadIndex, dict[str, Any]] = {head: {} for head in evidence.heads}
    for head in evidence.heads:
        if evidence.repeats is not None:
            fields[head]["prefix"] = evidence.repeats.score(head)
        for name, mean in zip(evidence.means.quantities, means[head], strict=True):
            if name not in with_interval:
                fields[head][name] = finite(mean)
    return fields


def _judgements(evidence: Evidence, possible: Sequence[Role]) -> Iterator[Judged]:
    """Yield what the roles' own tests say, then what the test of means says.

    Roles with the same test, such as both directions of monotonic heads, are judged by it once.
    """
    own_tests = dict.fromkeys(role.judge for role in possible if role.judge is not None)
    for test in own_tests:
        yield from test(evidence)
    yield from _judge_means(evidence, possible)


def _judge_means(evidence: Evidence, possible: Sequence[Role]) -> Iterator[Judged]:
    """Judge every head on every role that is a mean over queries.

    Yields the labels, and the mean weights on the keys that registered roles name.
    """
    weights: dict[HeadIndex, dict[str, Estimate]] = {head: {} for head in evidence.heads}
    labels: dict[HeadIndex, list[Label]] = {head: [] for head in evidence.heads}
    for role in possible:
        if not role.quantity:
            continue
        numbers = _mean_numbers(role, evidence)
        low, high = numbers.interval
        if role.keys is not None:
            for head in evidence.heads:
                weights[head][role.key] = Estimate(
                    finite(numbers.values[head]), finite(low[head]), finite(high[head])
                )
        # With the threshold as baseline nothing else says that the corpus is too small.
        if numbers.against == "threshold" and why_untestable(role, evidence):
            continue
        least = role.least(evidence.thresholds)
        mean = numbers.values
        reached = mean > least if role.strict else mean >= least
        significant = numbers.p_adjusted <= evidence.thresholds.q
        earned = reached & (mean > numbers.baseline) & significant
        details = role.details(evidence.means) if role.details else np.full(mean.shape, "")
        for head in evidence.heads:
            if earned[head]:
                labels[head].append(numbers.label(role.key, head, str(details[head])))
    for head in evidence.heads:
        yield Judged(head, "registered", weights[head], labels[head])


def _mean_numbers(role: Role, evidence: Evidence) -> HeadNumbers:
    """Test the mean of a role against uniform attention, or against the threshold.

    The threshold is the baseline where the mean under uniform attention is not known.
    """
    means = evidence.means
    baseline = role.least(evidence.thresholds)
    against = "threshold"
    if role.quantity in means.baselines:
        baseline = float(np.nan_to_num(means.expected(role.quantity)))
        against = "uniform"
    mean = means.mean(role.quantity)
    error = means.error(role.quantity)
    units = means.effective(role.quantity)
    return HeadNumbers(
        values=mean,
        interval=share_interval(mean, error, units),
        p_adjusted=adjust(t_p(mean, error, baseline, units), evidence.exists),
        baseline=baseline,
        against=against,
    )


#: Roles of decoders that targets of pairs never show: these have no trees, and only language models
#: read random tokens.
_OF_SENTENCES = ("syntactic", "induction")


def untestable(evidence: Evidence) -> dict[str, str]:
    """Return the roles that no head could have earned, each with the reason.

    "Not tested" is not "no head has it". Roles that do not apply to the stack are not among them.
    """
    reasons = {}
    for role in roles_of(evidence.stack, labels=evidence.labels):
        if evidence.reads_targets and role.key in _OF_SENTENCES:
            continue
        reason = why_untestable(role, evidence)
        if reason:
            reasons[role.key] = reason
    return reasons


def why_untestable(role: Role, evidence: Evidence) -> str:
    """Say why no head could have earned a role; empty where one could."""
    if role.untestable is not None:
        return role.untestable(evidence)
    if role.keys is not None and not evidence.sees(role.key):
        return "no token sees a key of this role"
    return evidence.too_few_sentences


def judge_swapped(
    swapped: Syntactic, kernel_hits: Array, thresholds: Thresholds, head_ids: HeadIds
) -> SwappedControl:
    """Count the labels against other sentences' trees or pairs: false positives, all of them.

    ``kernel_hits`` are the kernels' hits of the trials in ``swapped``.
    """
    exists = existing(swapped.hits.shape[1:], head_ids)
    tests = judge_relations(swapped, kernel_hits, exists, thresholds)
    confirmed = np.array([test.confirmed for test in tests]).reshape(-1, *exists.shape)
    has_one = confirmed.any(axis=0)  # (n_layers, n_heads)
    return SwappedControl(labels=int(confirmed.sum()), heads=int(has_one.sum()))
