"""Maps of q, k and v that are stored as one, and how its rows are told apart.

A fused map is a sequence of equal blocks of rows. Each block has rows of q, then of k, then of v::

    stacked    one block of all heads    q0 q1 q2 k0 k1 k2 v0 v1 v2    (GPT-2, ModernBERT)
    by head    a block for each head     q0 k0 v0, q1 k1 v1, q2 k2 v2  (DeBERTa)
    grouped    a block for each group    q0 q1 k0 v0, q2 q3 k1 v1      (heads that share k and v)

A :class:`FusedMap` is one of the three maps within it; a :class:`Fused` says how a layout stacks
them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscope.models.layouts.forwards import extend
from headscope.models.layouts.grouped import groups_of
from headscope.models.layouts.maps import (
    HEAD_IDS,
    HeadRows,
    InputMaps,
    LinearMap,
    is_linear,
    rows_of_linear,
    split,
)


@dataclass(frozen=True)
class FusedMap(LinearMap):
    """The map of q, of k or of v, as rows of a map that holds all three."""

    index: int = 0  # 0 for q, 1 for k, 2 for v
    block: int | None = None  # Rows of a block; None where the whole map is one
    #: The proportions of a block's rows of q, k and v; (2, 1, 1) where two heads share a key.
    shares: tuple[int, int, int] = (1, 1, 1)

    @property
    def weight(self) -> Tensor:
        """The map as ``nn.Linear`` has it, (n_out, n_in): a view of a stacked map, else a copy."""
        return self._rows(super().weight, 0)

    @property
    def bias(self) -> Tensor | None:
        """Its bias, (n_out,); None where it has none."""
        stored = super().bias
        return None if stored is None else self._rows(stored, 0)

    @property
    def stored_entries(self) -> int:
        """How many entries of the fused W are this map's."""
        return self.weight.numel()

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``x W + b`` for x (..., n_in)."""
        return F.linear(x, self.weight, self.bias)

    def leaving(self, returned: Tensor) -> Tensor:
        """Pick this map's outputs from those of all three, (batch, pos, n_out)."""
        if returned.shape[-1] != len(super().weight):  # extended: keys of each head (phi3.py)
            return FusedMap(self.module, self.index)._rows(returned, -1)
        return self._rows(returned, -1)

    def _rows(self, tensor: Tensor, axis: int) -> Tensor:
        """Pick this map's entries along the axis that counts the fused map's rows.

        Blocks of 6 rows with shares (1, 1, 1): k (index 1) is rows 2 and 3 of each block.
        """
        axis %= tensor.dim()
        block = self.block
        if block is None:  # the whole map, which has no rows where no head is left
            block = max(1, tensor.shape[axis])
        unit = block // sum(self.shares)
        first_row = sum(self.shares[: self.index]) * unit
        n_rows = self.shares[self.index] * unit
        blocks = split(tensor, axis, block)  # (..., blocks, rows of a block, ...)
        return blocks.narrow(axis + 1, first_row, n_rows).flatten(axis, axis + 1)


@dataclass(frozen=True)
class Fused(ABC):
    """How a layout keeps q, k and v in one map."""

    name: str  # The attribute of the attention module that is the fused map

    def maps(self, module: nn.Module, d_head: int) -> InputMaps | None:
        """Return the maps of q, k and v; None if the module has no such map."""
        fused: Any = getattr(module, self.name, None)
        if not is_linear(fused):
            return None
        block = self.block(d_head)
        shares = self.shares(module)
        return (
            FusedMap(fused, 0, block, shares),
            FusedMap(fused, 1, block, shares),
            FusedMap(fused, 2, block, shares),
        )

    def block(self, d_head: int) -> int | None:
        """Return the rows of a block; None where the whole map is one."""
        return None

    def shares(self, module: nn.Module) -> tuple[int, int, int]:
        """Return the proportions of a block's rows of q, k and v."""
        return (1, 1, 1)

    @abstractmethod
    def rows(self, module: nn.Module, d_head: int) -> list[HeadRows]:
        """List the stored tensors in which a head owns rows."""


class Stacked(Fused):
    """All rows of q, then all of k, then all of v."""

    def rows(self, module: nn.Module, d_head: int) -> list[HeadRows]:
        """List weight and bias, in each third of which a head has ``d_head`` rows."""
        return rows_of_linear(getattr(module, self.name), d_head, stacked_maps=3)


class ByHead(Fused):
    """The rows of a head's q, k and v side by side, head after head."""

    def block(self, d_head: int) -> int | None:
        """Return the rows of one head's q, k and v."""
        return 3 * d_head

    def rows(self, module: nn.Module, d_head: int) -> list[HeadRows]:
        """List weight and bias, in which a head has ``3 * d_head`` rows side by side."""
        return rows_of_linear(getattr(module, self.name), 3 * d_head)


# --- groups whose heads may differ in number ------------------------------------------------------


