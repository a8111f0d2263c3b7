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
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from headscope.models.layouts.maps import (
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
