"""Queries and keys that a model norms between their maps and the rotation (QK-norm).

::

    q = norm(x W_Q + b_Q)        k = norm(x W_K + b_K)        what is scored is their rotation

How much a norm reads is told by the length of its gain:

* d_head: each head on its own, with a gain that all heads share (Qwen3, Gemma 3, Phi);
* all heads' coordinates: all together (OLMo 2, OLMoE), so that q of one head depends on the others.

A head whose norm is its own is removed like any other. Where all are normed together, the norm of
the others reads a removed head's queries and keys even so: its W_Q and W_K stay stored, and what
the norm returns is cut to the heads that are left. Its W_V and W_O go.

References
----------
Henry et al. 2020, arXiv:2010.04245; OLMo 2, arXiv:2501.00656, section 3.3.1.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headscope.attention import AttentionWeights
from headscope.models.layouts.forwards import extend
from headscope.models.layouts.fused import PickedMap
from headscope.models.layouts.grouped import group_size, groups_of, rows_of_groups, ungroup
from headscope.models.layouts.layout import AttentionSite, Layout, Step
from headscope.models.layouts.maps import (
    HEAD_IDS,
    AttentionInput,
    HeadRows,
    Heads,
    LinearMap,
    Projections,
    columns_of_linear,
)
from headscope.models.layouts.steps import with_gains


@dataclass(frozen=True)
class HeadNorm(Step):
    """Norm q and k by the module's own norms, where it has them."""

    q: str = "q_norm"  # Attributes of the attention module
    k: str = "k_norm"

    def change(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Norm q and k, (batch, n_heads, pos, d_head)."""
        q_norm = getattr(site.module, self.q, None)
        k_norm = getattr(site.module, self.k, None)
        if q_norm is None or k_norm is None:
            return heads
        maps = site.projections
        return Heads(
            q=_normed(q_norm, site, maps.q, heads.q, inputs.x_q),
            k=_normed(k_norm, site, maps.k, heads.k, inputs.x_k),
            v=heads.v,
        )

    def fold(self, site: AttentionSite, weights: AttentionWeights) -> AttentionWeights:
        """Fold the gains into W_Q, W_K and their biases; the shift of a LayerNorm is left out."""
        q_norm = getattr(site.module, self.q, None)
        k_norm = getattr(site.module, self.k, None)
        if q_norm is None or k_norm is None or getattr(q_norm, "weight", None) is None:
            return weights
        centred = replace(
            weights,
            W_Q=_centred(q_norm, weights.W_Q, site.d_head),
            b_Q=_centred(q_norm, weights.b_Q[:, None], site.d_head)[:, 0],
            W_K=_centred(k_norm, weights.W_K, site.d_head),
        )
        return with_gains(site, centred, query=gain_of(q_norm), key=gain_of(k_norm))


def gain_of(norm: Any) -> Tensor:
    """Return the gain of a norm, as long as what it returns, by what it does to one vector.

    Some gains are 1 + the stored weight (Gemma), and only what the norm does tells. The vector is
    64, -64, 64, -64, ...: of mean 0, and of a size beside which a norm's epsilon is nothing, so
    that every kind of norm makes 1, -1, 1, -1, ... of it and multiplies that by its gain alone.
    What its opposite becomes besides is a shift.
    """
    signs = 64 * _signs(norm.weight.detach())
    with torch.no_grad():
        gain: Tensor = (norm(signs) - norm(-signs)) / 2
    return gain * _signs(gain)  # heads are of even width: each that is left begins with 1


def _signs(like: Tensor) -> Tensor:
    """Return 1, -1, 1, -1, ... as long as another vector."""
    signs = torch.ones_like(like)
    signs[1::2] = -1.0
    return signs


def _centred(norm: Any, W: Tensor, d_head: int) -> Tensor:
    """Take the mean over coordinates out of a map (n_heads, d_in, d_head), if the norm does.

    A LayerNorm does, and turns a constant vector into its shift.
    """
    ones = torch.ones_like(norm.weight.detach())
    with torch.no_grad():
        difference = norm(ones) - norm(-ones)
    if float(difference.abs().max()) > 0.0:
        return W
    W = W.double()
    if reads_all_heads(norm, d_head):
        return W - W.mean(dim=(0, 2), keepdim=True)
    return W - W.mean(dim=2, keepdim=True)


def _normed(norm: Any, site: AttentionSite, linear: LinearMap, keys: Tensor, x: Tensor) -> Tensor:
    """Norm keys (or queries), (batch, heads, pos, d_head), that ``linear`` makes of ``x``."""
    if not reads_all_heads(norm, site.d_head):
        normed: Tensor = norm(keys)
        return normed
    # The norm reads every stored key once, also where each head has got the one that it shares.
    n_heads = keys.shape[1]
    n_stored = linear.out_features // site.d_head
    kv_heads = site.layout.shared_by(site.module, site.head_ids) or range(n_heads)
    if n_stored < n_heads:
        keys = keys[:, [kv_heads.index(key) for key in range(n_stored)]]
    side_by_side = keys.transpose(1, 2).flatten(2)  # (batch, pos, stored * d_head)
    if isinstance(linear, PickedMap):  # and those of the removed heads
        with_removed = linear.module(x).clone()
        with_removed[..., list(linear.rows)] = side_by_side
        side_by_side = with_removed
    by_head = site.by_head(norm(side_by_side))
    return by_head[:, kv_heads] if by_head.shape[1] < n_heads else by_head


def reads_all_heads(norm: Any, d_head: int) -> bool:
    """Whether a norm of queries or keys reads all heads together."""
    gain: Tensor | None = getattr(norm, "weight", None)
    return gain is not None and gain.dim() == 1 and len(gain) != d_head


@dataclass(frozen=True)
class NormedLayout(Layout):
    """A layout whose queries and keys are normed, by the module's ``q_norm`` and ``k_norm``."""

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Match; of a module that lost heads, the maps of those that are left."""
        projections = super().match(module, parent)
        head_ids = getattr(module, HEAD_IDS, None)
        if projections is None or head_ids is None:
            return projections
        d_head = self.d_head(module, projections)
        if not _normed_together(module, d_head):
            return projections
        groups = groups_of(head_ids, group_size(module))
        return replace(
            projections,
            q=PickedMap(projections.q.module, rows_of(head_ids, d_head)),
            k=PickedMap(projections.k.module, rows_of(groups, d_head)),
        )

    def stored(self, module: nn.Module, projections: Projections, d_head: int) -> list[HeadRows]:
        """List what a head owns: not its queries and keys where other heads' norm reads them."""
        if not _normed_together(module, d_head):
            return super().stored(module, projections, d_head)
        return [
            *rows_of_groups(projections.v.module, d_head, group_size(module)),
            columns_of_linear(projections.out.module, d_head),
        ]

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Make a module's own forward run with the ``remaining`` of ``total`` heads."""
        attention: Any = module
        d_head: int = attention.head_dim
        if not _normed_together(module, d_head):
            super().fit(module, remaining, total)
            return
        head_ids = list(remaining)
        size = group_size(module)
        kv_heads = self.shared_by(module, head_ids)
        if kv_heads is not None:
            ungroup(module, [getattr(module, self.v)], kv_heads)
        # Every head that is left gets its key, also one that it shares with others.
        groups = [head // size for head in head_ids]
        extend(attention.q_norm, _OfSomeHeads, headscope_columns=rows_of(head_ids, d_head))
        extend(attention.k_norm, _OfSomeHeads, headscope_columns=rows_of(groups, d_head))


def _normed_together(module: nn.Module, d_head: int) -> bool:
    """Whether one norm reads all heads."""
    return reads_all_heads(getattr(module, "q_norm", None), d_head)


class _OfSomeHeads:
    """An extension: a norm of all heads' queries or keys that returns those of some heads."""

    headscope_extends = True
    headscope_columns: tuple[int, ...]

    def forward(self, x: Tensor) -> Tensor:
        """Norm (batch, pos, all heads * d_head); return (batch, pos, heads left * d_head)."""
        normed: Tensor = super().forward(x)  # type: ignore[misc]
        return normed[..., list(self.headscope_columns)]


def rows_of(heads: Collection[int], d_head: int) -> tuple[int, ...]:
    """List the rows of some heads in a map of all: heads 0 and 2 of width 2 -> 0, 1, 4, 5."""
    first_rows = torch.tensor(list(heads), dtype=torch.long)[:, None] * d_head
    return tuple((first_rows + torch.arange(d_head)).flatten().tolist())
