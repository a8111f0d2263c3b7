"""Score every query and key through other factors than the model's own W_Q and W_K."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from headscope.attention import Mask, default_scale, stream_attention
from headscope.models.hooks import watch_inputs
from headscope.models.layouts import AttentionInput, AttentionSite
from headscope.models.loaded import LoadedModel


class ReplacedScores:
    """A mechanism whose content scores are ``x L_h R_h^T x^T``; everything else is the model's.

    The term that b_Q adds, ``b_Q (x W_K)^T``, and the scale 1 / sqrt(d_head) stay as they are,
    whatever the width of the factors.

    Parameters
    ----------
    loaded : LoadedModel
        Its sites, b_Q, W_K and dtype are used.
    factors : mapping of layer to (L, R)
        Each (n_heads, d_model, width).
    """

    def __init__(self, loaded: LoadedModel, factors: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        self._sites = loaded.sites
        like = next(loaded.model.parameters())
        self._factors = {
            layer: (left.to(like), right.to(like)) for layer, (left, right) in factors.items()
        }

    def watching(self) -> AbstractContextManager[None]:
        """Keep each site's input while the block runs: the factors are applied to it."""

        def see(site: AttentionSite, inputs: AttentionInput) -> None:
            # (batch, 1, pos, d_model)
            self._x_q, self._x_k = inputs.x_q[:, None], inputs.x_k[:, None]

        return watch_inputs(self._sites, see)

    def __call__(
        self, site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        """Attend with replaced scores; returns z (batch, n_heads, query_pos, d_head)."""
        if site.row not in self._factors:  # a layer that has lost all its heads
            return stream_attention(q, k, v, mask=mask, scale=scale)
        left, right = self._factors[site.row]
        b_Q = site.weights().b_Q[:, None, :]  # (n_heads, 1, d_head)
        content = (k * b_Q).sum(-1, keepdim=True)  # b_Q k^T, one number a key
        ours_q = self._x_q @ left  # (batch, n_heads, pos, width)
        ours_k = torch.cat([self._x_k @ right, content], dim=-1)
        ours_q = torch.cat([ours_q, ours_q.new_ones(*ours_q.shape[:-1], 1)], dim=-1)
        scale = default_scale(site.d_head) if scale is None else scale
        return stream_attention(ours_q, ours_k, v, mask=mask, scale=scale)
