r"""Rotary positions (ESM, ModernBERT, ...), shared keys, and maps that are stored as one (GPT-2).

Each query and key is turned by angles that grow with its position. Coordinate i of a head and
coordinate i + d_head/2 are one point of a plane. At position p it turns by ``p * theta_i``::

    (a, b) -> (a cos - b sin, b cos + a sin)

so that the score of two tokens depends on how far apart they are. Values are not turned.

Several heads may share one head of keys and values (grouped-query attention): of ``n_heads`` heads,
heads ``g * group`` to ``(g + 1) * group - 1`` read the g-th. These rows are removed only with the
last head that reads them.

References
----------
Su et al. 2021, arXiv:2104.09864, section 3; Ainslie et al. 2023, arXiv:2305.13245, section 2.2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headscope.models.layouts.layout import AttentionSite, Layout, asks_interface, extend
from headscope.models.layouts.maps import (
    AttentionInput,
    HeadRows,
    Heads,
    LinearMap,
    Projections,
    columns_of_linear,
    rows_of_linear,
)


def rotated(heads: Heads, inputs: AttentionInput, *, wide: bool = False) -> Heads:
    """Turn q and k by the angles that the model hands to the attention module."""
    angles = inputs.given.get("position_embeddings")
    if angles is None:
        return heads
    cos, sin = angles
    return Heads(
        rotate(heads.q, cos, sin, wide=wide), rotate(heads.k, cos, sin, wide=wide), heads.v
    )


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, wide: bool = False) -> Tensor:
    """Turn queries or keys by their positions.

    ``x`` (batch, n_heads, pos, d_head), ``cos, sin`` (1 or batch, pos, d_head).
    """
    half = x.shape[-1] // 2
    cos = cos[:, None, :, :half]
    sin = sin[:, None, :, :half]
    cast = x.float() if wide else x
    a = cast[..., :half]
    b = cast[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


#: Attribute of a module that lost heads: how many heads shared a key before.
_GROUP = "headscope_group"


@dataclass(frozen=True)
class GroupRows(HeadRows):
    """A stored map of keys or values in which a group of heads owns rows."""

    group: int = 1  # Heads that share them, before any was removed

    def rows(self, present: Sequence[int], heads: Sequence[int]) -> Tensor:
        """Return the rows that only ``heads`` own; parameters as in HeadRows."""
        groups = _groups(present, self.group)
        needed = {head // self.group for head in present if head not in heads}
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
        p = projections
        group = _group(module)
        shared = [
            GroupRows(linear.module, name, d_head, group=group)
            for linear in (p.k, p.v)
            for name in ("weight", "bias")
        ]
        query_rows = rows_of_linear(p.q.module, d_head)
        return [*query_rows, *shared, columns_of_linear(p.out.module, d_head)]

    def shared_by(self, module: nn.Module, head_ids: Sequence[int]) -> list[int] | None:
        """Return which of the stored keys and values each head reads."""
        group = _group(module)
        groups = _groups(head_ids, group)
        return None if group == 1 else [groups.index(head // group) for head in head_ids]

    def place(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Rotate q and k, in their own dtype; give every head its keys and values."""
        q, k, v = rotated(heads, inputs)
        kv_heads = self.shared_by(site.module, site.head_ids)
        if kv_heads is not None and k.shape[1] < q.shape[1]:
            k = k[:, kv_heads]
            v = v[:, kv_heads]
        return Heads(q, k, v)

    def fit(self, module: nn.Module, kept: Collection[int], total: int) -> None:
        """Let the maps of a module whose groups are uneven give each head its keys and values."""
        kv_heads = self.shared_by(module, list(kept))
        if kv_heads is None:
            return
        attention: Any = module
        vars(attention)[_GROUP] = _group(attention)
        attention.num_key_value_groups = 1
        for name in (self.k, self.v):
            linear = getattr(attention, name)
            extend(linear, _EachHead)
            vars(linear)["headscope_kv_heads"] = tuple(kv_heads)


