"""ConvBERT: a convolution beside the heads of each layer.

References
----------
Jiang et al. 2020, arXiv:2008.02496, section 3.3.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscope.models.layouts.forwards import extend
from headscope.models.layouts.layout import AttentionSite, Layout
from headscope.models.layouts.maps import (
    AttentionInput,
    HeadRows,
    LinearMap,
    Projections,
    columns_of_linear,
    rows_of_linear,
    split,
)


@dataclass(frozen=True)
class ConvBertLayout(Layout):
    """ConvBERT: in each layer a convolution stands beside the heads, and both go through W_O.

    ``out = [z of all heads | convolution] W_O + b_O``. The convolution's kernel at a position is
    made from that position's *queries*, of all heads. A head that is removed therefore loses its
    rows of W_K and W_V and its columns of W_O, while W_Q stays whole.
    """

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Match as usual; in a module that has lost heads, W_Q is the rows of those left."""
        projections = super().match(module, parent)
        remaining: tuple[int, ...] | None = getattr(module, "headscope_kept", None)
        if projections is None or remaining is None:
            return projections
        d_head = self.d_head(module, projections)
        queries = _RowsOfHeads(projections.q.module, heads=remaining, width=d_head)
        return replace(projections, q=queries)

    def stored(self, module: nn.Module, projections: Projections, d_head: int) -> list[HeadRows]:
        """Leave out W_Q, which the convolution needs."""
        return [
            *rows_of_linear(projections.k.module, d_head),
            *rows_of_linear(projections.v.module, d_head),
            columns_of_linear(projections.out.module, d_head),
        ]

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module attend with the queries of its own heads only."""
        extend(module, _FewerHeads, headscope_kept=tuple(remaining))

    def answer(self, site: AttentionSite, z: Tensor, inputs: AttentionInput) -> Any:
        """Append the convolution's output to z."""
        return torch.cat([z, convolution(site.module, inputs.x_q)], dim=-1), None


@dataclass(frozen=True)
class _RowsOfHeads(LinearMap):
    """The rows of a map that make the queries of some heads, of ``width`` entries each."""

    heads: tuple[int, ...] = ()
    width: int = 1

    @property
    def weight(self) -> Tensor:
        """Their rows, (n_heads * width, n_in)."""
        return self._rows(super().weight)

    @property
    def bias(self) -> Tensor | None:
        """Their biases."""
        bias = super().bias
        return None if bias is None else self._rows(bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply by these rows only."""
        return F.linear(x, self.weight, self.bias)

    def _rows(self, tensor: Tensor) -> Tensor:
        """Pick the heads' rows: heads (0, 2) of width 2 own rows 0, 1, 4 and 5."""
        by_head = tensor.reshape(-1, self.width, *tensor.shape[1:])
        return by_head[list(self.heads)].flatten(0, 1)


def convolution(module: Any, x: Tensor) -> Tensor:
    """Return the convolution's output, (batch, pos, width), from x (batch, pos, d_model).

    Every position mixes the values around it with a kernel of its own for each head.
    """
    batch, n_pos, _ = x.shape
    size = module.conv_kernel_size  # positions that a kernel reaches
    width = module.attention_head_size

    # The kernel of each position and head: softmax over the positions that it reaches.
    keys = module.key_conv_attn_layer(x.transpose(1, 2)).transpose(1, 2)
    logits = module.conv_kernel_layer(keys * module.query(x))  # (batch, pos, n_heads * size)
    kernel = torch.softmax(logits.reshape(-1, size), dim=-1)
    kernel = kernel.view(batch, n_pos, -1, size, 1)  # (batch, pos, n_heads, size, 1)

    # Each position's neighbours, mixed by it.
    reach = size // 2
    values = F.pad(module.conv_out_layer(x), (0, 0, reach, reach))  # zeros before and after
    neighbours = values.unfold(1, size, 1)  # (batch, pos, n_heads * width, size)
    by_head = neighbours.reshape(batch, n_pos, -1, width, size)
    mixed: Tensor = by_head @ kernel  # (batch, pos, n_heads, width, 1)
    return mixed.flatten(2)


class _FewerHeads:
    """An extension: a ConvBERT attention module without some of its heads."""

    headscope_extends = True
    headscope_kept: tuple[int, ...]  # The heads that are left, by their original index
    attention_head_size: int
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Attend with the heads that are left; the convolution keeps all queries."""
        x = hidden_states
        width = self.attention_head_size
        all_q = split(self.query(x), -1, width).transpose(1, 2)  # (batch, all heads, pos, width)
        q = all_q[:, list(self.headscope_kept)]
        k = split(self.key(x), -1, width).transpose(1, 2)
        v = split(self.value(x), -1, width).transpose(1, 2)
        scores = q @ k.transpose(-1, -2) / width**0.5
        if attention_mask is not None:
            scores = scores + attention_mask
        pattern = torch.softmax(scores, dim=-1)
        z = (pattern @ v).transpose(1, 2).flatten(2)
        return torch.cat([z, convolution(self, x)], dim=-1), pattern
