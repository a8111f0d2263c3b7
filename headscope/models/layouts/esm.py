"""ESM: queries are scaled before they are rotated."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import Tensor, nn

from headscope.models.layouts.layout import Layout
from headscope.models.layouts.maps import LinearMap, Projections


@dataclass(frozen=True)
class EsmLayout(Layout):
    """ESM, whose W_Q and b_Q are taken to be the checkpoint's divided by sqrt(d_head).

    ``attn_scores = rotated((x W_Q + b_Q) / sqrt(d_head)) rotated(x W_K + b_K)^T``: the scores are
    not scaled again, so that the scale is 1. Models with absolute positions rotate nothing.
    """

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Match modules that also have a scale of 1."""
        projections = super().match(module, parent)
        if projections is None or getattr(module, "scaling", None) != 1.0:
            return None
        factor = self.d_head(module, projections) ** -0.5
        return dataclasses.replace(projections, q=ScaledMap(projections.q.module, factor=factor))


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
