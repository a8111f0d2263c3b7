"""CodeGen: one map of q, v and k, in four parts of as many heads each.

It was trained on four machines in parallel, and keeps what each had as a block of rows. Of eight
heads, two to a part, the first block is::

    q0 q1 v0 v1 k0 k1

Its forward cuts every fused output into four. A module that has lost heads, of which the parts no
longer have as many each, hands it the same q, v and k, cut evenly wherever that is.

References
----------
Nijkamp et al. 2023, arXiv:2203.13474.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscope.core.errors import UnsupportedModelError
from headscope.models.layouts.forwards import add_only_bias, extend
from headscope.models.layouts.fused import Fused, PickedMap
from headscope.models.layouts.grouped import groups_of
from headscope.models.layouts.layout import Layout
from headscope.models.layouts.maps import (
    HEAD_IDS,
    HEADS_BEFORE,
    HeadRows,
    InputMaps,
    is_linear,
)

_PARTS = 4
_MAPS = 3  # q, v and k, in this order


class ByPart(Fused):
    """A block for each part: the queries of its heads, then their values, then their keys."""

    def maps(self, module: nn.Module, d_head: int) -> InputMaps | None:
        """Return the maps of q, k and v; None if the module has no such map."""
        attention: Any = module
        fused: Any = getattr(module, self.name, None)
        if not is_linear(fused):
            return None
        heads = getattr(module, HEAD_IDS, range(attention.num_attention_heads))
        of_q, of_v, of_k = _first_rows(heads, _heads_per_part(module), d_head)
        q = PickedMap(fused, rows=_rows(of_q, d_head))
        k = PickedMap(fused, rows=_rows(of_k, d_head))
        v = PickedMap(fused, rows=_rows(of_v, d_head))
        return q, k, v

    def rows(self, module: nn.Module, d_head: int) -> list[HeadRows]:
        """List the weight, of which a head owns rows; there is no bias."""
        fused = getattr(module, self.name)
        return [PartRows(fused, "weight", d_head, heads_per_part=_heads_per_part(module))]


def _heads_per_part(module: Any) -> int:
    """Return how many heads each part has, or had before any was removed."""
    n_heads: int = getattr(module, HEADS_BEFORE, module.num_attention_heads)
    return n_heads // _PARTS


def _first_rows(heads: Sequence[int], size: int, d_head: int) -> list[list[int]]:
    """List where each head's queries begin, then each head's values, then each head's keys."""
    first_rows: list[list[int]] = [[] for _ in range(_MAPS)]
    row = 0
    for part in groups_of(heads, size):
        n_heads = sum(head // size == part for head in heads)
        for rows in first_rows:
            for _ in range(n_heads):
                rows.append(row)
                row += d_head
    return first_rows


def _rows(first_rows: Iterable[int], d_head: int) -> tuple[int, ...]:
    """List the rows of heads that begin at some rows."""
    rows: list[int] = []
    for first_row in first_rows:
        rows += range(first_row, first_row + d_head)
    return tuple(rows)


@dataclass(frozen=True)
class PartRows(HeadRows):
    """A stored tensor with a block for each part."""

    heads_per_part: int = 1  # Before any head was removed

    def rows(self, present: Sequence[int], heads: Sequence[int]) -> Tensor:
        """Return the rows of q, v and k that ``heads`` own, ascending."""
        rows: list[int] = []
        for first_rows in _first_rows(present, self.heads_per_part, self.width):
            of_heads = [first_rows[present.index(head)] for head in heads]
            rows += _rows(of_heads, self.width)
        return torch.tensor(sorted(rows), dtype=torch.long)


@dataclass(frozen=True)
class CodeGenLayout(Layout):
    """CodeGen, whose forward takes four parts of equal width."""

    def fit(self, module: Any, remaining: Collection[int], total: int) -> None:
        """Let a module run with fewer heads in some parts than in others, or without any."""
        if module.head_dim % _PARTS:
            raise UnsupportedModelError(
                f"{type(module).__name__} cuts its heads, {module.head_dim} wide, into "
                f"{_PARTS} parts, so that it cannot run with fewer of them."
            )
        extend(module, _FewerHeads)
        extend(
            module.qkv_proj,
            _EvenParts,
            headscope_heads=tuple(remaining),
            headscope_heads_per_part=total // _PARTS,
            headscope_width=module.head_dim,
        )


class _FewerHeads:
    """An extension: a CodeGen attention module without some of its heads."""

    headscope_extends = True
    num_attention_heads: int
    out_proj: nn.Module

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward if there is a head; else only add b_O."""
        if self.num_attention_heads:
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        return add_only_bias(self.out_proj, hidden_states, n_keys=hidden_states.shape[1])

    def _split_heads(self, x: Tensor, n_head: int, dim_head: int, mp_num: int) -> Tensor:
        """Join four quarters (batch, pos, 4, width), and split them by head."""
        return x.reshape(*x.shape[:-2], n_head, dim_head)


class _EvenParts:
    """An extension: a map of uneven parts that returns even ones: a quarter of q, of v and of k."""

    headscope_extends = True
    headscope_heads: tuple[int, ...]  # Those that are left, by their original index
    headscope_heads_per_part: int  # Before any was removed
    headscope_width: int  # Of a head

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, pos, 3 * n_heads * d_head)."""
        by_part: Tensor = super().forward(x)  # type: ignore[misc]
        if not self.headscope_heads:
            return by_part
        width = self.headscope_width
        quarters: list[Tensor] = []
        for first_rows in _first_rows(self.headscope_heads, self.headscope_heads_per_part, width):
            of_all_heads = by_part[..., list(_rows(first_rows, width))]
            quarters.append(of_all_heads.reshape(*x.shape[:-1], _PARTS, -1))
        return torch.cat(quarters, dim=-1).flatten(-2)
