"""What attention layouts are made of: stored maps, the rows of each head, and a call's tensors.

A map (:class:`LinearMap`) is what a formula calls W and b, wherever and however a family stores
them; :class:`Projections` are the four maps of one attention module. :class:`HeadRows` says which
rows of a stored tensor belong to a head, for removing it. :class:`AttentionInput` is what one call
of the module gets, and :class:`Heads` the q, k and v that it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headscope.attention import Mask
from headscope.core.errors import UnsupportedModelError

#: Attribute of an attention module that lost heads: the original indices of the rest.
HEAD_IDS = "headscope_head_ids"
#: Attribute of an attention module that lost heads: how many there were.
HEADS_BEFORE = "headscope_heads_before"


@dataclass(frozen=True)
class LinearMap:
    """One of the maps ``x W + b`` of an attention module.

    Families that store a map otherwise derive from this class and override what differs.
    """

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
        """Turn what the stored module is called with into x (batch, pos, n_in).

        For watching the module's calls, as is :meth:`leaving`.
        """
        return argument

    def leaving(self, returned: Tensor) -> Tensor:
        """Turn what the stored module returns into (batch, pos, n_out)."""
        return returned

    def fit(self) -> None:
        """Let the stored map run when no head is left to feed it; nothing to do for most."""


def is_linear(module: object) -> bool:
    """Whether a module is one that :class:`LinearMap` can read."""
    return isinstance(module, nn.Linear | Conv1D)


def bias_of(linear: LinearMap) -> Tensor:
    """Return the bias of a map, (n_out,); zeros where it has none."""
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias


@dataclass(frozen=True)
class HeadRows:
    """A stored tensor in which each head owns some rows (or columns, where ``axis`` is 1)."""

    module: nn.Module  # The module that stores it
    name: str  # Its attribute there: ``weight``, ``bias`` or a name of the family's own
    width: int  # Rows of one head, in each of the stacked maps
    axis: int = 0  # The axis along which heads own entries
    #: Maps of equal size that are stored one behind the other: a head has rows in each.
    stacked_maps: int = 1

    @property
    def tensor(self) -> Tensor | None:
        """The stored tensor; None for a bias that the map does not have."""
        tensor: Tensor | None = getattr(self.module, self.name)
        return tensor

    def rows(self, present: Sequence[int], heads: Sequence[int]) -> Tensor:
        """Return the indices along the axis that ``heads`` own, ascending.

        ``present`` lists the heads that the tensor has now. With heads 0, 2, 5 of width 2 present,
        head 5 owns [4, 5]; in two stacked maps, [4, 5, 10, 11].
        """
        places = torch.tensor([present.index(head) for head in sorted(heads)], dtype=torch.long)
        first_block = torch.arange(self.stacked_maps) * len(present)
        blocks = (first_block[:, None] + places).flatten()  # blocks of ``width`` rows each
        first_row = blocks * self.width
        return (first_row[:, None] + torch.arange(self.width)).flatten()


def rows_of_linear(linear: nn.Module, width: int, *, stacked_maps: int = 1) -> list[HeadRows]:
    """List what heads own of a map that makes q, k or v: rows of its weight, and of its bias."""
    axis = 1 if isinstance(linear, Conv1D) else 0
    return [
        HeadRows(linear, "weight", width, axis=axis, stacked_maps=stacked_maps),
        HeadRows(linear, "bias", width, stacked_maps=stacked_maps),
    ]


def columns_of_linear(linear: nn.Module, width: int) -> HeadRows:
    """Return what heads own of the output map, whose input is their z: columns of its weight."""
    axis = 0 if isinstance(linear, Conv1D) else 1
    return HeadRows(linear, "weight", width, axis=axis)


#: The maps of q, of k and of v.
InputMaps = tuple[LinearMap, LinearMap, LinearMap]


@dataclass(frozen=True)
class Projections:
    """The four linear maps of one attention module."""

    q: LinearMap
    k: LinearMap
    v: LinearMap
    out: LinearMap


class UnknownMaps(Projections):
    """In the place of the maps of a module that no layout describes: asking for one is refused."""

    kind: str  # The module's class

    def __init__(self, kind: str) -> None:
        object.__setattr__(self, "kind", kind)

    def _refuse(self) -> NoReturn:
        raise UnsupportedModelError(
            f"headscope does not know where {self.kind} keeps W_Q, W_K, W_V and W_O, which this "
            "needs; what reads q, k and v as the model hands them over works: classify without "
            "ablation, spectrum, symmetric, serve and the curves of prune."
        )

    q = k = v = out = property(_refuse)
    # Those of a dataclass would ask for the maps.
    __eq__ = object.__eq__
    __hash__ = object.__hash__
    __repr__ = object.__repr__


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
    """Cut an axis of n_heads * d_head entries into two, (..., n_heads, d_head, ...).

    (2, 7, 12) along the last axis with d_head = 4 -> (2, 7, 3, 4). n_heads may be 0.
    """
    axis %= tensor.dim()
    axes_before = tensor.shape[:axis]
    axes_after = tensor.shape[axis + 1 :]
    n_heads = tensor.shape[axis] // d_head
    return tensor.reshape(*axes_before, n_heads, d_head, *axes_after)
