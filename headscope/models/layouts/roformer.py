"""RoFormer: q and k, and v where the model says so, are rotated by their positions.

::

    (x_2i, x_2i+1) -> (x_2i cos - x_2i+1 sin, x_2i+1 cos + x_2i sin)

Neighbouring entries are pairs. The sines and cosines come as one argument, ``sinusoidal_pos``.

References
----------
Su et al. 2021, arXiv:2104.09864, section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headscope.models.layouts.layout import AttentionInput, Heads, Projections
from headscope.models.layouts.rembert import RemBertLayout

if TYPE_CHECKING:
    from headscope.models.layouts.sites import AttentionSite


@dataclass(frozen=True)
class RoFormerLayout(RemBertLayout):
    """Rotated pairs of neighbours."""

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Ask for the setting that says whether values are rotated too."""
        return super().match(module, parent) if hasattr(module, "rotary_value") else None

    def place(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Rotate q, k and perhaps v (batch, n_heads, pos, d_head)."""
        table: Tensor | None = inputs.given.get("sinusoidal_pos")
        if table is None:
            return heads
        v = rotated(heads.v, table) if site.module.rotary_value else heads.v
        return Heads(rotated(heads.q, table), rotated(heads.k, table), v)


def rotated(x: Tensor, table: Tensor) -> Tensor:
    """Rotate each pair of neighbouring entries.

    ``x`` (batch, n_heads, pos, d_head), ``table`` (1, 1, pos, d_head).
    """
    sin, cos = table.chunk(2, dim=-1)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)
