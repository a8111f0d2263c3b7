"""Phi-3: one map of q, k and v, in which several heads share keys and values.

Its forward reads from the configuration of the whole model how many rows are queries. A module that
has lost heads therefore gets a configuration of its own (:class:`_FewerHeads`), which differs in
that number alone. Where groups have become uneven, the fused map gives each head that is left the
keys and values that it shares (:class:`_KeysOfEachHead`), as ``grouped.py`` does for separate maps.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscope.models.layouts.forwards import extend
from headscope.models.layouts.fused import Fused
from headscope.models.layouts.grouped import group_size, groups_of, ungroup
from headscope.models.layouts.layout import Layout
from headscope.models.layouts.maps import HEAD_IDS, HeadRows, split


@dataclass(frozen=True)
class StackedRows(HeadRows):
    """A tensor with rows of each head's q, then of each group's k, then of each group's v."""

    heads_per_group: int = 1  # Before any was removed

    def rows(self, present: Sequence[int], heads: Sequence[int]) -> Tensor:
        """Return the rows of the heads' q, and of k and v that no other present head reads."""
        groups = groups_of(present, self.heads_per_group)
        other_heads = [head for head in present if head not in heads]
        still_read = groups_of(other_heads, self.heads_per_group)
        places = [present.index(head) for head in sorted(heads)]
        for block in (0, 1):  # k, then v
            first_place = len(present) + block * len(groups)
            places += [
                first_place + place for place, group in enumerate(groups) if group not in still_read
            ]
        first_row = torch.tensor(places, dtype=torch.long) * self.width
        return (first_row[:, None] + torch.arange(self.width)).flatten()


class StackedGroups(Fused):
    """All rows of q, then those of the k, then of the v, that groups of heads share."""

    def shares(self, module: nn.Module) -> tuple[int, int, int]:
        """Return how many heads have queries, and how many groups keys and values."""
        size = group_size(module)
        head_ids = getattr(module, HEAD_IDS, None)
        if head_ids is None:
            return (size, 1, 1)
        n_groups = len(groups_of(head_ids, size))
        return (len(head_ids), n_groups, n_groups) if head_ids else (1, 1, 1)

    def rows(self, module: nn.Module, d_head: int) -> list[HeadRows]:
        """List weight and bias."""
        fused = getattr(module, self.name)
        size = group_size(module)
        return [
            StackedRows(fused, name, d_head, heads_per_group=size) for name in ("weight", "bias")
        ]


@dataclass(frozen=True)
class Phi3Layout(Layout):
    """Phi-3, whose forward cuts the fused output by numbers of the configuration."""

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Make a module's own forward run with the ``remaining`` of ``total`` heads."""
        assert self.fused is not None
        attention: Any = module
        head_ids = list(remaining)
        fused = getattr(module, self.fused.name)
        kv_heads = self.shared_by(module, head_ids)
        if kv_heads is not None:
            ungroup(module, [], kv_heads)
            width = attention.head_dim
            extend(
                fused, _KeysOfEachHead, headscope_kv_heads=tuple(kv_heads), headscope_width=width
            )
        attention.num_key_value_heads = len(head_ids)
        extend(module, _FewerHeads, headscope_n_heads=len(head_ids))


class _FewerHeads:
    """An extension: a Phi-3 attention module without some of its heads."""

    headscope_extends = True
    headscope_n_heads: int  # How many are left

    @property
    def config(self) -> Any:
        """The model's configuration, as it is now, but with this module's number of heads."""
        changed = copy.copy(vars(self)["config"])
        changed.num_attention_heads = self.headscope_n_heads
        return changed


class _KeysOfEachHead:
    """An extension: a fused map of shared keys and values that returns them for each head."""

    headscope_extends = True
    headscope_kv_heads: tuple[int, ...]  # Which of the stored keys each head reads
    headscope_width: int  # Of a head

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, pos, 3 * n_heads * d_head): q, k and v of all heads that are left."""
        stacked: Tensor = super().forward(x)  # type: ignore[misc]
        kv_heads = list(self.headscope_kv_heads)
        if not kv_heads:  # a layer that has lost all its heads keeps no rows either
            return stacked
        by_head = split(stacked, -1, self.headscope_width)
        n_heads = len(kv_heads)
        n_groups = len(set(kv_heads))
        q, k, v = torch.split(by_head, [n_heads, n_groups, n_groups], dim=-2)
        return torch.cat([q, k[..., kv_heads, :], v[..., kv_heads, :]], dim=-2).flatten(-2)
