"""ESM and OPT: queries are scaled before anything else happens to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headscope.models.layouts.forwards import attend_without_heads, extend
from headscope.models.layouts.layout import Layout
from headscope.models.layouts.maps import LinearMap, Projections


@dataclass(frozen=True)
class ScaledQueriesLayout(Layout):
    """OPT, whose W_Q and b_Q are taken to be the checkpoint's divided by sqrt(d_head).

    ``attn_scores = ((x W_Q + b_Q) / sqrt(d_head)) (x W_K + b_K)^T``: the scores are not scaled
    again, so that the scale is 1.
    """

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Match as usual, with another map of the queries."""
        projections = super().match(module, parent)
        if projections is None:
            return None
        factor = self.d_head(module, projections) ** -0.5
        return dataclasses.replace(projections, q=ScaledMap(projections.q.module, factor=factor))

    def scale(self, module: nn.Module, d_head: int) -> float:
        """Return 1."""
        return 1.0

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module run without any head, where OPT's own forward cannot."""
        if not remaining and hasattr(module, "out_proj"):
            extend(module, _NoHeads)


class _NoHeads:
    """An extension: an OPT attention module that has no heads, and only adds b_O."""

    headscope_extends = True
    head_dim: int
    out_proj: nn.Linear

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        """Return b_O at every position."""
        x = hidden_states
        z, pattern = attend_without_heads(self, x, x, mask=attention_mask, d_head=self.head_dim)
        return self.out_proj(z.flatten(2)), pattern


@dataclass(frozen=True)
class EsmLayout(ScaledQueriesLayout):
    """ESM, which rotates scaled queries; models with absolute positions rotate nothing."""

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Match modules that also state a scale of 1."""
        return super().match(module, parent) if getattr(module, "scaling", None) == 1.0 else None


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
