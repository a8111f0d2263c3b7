"""What attention layouts are made of: stored maps, the rows of each head, and a call's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headscope.attention import Mask


@dataclass(frozen=True)
class LinearMap:
    """One of the maps ``x W + b`` of an attention module."""

    #: Where it is stored: an ``nn.Linear``, or the ``Conv1D`` of GPT-2, which keeps W transposed.
    module: Any

    @property
    def weight(self) -> Tensor:
        """The map as ``nn.Linear`` has it, (n_out, n_in): the parameter itself, or a view of it."""
        stored: Tensor = self.module.weight
        return stored.t() if isinstance(self.module, Conv1D) else stored

    @property
    def bias(self) -> Tensor | None:
        """Its bias, (n_out,); None where it has none."""
        stored: Tensor | None = self.module.bias
        return stored

    @property
    def in_features(self) -> int:
        """Width of x."""
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        """Width of ``x W + b``."""
        return self.weight.shape[0]

    @property
    def stored_entries(self) -> int:
        """How many entries of W are stored for this map."""
        return int(self.module.weight.numel())

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``x W + b`` for x (..., n_in)."""
        out: Tensor = self.module(x)
        return out

    def entering(self, argument: Tensor) -> Tensor:
        """Turn what the stored module is called with into x (batch, pos, n_in)."""
        return argument

    def leaving(self, returned: Tensor) -> Tensor:
        """Turn what the stored module returns into (batch, pos, n_out)."""
        return returned

    def fit(self) -> None:
        """Let the stored map run without input columns, where its own forward cannot."""


def is_linear(module: object) -> bool:
    """Whether a module is one that :class:`LinearMap` can read."""
    return isinstance(module, nn.Linear | Conv1D)


def bias_of(linear: LinearMap) -> Tensor:
    """Return the bias of a map, (n_out,); zeros where it has none."""
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias


@dataclass(frozen=True)
class HeadRows:
    """A stored tensor in which each head owns some rows."""

    module: nn.Module  # What keeps it
    name: str  # Its attribute: ``weight``, ``bias`` or a name of the family's own
    width: int  # Rows of one head, in each of the stacked maps
    axis: int = 0  # The axis that counts them
    #: Maps of equal size that are stored one behind the other: a head has rows in each.
    stacked_maps: int = 1

    @property
    def tensor(self) -> Tensor | None:
        """The stored tensor; None for a bias that the map does not have."""
        tensor: Tensor | None = getattr(self.module, self.name)
        return tensor

    def rows(self, present: Sequence[int], heads: Sequence[int]) -> Tensor:
        """Return the indices on the axis that some heads own, ascending."""
        positions = torch.tensor([present.index(head) for head in sorted(heads)], dtype=torch.long)
        first_of_map = torch.arange(self.stacked_maps)[:, None] * len(present)
        blocks = (first_of_map + positions).flatten()
        return (blocks[:, None] * self.width + torch.arange(self.width)).flatten()


def rows_of_linear(linear: nn.Module, width: int, *, stacked_maps: int = 1) -> list[HeadRows]:
    """List what heads own of a map whose outputs are the heads': its rows and its bias."""
    axis = 1 if isinstance(linear, Conv1D) else 0
    return [
        HeadRows(linear, "weight", width, axis, stacked_maps),
        HeadRows(linear, "bias", width, 0, stacked_maps),
    ]


def columns_of_linear(linear: nn.Module, width: int) -> HeadRows:
    """Return what heads own of a map whose inputs are the heads': columns, or rows in GPT-2."""
    axis = 0 if isinstance(linear, Conv1D) else 1
    return HeadRows(linear, "weight", width, axis)


#: The maps of q, of k and of v.
InputMaps = tuple[LinearMap, LinearMap, LinearMap]


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
    arguments: Mapping[str, Any] = field(default_factory=dict)  # All of them, by name
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
    """q, k, v (batch, n_heads, pos, d_head), as projected or after any of a layout's steps."""

    q: Tensor
    k: Tensor
    v: Tensor


#: Runs our attention: (q, k, v, mask, scale, bias) to z (batch, n_heads, query_pos, d_head).
Attend = Callable[[Tensor, Tensor, Tensor, Mask, float | None, Tensor | None], Tensor]


def split(tensor: Tensor, axis: int, d_head: int) -> Tensor:
    """Cut an axis of n_heads * d_head into two, (..., n_heads, d_head, ...); there may be none."""
    axis %= tensor.dim()
    n_heads = tensor.shape[axis] // d_head
    return tensor.reshape(*tensor.shape[:axis], n_heads, d_head, *tensor.shape[axis + 1 :])
