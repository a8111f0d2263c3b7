"""GPT-2 without some of its heads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headscope.models.layouts.forwards import extend
from headscope.models.layouts.layout import Layout


@dataclass(frozen=True)
class Gpt2Layout(Layout):
    """GPT-2, which keeps both of its maps transposed."""

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Set how wide the parts are that GPT-2 cuts the fused output of q, k and v into."""
        attention: Any = module
        attention.split_size = len(remaining) * attention.head_dim
        if not remaining:  # parts of width 0 would be none at all; a list says that there are three
            attention.split_size = [0, 0, 0]
        extend(attention.c_proj, _NothingIn)


class _NothingIn:
    """An extension of GPT-2's output map, which fails on the empty input where no head is left."""

    headscope_extends = True
    nx: int  # Width of x
    nf: int  # Width of what it returns
    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x W + b``, which is b where x is empty."""
        if not self.nx:
            return x.new_zeros(*x.shape[:-1], self.nf) + self.bias
        out: Tensor = super().forward(x)  # type: ignore[misc]
        return out
