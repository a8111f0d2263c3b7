"""What may run in place of a layer's attention: a formula for some heads, or other scores.

Both are mechanisms for :func:`~headscope.models.run.intervene.intervene`, called with (site, q, k,
v, mask, scale) and returning z (batch, n_heads, query_pos, d_head): :class:`ExchangedHeads` as its
``attention``, :class:`FactoredScores` for its ``scores``. A *site* is a layer of attention, and its
*row* its place among the sites of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.attention import Mask, default_scale, stream_attention
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.loaded import LoadedModel


def in_chunks(
    site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
) -> Tensor:
    """Run our attention as it is: the mechanism that changes nothing."""
    return stream_attention(q, k, v, mask=mask, scale=scale, softcap=site.softcap)


# --- heads that follow another formula ------------------------------------------------------------


@dataclass(frozen=True)
class HeadInputs:
    """Queries, keys, values and mask from which some heads of one site compute their z."""

    site: AttentionSite  # The layer of attention
    heads: tuple[int, ...]  # Indices of the heads in the layer, zero-based
    q: Tensor  # (batch, heads, query_pos, d_head), not yet scaled
    k: Tensor  # (batch, heads, key_pos, d_head)
    v: Tensor
    #: Boolean or additive, broadcastable to (batch, heads, query_pos, key_pos), with whatever the
    #: model adds to its scores.
    mask: Mask
    scale: float  # The scores are multiplied by it

    @property
    def softcap(self) -> float | None:
        """What bounds the scaled scores, or None for nothing."""
        return self.site.softcap


#: Computes z (batch, heads, query_pos, d_head) of the heads that it is given.
Formula = Callable[[HeadInputs], Tensor]
Heads = Mapping[int, Sequence[int]]  # Indices of heads in their layers, by the row of the site.


def removed(inputs: HeadInputs) -> Tensor:
    """Return zeros: the formula of removed heads, b_V included."""
    return inputs.v.new_zeros(*inputs.q.shape[:-1], inputs.v.shape[-1])


class ExchangedHeads:
    """Attention in which some heads follow a formula, and the others attend as usual.

    The formula is called once a layer, with all heads of the layer that follow it. Without
    ``heads`` every head of every layer does.
    """

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
        exchanged = all_heads if self._heads is None else tuple(self._heads.get(site.row, ()))
        stated_scale = default_scale(q.shape[-1]) if scale is None else scale
        if exchanged == all_heads and all_heads:
            inputs = HeadInputs(
                site=site, heads=all_heads, q=q, k=k, v=v, mask=mask, scale=stated_scale
            )
            return self._formula(inputs)
        z = in_chunks(site, q, k, v, mask, scale)  # the other heads as usual
        if exchanged:
            index = torch.tensor(exchanged, device=q.device)
            inputs = HeadInputs(
                site=site,
                heads=exchanged,
                q=q[:, index],
                k=k[:, index],
                v=v[:, index],
                mask=_mask_of_heads(mask, index),
                scale=stated_scale,
            )
            z[:, index] = self._formula(inputs).to(z)
        return z


def _mask_of_heads(mask: Mask, index: Tensor) -> Mask:
    """Pick some heads' masks, unless all share one: (batch or 1, heads or 1, queries, keys)."""
    if mask is None:
        return None
    while mask.dim() < 4:
        mask = mask[None]
    return mask if mask.shape[1] == 1 else mask[:, index]


# --- other scores ---------------------------------------------------------------------------------

#: Factors L and R in place of W_Q and W_K, each (n_heads, d_model, width), by the site's row.
Factors = Mapping[int, tuple[Tensor, Tensor]]


class FactoredScores:
    """Content scores ``x L_h R_h^T x^T`` in place of ``x W_Q W_K^T x^T``; the rest is the model's.

    The term that b_Q adds, ``b_Q (x W_K)^T``, and the scale 1 / sqrt(d_head) stay as they are,
    whatever the width of the factors.
    """

    def __init__(self, loaded: LoadedModel, factors: Factors) -> None:
        weight = next(loaded.model.parameters())
        self._factors = {row: (L.to(weight), R.to(weight)) for row, (L, R) in factors.items()}

    def keep_inputs(self, site: AttentionSite, inputs: AttentionInput) -> None:
        """Keep the input x of the site that runs next: the call below is given only q, k and v."""
        # (batch, 1, pos, d_model)
        self._x_q = inputs.x_q[:, None]
        self._x_k = inputs.x_k[:, None]

    def __call__(
        self, site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        """Attend; returns z (batch, n_heads, query_pos, d_head)."""
        if site.row not in self._factors:  # a layer that has lost all its heads has none
            return in_chunks(site, q, k, v, mask, scale)
        L, R = self._factors[site.row]
        b_Q = site.weights().b_Q[:, None, :]  # (n_heads, 1, d_head)
        bias_scores = (k * b_Q).sum(-1, keepdim=True)  # b_Q k^T: (batch, n_heads, pos, 1)
        queries = self._x_q @ L  # (batch, n_heads, pos, width)
        keys = self._x_k @ R  # (batch, n_heads, pos, width)
        # One coordinate more adds b_Q k^T to the scores: [x L, 1] [x R, b_Q k^T]^T.
        ones = queries.new_ones(*queries.shape[:-1], 1)
        queries = torch.cat([queries, ones], dim=-1)
        keys = torch.cat([keys, bias_scores], dim=-1)
        scale = default_scale(site.d_head) if scale is None else scale
        return stream_attention(queries, keys, v, mask=mask, scale=scale, softcap=site.softcap)
