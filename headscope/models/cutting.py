"""Cut attention modules of transformers down to some of their heads, or fill the gaps again."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import nn

from headscope.models.layouts import HEAD_IDS, Projections, heads_of
from headscope.pruning.surgery import expand_heads, keep_heads


def cut_module(module: nn.Module, projections: Projections, kept: Collection[int]) -> None:
    """Leave only the heads ``kept``, in place, named by their original index.

    The module remembers these names. Its forward needs no change: transformers asks for as many
    heads as the query map has rows for, be it none.
    """
    d_head, ids = heads_of(module, projections)
    local = [i for i, head in enumerate(ids) if head in kept]
    keep_heads((projections.q, projections.k, projections.v), projections.out, local, d_head)
    _mark(module, [ids[i] for i in local], d_head)


def fill_module(module: nn.Module, projections: Projections, n_heads: int) -> None:
    """Give a module its ``n_heads`` heads back, in place; those that it lacks are zeros."""
    d_head, ids = heads_of(module, projections)
    inputs = (projections.q, projections.k, projections.v)
    expand_heads(inputs, projections.out, ids, n_heads, d_head)
    _mark(module, range(n_heads), d_head)


def _mark(module: nn.Module, ids: Sequence[int], d_head: int) -> None:
    setattr(module, HEAD_IDS, tuple(ids))
    n = len(ids)
    sizes = {"num_attention_heads": n, "n_heads": n, "all_head_size": n * d_head}
    for name, size in sizes.items():
        if isinstance(getattr(module, name, None), int):
            setattr(module, name, size)
