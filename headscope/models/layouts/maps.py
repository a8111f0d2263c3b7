"""What attention layouts are made of: stored maps, the rows of each head, and a call's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from headscope.attention import Mask


@dataclass(frozen=True)
class LinearMap:
    """One of the maps ``x W + b`` of an attention module."""

    #: Where it is stored: an ``nn.Linear``, or the ``Conv1D`` of GPT-2, which keeps W transposed.
    module: Any
    #: Which one, where maps of equal size are stored one behind the other (fused q, k, v).
    part: int = 0
    parts: int = 1

    @property
    def weight(self) -> Tensor:
        """The map as ``nn.Linear`` has it, (n_out, n_in): a view of what is stored."""
        stored: Tensor = self.module.weight
        return self._slice(stored.t() if isinstance(self.module, Conv1D) else stored)

    @property
    def bias(self) -> Tensor | None:
        """Its bias, (n_out,): a view; None where it has none."""
        stored: Tensor | None = self.module.bias
        return None if stored is None else self._slice(stored)

    @property
    def in_features(self) -> int:
        """Width of x."""
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        """Width of ``x W + b``."""
        return self.weight.shape[0]

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``x W + b`` for x (..., n_in)."""
        if self.parts > 1:
            return F.linear(x, self.weight, self.bias)
        out: Tensor = self.module(x)
        return out

    def entering(self, argument: Tensor) -> Tensor:
        """Turn what the stored module is called with into x (batch, pos, n_in)."""
        return argument

    def leaving(self, returned: Tensor) -> Tensor:
        """Turn what the stored module returns into (batch, pos, n_out)."""
        return returned if self.parts == 1 else returned.chunk(self.parts, dim=-1)[self.part]

    def fit(self) -> None:
        """Let the stored map run without input columns, where its own forward cannot."""

    def _slice(self, stored: Tensor) -> Tensor:
        if self.parts == 1:
            return stored  # the parameter itself, so that autograd and assignments reach it
        rows = stored.shape[0] // self.parts
        return stored[self.part * rows : (self.part + 1) * rows]


def bias_of(linear: LinearMap) -> Tensor:
    """Return the bias of a map, (n_out,); zeros where it has none."""
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias


@dataclass(frozen=True)
class HeadRows:
    """A stored tensor in which each head owns some rows."""

    module: nn.Module  # What keeps it
    name: str  # Its attribute: ``weight``, ``bias`` or a name of the family's own
    width: int  # Rows of one head, in each part
    axis: int = 0  # The axis that counts them
    #: Maps of equal size one behind the other (fused q, k, v): a head has rows in each.
    parts: int = 1

    @property
    def tensor(self) -> Tensor | None:
        """The stored tensor; None for a bias that the map does not have."""
        tensor: Tensor | None = getattr(self.module, self.name)
        return tensor

    def rows(self, present: Sequence[int], heads: Sequence[int]) -> Tensor:
        """Return the indices on the axis that some heads own, ascending."""
        positions = torch.tensor([present.index(head) for head in sorted(heads)], dtype=torch.long)
        starts = torch.arange(self.parts)[:, None] * len(present) + positions
        return (starts.flatten()[:, None] * self.width + torch.arange(self.width)).flatten()


def rows_of_linear(linear: nn.Module, width: int, *, parts: int = 1) -> list[HeadRows]:
    """List what heads own of a map whose outputs are the heads': its rows and its bias."""
    axis = 1 if isinstance(linear, Conv1D) else 0
    return [
        HeadRows(linear, "weight", width, axis, parts),
        HeadRows(linear, "bias", width, 0, parts),
    ]


def columns_of_linear(linear: nn.Module, width: int) -> HeadRows:
    """Return what heads own of a map whose inputs are the heads': columns, or rows in GPT-2."""
    return HeadRows(linear, "weight", width, 0 if isinstance(linear, Conv1D) else 1)


@dataclass(frozen=True)
class Projections:
    """The four linear maps of one attention module."""

    q: LinearMap
    k: LinearMap
    v: LinearMap
    out: LinearMap


@dataclass(frozen=True)
class AttentionInput:
    """What an attention module is called with."""

    x_q: Tensor  # (batch, query_pos, d_model): what queries are made from
    #: (batch, key_pos, d_model): what keys are made from, either ``x_q`` itself or another sequence
    #: (cross-attention).
    x_k: Tensor
    #: As the model hands it over, broadcastable to (batch, n_heads, query_pos, key_pos).
    mask: Mask = None
    given: Mapping[str, Any] = field(default_factory=dict)  # All arguments by name
    #: (batch, key_pos, d_value): what values are made from, where that is not ``x_k``.
    x_value: Tensor | None = None

    @property
    def x_v(self) -> Tensor:
        """What values are made from, (batch, key_pos, d_value)."""
        return self.x_k if self.x_value is None else self.x_value

    @property
    def crossed(self) -> bool:
        """Whether keys come from another sequence."""
        return self.x_k is not self.x_q


class Heads(NamedTuple):
    """q, k, v (batch, n_heads, pos, d_head) as they are scored, with any position in them."""

    q: Tensor
    k: Tensor
    v: Tensor


#: Runs our attention: (q, k, v, mask, scale, bias) to z (batch, n_heads, query_pos, d_head).
Attend = Callable[[Tensor, Tensor, Tensor, Mask, float | None, Tensor | None], Tensor]


def split(tensor: Tensor, axis: int, d_head: int) -> Tensor:
    """Cut an axis of n_heads * d_head into two, (..., n_heads, d_head, ...); there may be none."""
    axis %= tensor.dim()
    sizes = (tensor.shape[axis] // d_head, d_head)
    return tensor.reshape(*tensor.shape[:axis], *sizes, *tensor.shape[axis + 1 :])
