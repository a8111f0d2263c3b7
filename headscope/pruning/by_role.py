"""``roles`` and ``confidence``: heads chosen by what the classification says they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from headscope.pruning.method import Given, Ranking
from headscope.results import HeadResult
from headscope.tasks.units import Head, Units


def roles(given: Given) -> Ranking:
    """Keep heads with a role, the strongest first.

    The value is the largest gain of a labelled score over its baseline, plus 1 for having a label
    at all; heads without a role go first, the least confident of them before the others.

    References
    ----------
    Voita et al. 2019, arXiv:1905.09418: which roles survive when 17 of 48 heads are left.
    """
    given.need_roles("roles")

    def value(found: HeadResult) -> float:
        if found.labels:
            return 1.0 + max(label.score - label.baseline for label in found.labels)
        return (found.confidence or 0.0) - 1.0  # at most 0: never above a head with a role

    return _by_largest(given, value)


def confidence(given: Given) -> Ranking:
    """Mean largest attention weight on a content token (Voita et al. 2019, section 4)."""
    given.need_roles("confidence")
    return _by_largest(given, lambda found: found.confidence or 0.0)


def keep_roles(units: Units, found: Mapping[Head, HeadResult], wanted: set[str]) -> list[int]:
    """List the units to remove so that those with one of the ``wanted`` roles are left."""
    return [
        unit
        for unit, heads in enumerate(units.members)
        if not any(wanted & set(found[head].roles) for head in heads if head in found)
    ]


def _by_largest(given: Given, value: Callable[[HeadResult], float]) -> Ranking:
    """Rank units by the largest value among their heads; 0 for a head that was not classified."""
    values = {head: value(found) for head, found in given.roles.items()}
    largest = [max(values.get(head, 0.0) for head in heads) for heads in given.units.members]
    return Ranking(torch.tensor(largest, dtype=torch.float64))
