"""ConvBERT: in each layer a convolution stands beside the heads, and both go through W_O.

::

    out = [z of all heads | convolution] W_O + b_O

The convolution's kernel at a position is made from that position's *queries*, of all heads. A head
that is removed therefore loses its rows of W_K and W_V and its columns of W_O, while W_Q stays
whole. What is measured and removed are heads; the convolution is always there.

References
----------
Jiang et al. 2020, arXiv:2008.02496, section 3.3.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscope.models.layouts.layout import AttentionInput, Projections, extend
from headscope.models.layouts.maps import HeadRows, LinearMap, columns_of_linear, rows_of_linear
from headscope.models.layouts.rembert import RemBertLayout

if TYPE_CHECKING:
    from headscope.models.layouts.sites import AttentionSite


@dataclass(frozen=True)
class ConvBertLayout(RemBertLayout):
    """Heads beside a convolution that reads their queries."""

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Ask for the convolution besides the maps; read W_Q of the heads that are left."""
        found = super().match(module, parent)
        if found is None or not hasattr(module, "conv_kernel_layer"):
            return None
        kept: tuple[int, ...] | None = getattr(module, "headscope_kept", None)
        if kept is None:
            return found
        width = self.d_head(module, found)
        return replace(found, q=_SomeHeads(found.q.module, heads=kept, width=width))

    def stored(self, module: nn.Module, projections: Projections, d_head: int) -> list[HeadRows]:
        """Leave out W_Q, which the convolution needs."""
        p = projections
        inputs = [rows for m in (p.k, p.v) for rows in rows_of_linear(m.module, d_head)]
        return [*inputs, columns_of_linear(p.out.module, d_head)]

    def fit(self, module: nn.Module, kept: Collection[int], total: int) -> None:
        """Let a module attend with the queries of its own heads only."""
        extend(module, _FewerHeads)
        vars(module)["headscope_kept"] = tuple(kept)

    def answer(self, site: AttentionSite, z: Tensor, inputs: AttentionInput) -> Any:
        """Put the convolution behind z."""
        return torch.cat([z, convolution(site.module, inputs.x_q)], dim=-1), None


@dataclass(frozen=True)
class _SomeHeads(LinearMap):
    """The part of a map that makes the queries of some heads of ``width`` entries each."""

    heads: tuple[int, ...] = ()
    width: int = 1

    @property
    def weight(self) -> Tensor:
        """Their rows, (n_heads * width, n_in)."""
        return self._part(super().weight)

    @property
    def bias(self) -> Tensor | None:
        """Their biases."""
        whole = super().bias
        return None if whole is None else self._part(whole)

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply by these rows only."""
        return F.linear(x, self.weight, self.bias)

    def _part(self, whole: Tensor) -> Tensor:
        by_head = whole.reshape(-1, self.width, *whole.shape[1:])
        return by_head[list(self.heads)].flatten(0, 1)


def convolution(module: Any, x: Tensor) -> Tensor:
    """Return what stands beside the heads, (batch, pos, width), from x (batch, pos, d_model).

    Every position mixes the values around it with a kernel of its own for each head.
    """
    size, width = module.conv_kernel_size, module.attention_head_size
    keys = module.key_conv_attn_layer(x.transpose(1, 2)).transpose(1, 2)
    logits = module.conv_kernel_layer(keys * module.query(x))  # (batch, pos, n_heads * size)
    kernel = torch.softmax(logits.reshape(-1, size), dim=-1)
    kernel = kernel.view(*x.shape[:2], -1, size, 1)
    values = F.pad(module.conv_out_layer(x), (0, 0, size // 2, size // 2))
    around = values.unfold(1, size, 1)  # (batch, pos, n_heads * width, size)
    mixed: Tensor = around.reshape(*x.shape[:2], -1, width, size) @ kernel
    return mixed.flatten(2)


class _FewerHeads:
    """A ConvBERT attention module without some of its heads."""

    headscope_extends = True
    headscope_kept: tuple[int, ...]
    attention_head_size: int
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Attend with the heads that are left; the convolution keeps all queries."""
        x, width = hidden_states, self.attention_head_size
        maps = self.query(x), self.key(x), self.value(x)
        q, k, v = (y.view(*y.shape[:2], -1, width).transpose(1, 2) for y in maps)
        scores = q[:, list(self.headscope_kept)] @ k.transpose(-1, -2) / width**0.5
        scores = scores if attention_mask is None else scores + attention_mask
        pattern = torch.softmax(scores, dim=-1)
        z = (pattern @ v).transpose(1, 2).flatten(2)
        return torch.cat([z, convolution(self, x)], dim=-1), pattern
