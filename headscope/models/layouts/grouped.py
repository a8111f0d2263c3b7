"""Keys and values that several heads share (grouped-query attention).

Six heads in groups of 2: heads 0 and 1 read the keys and values of group 0, heads 2 and 3 those of
group 1, heads 4 and 5 those of group 2. A group's keys and values are removed only with the last
head that reads them. Where groups have become uneven, as with heads 0, 1 and 4, transformers cannot
run the module any more; :func:`ungroup` then gives each head keys and values of its own.

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

#: Attribute of a module that lost heads: how many heads shared keys before.
GROUP = "headscope_group"


def group_size(module: nn.Module) -> int:
    """Return how many heads share keys, or shared them before any was removed; 1 in most models."""
    size_now: int = getattr(module, "num_key_value_groups", 1)
    size_before: int = getattr(module, GROUP, size_now)
    return size_before


def groups_of(heads: Sequence[int], size: int) -> list[int]:
    """List the groups that some heads belong to: heads 0, 1, 4 in groups of 2 -> [0, 2]."""
    return sorted({head // size for head in heads})


@dataclass(frozen=True)
class GroupRows(HeadRows):
    """A stored tensor of keys or values in which a group of heads owns rows."""

    heads_per_group: int = 1  # Before any was removed

    def rows(self, present: Sequence[int], heads: Sequence[int]) -> Tensor:
        """Return the rows that no other present head reads: those that go when ``heads`` go."""
        groups = groups_of(present, self.heads_per_group)
        other_heads = [head for head in present if head not in heads]
        still_read = groups_of(other_heads, self.heads_per_group)
        return super().rows(groups, [group for group in groups if group not in still_read])


def rows_of_groups(linear: nn.Module, width: int, heads_per_group: int) -> list[HeadRows]:
    """List what groups of heads own of a map of keys or of values: its rows and its bias."""
    return [
        GroupRows(linear, name, width, heads_per_group=heads_per_group)
        for name in ("weight", "bias")
    ]


def ungroup(module: nn.Module, maps: Sequence[nn.Module], kv_heads: Sequence[int]) -> None:
    """Let a module whose groups are uneven give each head its keys and values.

    ``maps`` are those of the keys and of the values. ``kv_heads`` says for each head that is left
    which of the groups that are left it reads: heads 0, 1, 4 in groups of 2 -> [0, 0, 1].
    """
    attention: Any = module
    setattr(attention, GROUP, group_size(attention))
    attention.num_key_value_groups = 1
    for linear in maps:
        extend(linear, _EachHead, headscope_kv_heads=tuple(kv_heads))


class _EachHead:
    """An extension: a map of shared keys or values that returns them for each head."""

    headscope_extends = True
    headscope_kv_heads: tuple[int, ...]

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, pos, n_heads * d_head)."""
        shared: Tensor = super().forward(x)  # type: ignore[misc]
        if not self.headscope_kv_heads:  # a layer that has lost all its heads keeps no rows either
            return shared
        n_groups = len(set(self.headscope_kv_heads))
        by_group = shared.chunk(n_groups, dim=-1)  # each (batch, pos, d_head)
        return torch.cat([by_group[group] for group in self.headscope_kv_heads], dim=-1)
