"""ESM: queries are scaled before they are rotated, and the scores are not scaled again.

::

    attn_scores = rotated(x W_Q / sqrt(d_head)) rotated(x W_K)^T

So the canonical W_Q and b_Q are those of the checkpoint divided by sqrt(d_head), and the scale is
1. Models with absolute positions rotate nothing.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from headscope.models.layouts.layout import AttentionInput, Heads, Layout, Projections
from headscope.models.layouts.maps import LinearMap
from headscope.models.layouts.rotation import rotated

if TYPE_CHECKING:
    from headscope.models.layouts.sites import AttentionSite


@dataclass(frozen=True)
class ScaledMap(LinearMap):
    """A map whose output the module multiplies."""

    factor: float = 1.0  # By this number

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
    """BERT's names, queries scaled first, rotary positions where the config says so."""

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Ask for a scale of 1 and for ESM's name of the kind of positions, besides the maps."""
        scaling = getattr(module, "scaling", None)
        if scaling != 1.0 or not hasattr(module, "position_embedding_type"):
            return None
        found = super().match(module, parent)
        if found is None:
            return None
        factor = self.d_head(module, found) ** -0.5
        return dataclasses.replace(found, q=ScaledMap(found.q.module, factor=factor))

    def place(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Rotate q and k in float32, whatever the dtype."""
        return rotated(heads, inputs, wide=True)