@dataclass(frozen=True)
class ByGroup(Fused):
    """A block for each group of heads: its queries, then the key and the value that they share.

    A group that has lost heads has a smaller block: of heads 0, 1 and 3 in groups of 2, the rows
    are q0 q1 k0 v0, q3 k1 v1.
    """

    #: Returns how many heads of a module share a key, or shared one before any was removed.
    heads_per_group: Callable[[Any], int]

    def maps(self, module: nn.Module, d_head: int) -> InputMaps | None:
        """Return the maps of q, k and v, with one key and one value for each group."""
        attention: Any = module
        fused: Any = getattr(module, self.name, None)
        if not is_linear(fused):
            return None
        all_heads = range(attention.num_heads)
        heads = list(getattr(module, HEAD_IDS, all_heads))
        starts = _starts(heads, self.heads_per_group(module), d_head)
        keys = starts.keys.values()
        q = PickedMap(fused, rows=_ranges(starts.queries.values(), d_head))
        k = PickedMap(fused, rows=_ranges(keys, d_head))
        v = PickedMap(fused, rows=_ranges((row + d_head for row in keys), d_head))
        return q, k, v

    def rows(self, module: nn.Module, d_head: int) -> list[HeadRows]:
        """List weight and bias, of which a head owns rows, and the last of a group the rest."""
        fused = getattr(module, self.name)
        size = self.heads_per_group(module)
        return [BlockRows(fused, name, d_head, heads_per_group=size) for name in ("weight", "bias")]

    def ungroup(self, module: nn.Module, heads: Sequence[int], size: int, d_head: int) -> None:
        """Let the fused map return q, k and v of each of some heads, head after head."""
        starts = _starts(heads, size, d_head)
        rows: list[int] = []
        for head in heads:
            key = starts.keys[head // size]
            rows += _ranges([starts.queries[head], key, key + d_head], d_head)
        extend(getattr(module, self.name), _HeadByHead, headscope_rows=tuple(rows))


class _Starts(NamedTuple):
    """The first row of each head's queries, and of each group's key; the value follows the key."""

    queries: dict[int, int]
    keys: dict[int, int]


def _starts(heads: Sequence[int], size: int, d_head: int) -> _Starts:
    """Find where the blocks of some heads, in groups of ``size``, have their parts."""
    queries: dict[int, int] = {}
    keys: dict[int, int] = {}
    row = 0
    for group in groups_of(heads, size):
        for head in heads:
            if head // size == group:
                queries[head] = row
                row += d_head
        keys[group] = row
        row += 2 * d_head
    return _Starts(queries, keys)


def _ranges(starts: Iterable[int], width: int) -> tuple[int, ...]:
    """List the rows of parts that begin at some rows: 0 and 6 of width 2 -> (0, 1, 6, 7)."""
    rows: list[int] = []
    for start in starts:
        rows += range(start, start + width)
    return tuple(rows)


@dataclass(frozen=True)
class PickedMap(LinearMap):
    """A map that is some rows of another one, in an order of its own."""

    rows: tuple[int, ...] = ()

    @property
    def weight(self) -> Tensor:
        """Its rows, (n_out, n_in): a copy."""
        return self._pick(super().weight, 0)

    @property
    def bias(self) -> Tensor | None:
        """Its biases, (n_out,); None where it has none."""
        stored = super().bias
        return None if stored is None else self._pick(stored, 0)

    @property
    def in_features(self) -> int:
        """Width of x."""
        return super().weight.shape[1]

    @property
    def out_features(self) -> int:
        """Width of ``x W + b``."""
        return len(self.rows)

    @property
    def stored_entries(self) -> int:
        """How many entries of the fused W are this map's."""
        return self.out_features * self.in_features

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``x W + b`` for x (..., n_in)."""
        return F.linear(x, self.weight, self.bias)

    def leaving(self, returned: Tensor) -> Tensor:
        """Pick this map's outputs, (batch, pos, n_out)."""
        return self._pick(returned, -1)

    def _pick(self, tensor: Tensor, axis: int) -> Tensor:
        """Pick the rows along an axis."""
        return tensor.index_select(axis, torch.tensor(self.rows, device=tensor.device).long())


@dataclass(frozen=True)
class BlockRows(HeadRows):
    """A stored tensor of blocks, one for each group of heads."""

    heads_per_group: int = 1  # Before any was removed

    def rows(self, present: Sequence[int], heads: Sequence[int]) -> Tensor:
        """Return the queries' rows of ``heads``, and key and value of groups without another."""
        starts = _starts(present, self.heads_per_group, self.width)
        other_heads = [head for head in present if head not in heads]
        still_read = groups_of(other_heads, self.heads_per_group)
        rows = list(_ranges((starts.queries[head] for head in heads), self.width))
        for group, key in starts.keys.items():
            if group not in still_read:
                rows += _ranges([key], 2 * self.width)
        return torch.tensor(sorted(rows), dtype=torch.long)


class _HeadByHead:
    """An extension: a map of groups that returns q, k and v of each head, head after head."""

    headscope_extends = True
    headscope_rows: tuple[int, ...]

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, pos, n_heads * 3 * d_head)."""
        by_group: Tensor = super().forward(x)  # type: ignore[misc]
        return by_group[..., list(self.headscope_rows)]
