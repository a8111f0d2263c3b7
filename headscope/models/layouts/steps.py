"""Small steps between the maps and the softmax, which a layout lists in their order.

A step changes q, k and v, or adds something to the scaled scores. Here are those that several
families share; a step of one family alone stands in that family's file. A step is given the
``site``, the attention module as one layer of its stack, and the ``inputs`` of the call, which hold
whatever the model hands to the module (``inputs.arguments``, by name).

A rotation turns each query and key by angles that grow with its position. Two coordinates of a head
are one point of a plane; at position p it turns by ``p * theta_i``::

    (a, b) -> (a cos - b sin, b cos + a sin)

so that the score of two tokens depends on how far apart they are.

References
----------
Su et al. 2021, arXiv:2104.09864, section 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.attention import AttentionWeights
from headscope.models.layouts.layout import AttentionSite, Step
from headscope.models.layouts.maps import AttentionInput, Heads, split
from headscope.stats.planes import Planes, planes_of_halves


@dataclass(frozen=True)
class Rotation(Step):
    """Turn q and k by the angles that the model hands over."""

    in_float32: bool = False  # Whatever the model's dtype, as some families do it

    def change(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Turn q and k, (batch, n_heads, pos, d_head)."""
        tables = self.tables(site, inputs)
        if tables is None:
            return heads
        cos, sin = tables
        q = rotate(heads.q, cos, sin, in_float32=self.in_float32)
        k = rotate(heads.k, cos, sin, in_float32=self.in_float32)
        return Heads(q, k, heads.v)

    def planes(self, site: AttentionSite, inputs: AttentionInput) -> Planes | None:
        """Return the planes of coordinates i and i + width / 2, with the model's angles."""
        tables = self.tables(site, inputs)
        return None if tables is None else planes_of_halves(*tables)

    def tables(self, site: AttentionSite, inputs: AttentionInput) -> tuple[Tensor, Tensor] | None:
        """Return cos and sin of this layer, (1 or batch, pos, width); None if it turns nothing."""
        if not getattr(site.module, "use_rope", True):
            return None
        tables: tuple[Tensor, Tensor] | None = inputs.arguments.get("position_embeddings")
        return tables


def with_gains(
    site: AttentionSite, weights: AttentionWeights, *, query: Tensor, key: Tensor
) -> AttentionWeights:
    """Multiply the queries and keys that the weights make by the gains of their norms.

    A gain is (d_head,), the same for all heads, or has d_head entries for each head; that of the
    keys for each key that is stored. In float64.
    """
    query_gain = split(query, 0, site.d_head).double()  # (1 or n_heads, d_head)
    key_gain = split(key, 0, site.d_head).double()
    if len(key_gain) > 1:
        key_gain = site.by_stored_key(key_gain)
    return dataclasses.replace(
        weights,
        W_Q=weights.W_Q * query_gain[:, None, :],
        b_Q=weights.b_Q * query_gain,
        W_K=weights.W_K * key_gain[:, None, :],
        b_K=weights.b_K * key_gain,
    )


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, in_float32: bool = False) -> Tensor:
    """Turn queries or keys by their positions.

    ``x`` (batch, n_heads, pos, d_head), ``cos, sin`` (1 or batch, pos, width), whose two halves are
    alike. Coordinates i and i + width / 2 are one point: with d_head = 6 and width = 4, (x0, x2)
    and (x1, x3) turn, and x4 and x5 stay.
    """
    width = cos.shape[-1]
    half = width // 2
    cos = cos[:, None, :, :half]  # (1 or batch, 1, pos, half)
    sin = sin[:, None, :, :half]
    coordinates = x.float() if in_float32 else x
    a = coordinates[..., :half]
    b = coordinates[..., half:width]
    unturned = coordinates[..., width:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, unturned], dim=-1).to(x.dtype)


class Clip(Step):
    """Bound q, k and v, entry by entry, where the configuration asks for it (OLMo)."""

    def change(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Bound q, k and v, (batch, n_heads, pos, d_head)."""
        limit: float | None = getattr(getattr(site.module, "config", None), "clip_qkv", None)
        if limit is None:
            return heads
        q, k, v = heads
        return Heads(q.clamp(-limit, limit), k.clamp(-limit, limit), v.clamp(-limit, limit))


class SharedKeys(Step):
    """Give every head the keys and values that it shares with its group (``grouped.py``)."""

    def change(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Repeat k and v, (batch, groups, pos, d_head) -> (batch, n_heads, pos, d_head)."""
        q, k, v = heads
        kv_heads = site.layout.shared_by(site.module, site.head_ids)
        if kv_heads is None or k.shape[1] >= q.shape[1]:  # each head has its own
            return heads
        return Heads(q, k[:, kv_heads], v[:, kv_heads])


class HandedBias(Step):
    """Add the bias by position that the model hands to every layer."""

    def bias(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Tensor | None:
        """Return these heads' biases, (1 or batch, n_heads, query_pos, key_pos)."""
        position_bias: Tensor | None = inputs.arguments.get("position_bias")
        return None if position_bias is None else take_heads(position_bias, site.head_ids)


def take_heads(bias: Tensor, heads: Collection[int]) -> Tensor:
    """Pick some heads' biases from those of all, (1 or batch, n_heads, query_pos, key_pos).

    A bias that is the same for all heads (n_heads 1), or is of these heads already, stays.
    """
    return bias if bias.shape[1] in (1, len(heads)) else bias[:, list(heads)]
