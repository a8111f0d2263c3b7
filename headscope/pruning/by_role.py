"""``roles`` and ``confidence``: heads chosen by what the classification says they do."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headscope.pruning.method import Given, Ranking, Role
from headscope.pruning.units import Units

__all__ = ["confidence", "keep_roles", "roles"]


def roles(given: Given) -> Ranking:
    """Keep heads with a role, the strongest first.

    The value is the largest gain of a labelled score over its baseline, plus 1 for having a label
    at all; heads without a role go first, the least confident of them before the others.

    References
    ----------
    Voita et al. 2019, arXiv:1905.09418: which roles survive when 17 of 48 heads are left.
    """
    given.need_roles("roles")

    def value(role: Role) -> float:
        # Confidence is at most 1, so it never lifts a head over one with a role.
        return 1.0 + role.strength if role.roles else role.confidence - 1.0

    return Ranking(_largest(given, {head: value(role) for head, role in given.roles.items()}))


def confidence(given: Given) -> Ranking:
    """Mean largest attention weight on a content token (Voita et al. 2019, section 4)."""
    given.need_roles("confidence")
    return Ranking(_largest(given, {head: r.confidence for head, r in given.roles.items()}))


def keep_roles(units: Units, found: Mapping[tuple[int, int], Role], wanted: set[str]) -> list[int]:
    """List the units to remove so that those with one of the ``wanted`` roles are left."""
    return [
        unit
        for unit, heads in enumerate(units.members)
        if not any(wanted & set(found[head].roles) for head in heads if head in found)
    ]


def _largest(given: Given, values: dict[tuple[int, int], float]) -> Tensor:
    """Largest value among the heads of each unit."""
    return torch.tensor(
        [max(values.get(head, 0.0) for head in heads) for heads in given.units.members],
        dtype=torch.float64,
    )
