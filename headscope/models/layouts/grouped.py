"""Keys and values that several heads share (grouped-query attention).

Of ``n_heads`` heads in groups of ``size``, heads ``g * size`` to ``(g + 1) * size - 1`` read the
g-th keys and values. These are removed only with the last head that reads them.

References
----------
Ainslie et al. 2023, arXiv:2305.13245, section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscope.models.layouts.forwards import extend
from headscope.models.layouts.maps import HeadRows

#: Attribute of a module that lost heads: how many heads shared a key before.
_GROUP = "headscope_group"


def group_size(module: nn.Module) -> int:
    """Return how many heads share a key, or shared it before any was removed; 1 in most models."""
    size: int = vars(module).get(_GROUP, getattr(module, "num_key_value_groups", 1))
    return size


def groups_of(heads: Sequence[int], size: int) -> list[int]:
    """List the groups that some heads belong to, in order."""
    return sorted({head // size for head in heads})


@dataclass(frozen=True)
class GroupRows(HeadRows):
    """A stored tensor of keys or values in which a group of heads owns rows."""

    group: int = 1  # Heads that share them, before any was removed

    def rows(self, present: Sequence[int], heads: Sequence[int]) -> Tensor:
        """Return the rows that only ``heads`` own; parameters as in HeadRows."""
        groups = groups_of(present, self.group)
        needed = {head // self.group for head in present if head not in heads}
        return super().rows(groups, [group for group in groups if group not in needed])


def rows_of_groups(linear: nn.Module, width: int, group: int) -> list[HeadRows]:
    """List what groups of heads own of a map of keys or of values: its rows and its bias."""
    return [GroupRows(linear, name, width, group=group) for name in ("weight", "bias")]


def ungroup(module: nn.Module, maps: Sequence[nn.Module], kv_heads: Sequence[int]) -> None:
    """Let a module whose groups are uneven give each head its keys and values.

    ``maps`` make the keys and the values; ``kv_heads`` says which of them each head reads.
    """
    attention: Any = module
    vars(attention)[_GROUP] = group_size(attention)
    attention.num_key_value_groups = 1
    for linear in maps:
        extend(linear, _EachHead)
        vars(linear)["headscope_kv_heads"] = tuple(kv_heads)


class _EachHead:
    """A map of shared keys or values that returns those of every head, not of every group."""

    headscope_extends = True
    headscope_kv_heads: tuple[int, ...]

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, pos, n_heads * d_head)."""
        shared: Tensor = super().forward(x)  # type: ignore[misc]
        if not self.headscope_kv_heads:  # a layer that has lost all its heads keeps no rows either
            return shared
        by_group = shared.chunk(len(set(self.headscope_kv_heads)), dim=-1)
        return torch.cat([by_group[group] for group in self.headscope_kv_heads], dim=-1)