class _EachHead:
    """A map of shared keys or values that returns those of every head, not of every group."""

    headscope_extends = True
    headscope_kv_heads: tuple[int, ...]

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, pos, n_heads * d_head)."""
        shared: Tensor = super().forward(x)  # type: ignore[misc]
        parts = shared.chunk(max(1, len(set(self.headscope_kv_heads))), dim=-1)
        # A layer that has lost all its heads keeps no rows either.
        return torch.cat([parts[index] for index in self.headscope_kv_heads] or [shared], dim=-1)


def _group(module: nn.Module) -> int:
    """Return how many heads share a key, or shared it before any was removed."""
    group: int = vars(module).get(_GROUP, getattr(module, "num_key_value_groups", 1))
    return group


def _groups(heads: Sequence[int], group: int) -> list[int]:
    """List the groups that some heads belong to, in order."""
    return sorted({head // group for head in heads})


@dataclass(frozen=True)
class ScaledMap(LinearMap):
    """A map whose output the module multiplies by a factor."""

    factor: float = 1.0

    @property
    def weight(self) -> Tensor:
        """The stored map times the factor, (n_out, n_in)."""
        return super().weight * self.factor

    @property
    def bias(self) -> Tensor | None:
        """Its bias times the factor, (n_out,)."""
        stored = super().bias
        return None if stored is None else stored * self.factor

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``(x W + b) * factor`` for x (..., n_in)."""
        return super().__call__(x) * self.factor

    def leaving(self, returned: Tensor) -> Tensor:
        """Multiply what the stored map returns."""
        return super().leaving(returned) * self.factor


@dataclass(frozen=True)
class EsmLayout(Layout):
    """ESM: queries are scaled before they are rotated, and the scores are not scaled again.

    ``attn_scores = rotated(x W_Q / sqrt(d_head)) rotated(x W_K)^T``, so the canonical W_Q and b_Q
    are those of the checkpoint divided by sqrt(d_head), and the scale is 1. Models with absolute
    positions rotate nothing.
    """

    needs: str = "position_embedding_type"

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Match modules that also have a scale of 1."""
        projections = super().match(module, parent)
        if projections is None or getattr(module, "scaling", None) != 1.0:
            return None
        factor = self.d_head(module, projections) ** -0.5
        return dataclasses.replace(projections, q=ScaledMap(projections.q.module, factor=factor))

    def place(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Rotate q and k in float32, whatever the dtype."""
        return rotated(heads, inputs, wide=True)


@dataclass(frozen=True)
class FusedLayout(Layout):
    """W_Q, W_K and W_V one behind the other in one map."""

    fused: str = "Wqkv"  # The attribute that keeps it

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Return the parts of the fused map, if its size is that of three."""
        fused = getattr(module, self.fused, None)
        out = getattr(module, self.out, None)
        known = isinstance(fused, nn.Linear | Conv1D) and isinstance(out, nn.Linear | Conv1D)
        kind: Any = type(module)
        if not known or asks_interface(kind) == self.bypasses:
            return None
        q, k, v = (LinearMap(fused, part, 3) for part in range(3))
        projections = Projections(q, k, v, LinearMap(out))
        return projections if projections.q.out_features == projections.out.in_features else None

    def stored(self, module: nn.Module, projections: Projections, d_head: int) -> list[HeadRows]:
        """List the fused map, in which each head has rows three times, and W_O."""
        fused = projections.q.module
        out = projections.out.module
        return [*rows_of_linear(fused, d_head, parts=3), columns_of_linear(out, d_head)]


@dataclass(frozen=True)
class ModernBertLayout(FusedLayout):
    """ModernBERT: rotated in float32 whatever the dtype; some layers see a window only."""

    out: str = "Wo"

    def place(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Rotate q and k by the angles of this layer's type."""
        return rotated(heads, inputs, wide=True)

    def window(self, module: nn.Module) -> int | None:
        """Return the largest visible distance; the module states the first invisible one."""
        beyond: int | None = getattr(module, "sliding_window", None)
        return None if beyond is None else beyond - 1


@dataclass(frozen=True)
class Gpt2Layout(FusedLayout):
    """GPT-2: both maps are stored transposed."""

    fused: str = "c_attn"
    out: str = "c_proj"

    def fit(self, module: nn.Module, kept: Collection[int], total: int) -> None:
        """Set where the fused output is split; a layer without heads has three empty parts."""
        attention: Any = module
        attention.split_size = len(kept) * attention.head_dim or [0, 0, 0]
        extend(attention.c_proj, _NothingIn)


class _NothingIn:
    """GPT-2's output map, which fails on inputs of no width where no head is left."""

    headscope_extends = True
    nx: int
    nf: int
    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x W + b``, which is b where x is empty."""
        if not self.nx:
            return x.new_zeros(*x.shape[:-1], self.nf) + self.bias
        out: Tensor = super().forward(x)  # type: ignore[misc]
        return out
