"""Separate maps q_proj, k_proj, v_proj and o_proj, with rotary positions and shared keys.

Several heads may share one head of keys and values (grouped-query attention): of ``n_heads`` heads,
heads ``g * group`` to ``(g + 1) * group - 1`` read the g-th. These rows go only with the last head
that reads them.

References
----------
Ainslie et al. 2023, arXiv:2305.13245, section 2.2.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headscope.models.layouts.layout import AttentionInput, Heads, Layout, Projections, extend
from headscope.models.layouts.maps import HeadRows, columns_of_linear, rows_of_linear
from headscope.models.layouts.rotation import rotated

if TYPE_CHECKING:
    from headscope.models.layouts.sites import AttentionSite

#: Attribute of a module that lost heads: how many heads shared a key before.
_GROUP = "headscope_group"


@dataclass(frozen=True)
class GroupRows(HeadRows):
    """A stored map of keys or values in which a group of heads owns rows."""

    group: int = 1  # Heads that share them, before any was removed

    def rows(self, there: Sequence[int], heads: Sequence[int]) -> Tensor:
        """Return the places that nobody but ``heads`` owns; parameters as in HeadRows."""
        groups = _groups(there, self.group)
        needed = {head // self.group for head in there if head not in heads}
        return super().rows(groups, [group for group in groups if group not in needed])


@dataclass(frozen=True)
class RotaryLayout(Layout):
    """Four separate maps; q and k are rotated, k and v may be shared by groups of heads."""

    q: str = "q_proj"
    k: str = "k_proj"
    v: str = "v_proj"
    out: str = "o_proj"

    def stored(self, module: nn.Module, projections: Projections, d_head: int) -> list[HeadRows]:
        """List rows of heads, and rows of groups of heads."""
        p, group = projections, _group(module)
        shared = [
            GroupRows(linear.module, name, d_head, group=group)
            for linear in (p.k, p.v)
            for name in ("weight", "bias")
        ]
        own = rows_of_linear(p.q.module, d_head)
        return [*own, *shared, columns_of_linear(p.out.module, d_head)]

    def shared_by(self, module: nn.Module, head_ids: Sequence[int]) -> list[int] | None:
        """Say which of the stored keys and values each head reads."""
        group = _group(module)
        groups = _groups(head_ids, group)
        return None if group == 1 else [groups.index(head // group) for head in head_ids]

    def place(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Rotate q and k, in their own dtype; give every head its keys and values."""
        q, k, v = rotated(heads, inputs)
        places = self.shared_by(site.module, site.head_ids)
        if places is not None and k.shape[1] < q.shape[1]:
            k, v = k[:, places], v[:, places]
        return Heads(q, k, v)

    def fit(self, module: nn.Module, kept: Collection[int], total: int) -> None:
        """Let the maps of a module whose groups are uneven give each head its keys and values."""
        places = self.shared_by(module, list(kept))
        if places is None:
            return
        own: Any = module
        vars(own)[_GROUP] = _group(own)
        own.num_key_value_groups = 1
        for name in (self.k, self.v):
            linear = getattr(own, name)
            extend(linear, _EachHead)
            vars(linear)["headscope_places"] = tuple(places)


class _EachHead:
    """A map of shared keys or values that returns those of every head, not of every group."""

    headscope_extends = True
    headscope_places: tuple[int, ...]

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, pos, n_heads * d_head)."""
        shared: Tensor = super().forward(x)  # type: ignore[misc]
        parts = shared.chunk(max(1, len(set(self.headscope_places))), dim=-1)
        # A layer that has lost all its heads keeps no rows either.
        return torch.cat([parts[place] for place in self.headscope_places] or [shared], dim=-1)


def _group(module: nn.Module) -> int:
    """Return how many heads share a key, or shared it before any was removed."""
    found: int = vars(module).get(_GROUP, getattr(module, "num_key_value_groups", 1))
    return found


def _groups(heads: Sequence[int], group: int) -> list[int]:
    """List the groups that some heads belong to, in order."""
    return sorted({head // group for head in heads})
