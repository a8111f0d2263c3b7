"""RoFormer: the first rotation of queries and keys by their positions.

References
----------
Su et al. 2021, arXiv:2104.09864, section 3.2.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from headscope.models.layouts.layout import AttentionSite, Step
from headscope.models.layouts.maps import AttentionInput, Heads
from headscope.stats.planes import Planes, planes_of_neighbours


class NeighbourRotation(Step):
    """RoFormer's rotation of q and k, and of v where the model says so.

    Neighbouring coordinates, (x0, x1), (x2, x3), ..., are points of a plane. The model hands sines
    and cosines over as one argument, ``sinusoidal_pos``.
    """

    def change(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Turn q, k and perhaps v, (batch, n_heads, pos, d_head)."""
        table: Tensor | None = inputs.arguments.get("sinusoidal_pos")
        if table is None:
            return heads
        q = rotate_neighbours(heads.q, table)
        k = rotate_neighbours(heads.k, table)
        v = rotate_neighbours(heads.v, table) if site.module.rotary_value else heads.v
        return Heads(q, k, v)

    def planes(self, site: AttentionSite, inputs: AttentionInput) -> Planes | None:
        """Return the planes of neighbouring coordinates, of v too where the model says so."""
        table: Tensor | None = inputs.arguments.get("sinusoidal_pos")
        if table is None:
            return None
        sin, cos = table[0, 0].chunk(2, dim=-1)  # (pos, d_head / 2)
        planes = planes_of_neighbours(cos, sin)
        return dataclasses.replace(planes, values=bool(site.module.rotary_value))


def rotate_neighbours(x: Tensor, table: Tensor) -> Tensor:
    """Turn each point (a, b) of neighbouring coordinates to (a cos - b sin, b cos + a sin).

    ``x`` (batch, n_heads, pos, d_head), ``table`` (1, 1, pos, d_head): sines, then cosines.
    """
    sin, cos = table.chunk(2, dim=-1)
    a = x[..., 0::2]  # coordinates 0, 2, 4, ...
    b = x[..., 1::2]  # coordinates 1, 3, 5, ...
    points = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1)  # (..., d_head / 2, 2)
    return points.flatten(-2)
