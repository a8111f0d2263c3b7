"""Attention in which some heads follow another formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.attention import Mask, default_scale, stream_attention
from headscope.models.layouts.layout import AttentionSite


@dataclass(frozen=True)
class HeadInputs:
    """What some heads of one site compute their z from."""

    site: AttentionSite
    heads: tuple[int, ...]  # Their indices in the layer, zero-based
    q: Tensor  # (batch, heads, query_pos, d_head), not yet scaled
    k: Tensor  # (batch, heads, key_pos, d_head)
    v: Tensor
    #: Boolean or additive, broadcastable to (batch, heads, query_pos, key_pos), with whatever the
    #: model adds to its scores.
    mask: Mask
    scale: float  # Of the scores


#: Computes z (batch, heads, query_pos, d_head) of the heads that it is given.
Formula = Callable[[HeadInputs], Tensor]
Heads = Mapping[int, Sequence[int]]  # Indices of heads in their layers, by the row of the site.


class Exchanged:
    """Attention in which some or all heads follow a formula, called once for those of a layer."""

    def __init__(self, formula: Formula, heads: Heads | None = None) -> None:
        self._formula = formula
        self._heads = heads

    @property
    def first_row(self) -> int:
        """Row of the first site with an exchanged head; the sites before it run unchanged."""
        return 0 if self._heads is None else min(self._heads, default=0)

    def __call__(
        self, site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        """Attend; returns z (batch, n_heads, query_pos, d_head)."""
        all_heads = tuple(range(q.shape[1]))
        chosen = all_heads if self._heads is None else tuple(self._heads.get(site.row, ()))
        factor = default_scale(q.shape[-1]) if scale is None else scale
        if chosen == all_heads and all_heads:
            return self._formula(HeadInputs(site, chosen, q, k, v, mask, factor))
        z = stream_attention(q, k, v, mask=mask, scale=scale)
        if chosen:
            index = torch.tensor(chosen, device=q.device)
            if mask is not None:
                mask = mask[(None,) * (4 - mask.dim())]
                mask = mask if mask.shape[1] == 1 else mask[:, index]
            inputs = HeadInputs(
                site=site,
                heads=chosen,
                q=q[:, index],
                k=k[:, index],
                v=v[:, index],
                mask=mask,
                scale=factor,
            )
            z[:, index] = self._formula(inputs).to(z)
        return z


def removed(inputs: HeadInputs) -> Tensor:
    """Return zeros: the formula of removed heads, b_V included."""
    return inputs.v.new_zeros(*inputs.q.shape[:-1], inputs.v.shape[-1])
