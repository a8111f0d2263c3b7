r"""Rotary positions: each query and key is turned by angles that grow with its position.

Coordinate i of a head and coordinate i + d_head/2 are one point of a plane. At position p the point
turns by ``p * theta_i``::

    (a, b) -> (a cos - b sin, b cos + a sin)

so that the score of two tokens depends on how far apart they are. Values are not turned.

References
----------
Su et al. 2021, arXiv:2104.09864, section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.models.layouts.layout import AttentionInput, Heads


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
    cos, sin = cos[:, None, :, :half], sin[:, None, :, :half]
    given = x.float() if wide else x
    a, b = given[..., :half], given[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
