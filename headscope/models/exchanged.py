"""Some heads run by another formula while the rest of the model runs as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.attention import Mask, default_scale, stream_attention
from headscope.models.layouts import AttentionSite

#: The places of heads in their layers, by the row of the site.
Heads = Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class HeadInputs:
    """What some heads of one site compute their z from.

    Attributes
    ----------
    site : AttentionSite
        Where they are.
    heads : tuple of int
        Their places in the layer, zero-based.
    q : Tensor, (batch, heads, query_pos, d_head)
        Queries, not yet scaled.
    k, v : Tensor, (batch, heads, key_pos, d_head)
        Keys and values.
    mask : Tensor or None, broadcastable to (batch, heads, query_pos, key_pos)
        Boolean or additive, with whatever the model adds to its scores.
    scale : float
        Of the scores.
    """

    site: AttentionSite
    heads: tuple[int, ...]
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    scale: float


#: Computes z (batch, heads, query_pos, d_head) of the heads that it is given.
Formula = Callable[[HeadInputs], Tensor]


class Exchanged:
    """A mechanism in which some heads follow another formula.

    Parameters
    ----------
    formula : callable
        Of the exchanged heads; gets all of a layer's at once.
    heads : mapping of int to sequence of int, optional
        The places of the exchanged heads by the row of their site; every head if not given.
    """

    def __init__(self, formula: Formula, heads: Heads | None = None) -> None:
        self._formula = formula
        self._heads = heads

    @property
    def first_row(self) -> int:
        """The first site that has an exchanged head: what comes before it runs as it is."""
        return 0 if self._heads is None else min(self._heads, default=0)

    def __call__(
        self, site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        """Attend; returns z (batch, n_heads, query_pos, d_head)."""
        every = tuple(range(q.shape[1]))
        chosen = every if self._heads is None else tuple(self._heads.get(site.row, ()))
        if not chosen:
            return stream_attention(q, k, v, mask=mask, scale=scale)
        size = default_scale(q.shape[-1]) if scale is None else scale
        if chosen == every:
            return self._formula(HeadInputs(site, chosen, q, k, v, mask, size))
        z = stream_attention(q, k, v, mask=mask, scale=scale)
        places = torch.tensor(chosen, device=q.device)
        own = None if mask is None else mask[(None,) * (4 - mask.dim())]
        own = own if own is None or own.shape[1] == 1 else own[:, places]
        q, k, v = q[:, places], k[:, places], v[:, places]
        z[:, places] = self._formula(HeadInputs(site, chosen, q, k, v, own, size)).to(z)
        return z


def removed(inputs: HeadInputs) -> Tensor:
    """Put out nothing: the formula of heads that are taken out, b_V included."""
    shape = (*inputs.q.shape[:-1], inputs.v.shape[-1])
    return inputs.v.new_zeros(shape)
