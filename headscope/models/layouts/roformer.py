"""RoFormer: the first rotation of queries and keys by their positions.

References
----------
Su et al. 2021, arXiv:2104.09864, section 3.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.models.layouts.layout import AttentionSite, Step
from headscope.models.layouts.maps import AttentionInput, Heads


class NeighbourRotation(Step):
    """RoFormer's rotation of q and k, and of v where the model says so.

    Neighbouring coordinates are pairs, ``(x_2i cos - x_2i+1 sin, x_2i+1 cos + x_2i sin)``; the
    sines and cosines come as one argument, ``sinusoidal_pos``.
    """

    def change(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Turn q, k and perhaps v, (batch, n_heads, pos, d_head)."""
        table: Tensor | None = inputs.arguments.get("sinusoidal_pos")
        if table is None:
            return heads
        v = rotate_neighbours(heads.v, table) if site.module.rotary_value else heads.v
        return Heads(rotate_neighbours(heads.q, table), rotate_neighbours(heads.k, table), v)


def rotate_neighbours(x: Tensor, table: Tensor) -> Tensor:
    """Turn each pair of neighbouring coordinates.

    ``x`` (batch, n_heads, pos, d_head), ``table`` (1, 1, pos, d_head): sines, then cosines.
    """
    sin, cos = table.chunk(2, dim=-1)
    even = x[..., 0::2]
    odd = x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)
