"""Small steps between the maps and the softmax, which a layout lists in their order.

A step changes q, k and v, or adds something to the scaled scores. Here are those that several
families share; a step of one family alone stands in that family's file. A step is given the
``site``, the attention module as one layer of its stack, and the ``inputs`` of the call, which hold
whatever the model hands to the module (``inputs.arguments``, by name).

A rotation turns each query and key by angles that grow with its position. Two coordinates of a head
are one point of a plane; at position p it turns by ``p * theta_i``::

    (a, b) -> (a cos - b sin, b cos + a sin)

so that the score of two tokens depends on how far apart they are. Llama and most others pair the
coordinates i and i + width / 2; GLM, Cohere and a few more pair neighbours.

References
----------
Su et al. 2021, arXiv:2104.09864, section 3.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscope.attention import AttentionWeights
from headscope.models.layouts.layout import AttentionSite, Step
from headscope.models.layouts.maps import AttentionInput, Heads, split
from headscope.stats.planes import Planes, planes_of_halves, planes_of_neighbours


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
        turn = rotate_pairs if turns_neighbours(site.module) else rotate
        q = turn(heads.q, cos, sin, in_float32=self.in_float32)
        k = turn(heads.k, cos, sin, in_float32=self.in_float32)
        return Heads(q, k, heads.v)

    def planes(self, site: AttentionSite, inputs: AttentionInput) -> Planes | None:
        """Return the planes of coordinates that turn together, with the model's angles."""
        tables = self.tables(site, inputs)
        if tables is None:
            return None
        cos, sin = tables
        if turns_neighbours(site.module):
            return planes_of_neighbours(one_of_each_pair(cos)[0], one_of_each_pair(sin)[0])
        return planes_of_halves(cos, sin)

    def tables(self, site: AttentionSite, inputs: AttentionInput) -> tuple[Tensor, Tensor] | None:
        """Return cos and sin of this layer, (1 or batch, pos, width); None if it turns nothing."""
        if not getattr(site.module, "use_rope", True):  # some layers say that they do not turn
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


def turns_neighbours(module: nn.Module) -> bool:
    """Whether an attention module turns neighbouring coordinates.

    By what the function of its file makes of (0, 1, 2, 3) that turns every plane by 90 degrees:
    (-1, 0, -3, 2), where others make (-2, -3, 0, 1).
    """
    kind: Any = type(module)
    return _turns_neighbours(kind)


@functools.cache
def _turns_neighbours(kind: Any) -> bool:
    """Answer :func:`turns_neighbours` once for each class."""
    for base in kind.__mro__:
        quarter_turn = getattr(vars(base).get("forward"), "__globals__", {}).get("rotate_half")
        if quarter_turn is not None:
            with suppress(TypeError, ValueError, RuntimeError):  # another function of that name
                turned: Tensor = quarter_turn(torch.arange(4.0).reshape(1, 1, 1, 4))
                return bool(turned.flatten()[0] == -1)
    return False


def one_of_each_pair(table: Tensor) -> Tensor:
    """Pick the entries of cos or sin that belong to the planes, (..., width) -> (..., width / 2).

    Each stands there twice: at both coordinates of its plane (Cohere), or in both halves (GLM).
    """
    half = table.shape[-1] // 2
    first_half = table[..., :half]
    return first_half if torch.equal(first_half, table[..., half:]) else table[..., 0::2]


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, *, in_float32: bool = False) -> Tensor:
    """Turn queries or keys as :func:`rotate` does, but in planes of neighbouring coordinates.

    With d_head = 6 and width = 4, (x0, x1) and (x2, x3) turn, and x4 and x5 stay.
    """
    width = cos.shape[-1]
    cos = one_of_each_pair(cos)[:, None]  # (1 or batch, 1, pos, width / 2)
    sin = one_of_each_pair(sin)[:, None]
    coordinates = x.float() if in_float32 else x
    a = coordinates[..., 0:width:2]
    b = coordinates[..., 1:width:2]
    points = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1)
    return torch.cat([points.flatten(-2), coordinates[..., width:]], dim=-1).to(x.dtype)


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
