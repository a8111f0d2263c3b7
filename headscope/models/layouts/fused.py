"""One stored map for q, k and v: ModernBERT (rotary, sliding windows) and GPT-2 (transposed)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headscope.models.layouts.layout import (
    AttentionInput,
    Heads,
    Layout,
    Projections,
    asks_interface,
    extend,
)
from headscope.models.layouts.maps import (
    HeadRows,
    LinearMap,
    columns_of_linear,
    rows_of_linear,
)
from headscope.models.layouts.rotation import rotated

if TYPE_CHECKING:
    from headscope.models.layouts.sites import AttentionSite


@dataclass(frozen=True)
class FusedLayout(Layout):
    """W_Q, W_K and W_V one behind the other in one map."""

    fused: str = "Wqkv"  # The attribute that keeps it

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Return the parts of the fused map, if its size is that of three."""
        fused, out = getattr(module, self.fused, None), getattr(module, self.out, None)
        known = isinstance(fused, nn.Linear | Conv1D) and isinstance(out, nn.Linear | Conv1D)
        kind: Any = type(module)
        if not known or asks_interface(kind) == self.bypasses:
            return None
        q, k, v = (LinearMap(fused, part, 3) for part in range(3))
        found = Projections(q, k, v, LinearMap(out))
        return found if found.q.out_features == found.out.in_features else None

    def stored(self, module: nn.Module, projections: Projections, d_head: int) -> list[HeadRows]:
        """List the fused map, in which each head has rows three times, and W_O."""
        fused, out = projections.q.module, projections.out.module
        return [*rows_of_linear(fused, d_head, parts=3), columns_of_linear(out, d_head)]


@dataclass(frozen=True)
class ModernBertLayout(FusedLayout):
    """ModernBERT: rotated in float32 whatever the dtype; some layers see a window only."""

    out: str = "Wo"

    def place(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Rotate q and k by the angles of this layer's type."""
        return rotated(heads, inputs, wide=True)

    def window(self, module: nn.Module) -> int | None:
        """Return the distance that is still seen; the module counts the first that is not."""
        beyond: int | None = getattr(module, "sliding_window", None)
        return None if beyond is None else beyond - 1


@dataclass(frozen=True)
class Gpt2Layout(FusedLayout):
    """GPT-2: both maps are stored transposed."""

    fused: str = "c_attn"
    out: str = "c_proj"

    def fit(self, module: nn.Module, kept: Collection[int], total: int) -> None:
        """Say where the fused output is split; a layer without heads has three empty parts."""
        own: Any = module
        own.split_size = len(kept) * own.head_dim or [0, 0, 0]
        extend(own.c_proj, _NothingIn)


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
