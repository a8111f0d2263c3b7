"""Cut attention modules of transformers down to some of their heads, or fill the gaps again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from headscope.models.layouts.layout import AttentionModule, extend
from headscope.models.layouts.sites import HEAD_IDS, HEADS_BEFORE, attention_modules
from headscope.models.layouts.without_heads import WithoutHeads
from headscope.models.surgery.stored_rows import replace_stored, with_rows, without_rows

#: Attributes that hold a number of heads, and those that hold the width of all heads together.
_COUNTS = ("num_attention_heads", "num_heads", "n_heads")
_WIDTHS = ("all_head_size", "inner_dim", "split_size")


def cut_module(item: AttentionModule, kept: Collection[int]) -> None:
    """Leave only the heads ``kept``, in place, named by their original index.

    The module remembers these names. A layer may lose all its heads: b_O is what it then adds.
    """
    there = [head for head in item.head_ids if head in kept]
    gone = [head for head in item.head_ids if head not in kept]
    for stored in dict.fromkeys(item.stored()):  # fused maps name theirs three times
        if (tensor := stored.tensor) is not None:
            rows = stored.rows(item.head_ids, gone)
            replace_stored(stored.module, stored.name, without_rows(tensor, rows, stored.axis))
    # b_O belongs to no head, but a repair changes it: a copy that shares weights needs its own.
    out = item.projections.out.module
    if out.bias is not None:
        replace_stored(out, "bias", out.bias.detach())
    _mark(item, there)
    if not there:
        extend(item.module, WithoutHeads)
    if len(there) < item.heads_before:
        item.layout.fit(item.module, there, item.heads_before)
        item.projections.out.fit()


def cut_modules(
    network: Any, kept: Callable[[int, AttentionModule], Collection[int] | None]
) -> None:
    """Cut every attention module of a network, in place."""
    for place, item in enumerate(attention_modules(getattr(network, "base_model", network))):
        if (heads := kept(place, item)) is not None:
            cut_module(item, heads)


def fill_module(item: AttentionModule) -> None:
    """Give a module all its heads back, in place; those that it lacks are zeros."""
    every = range(item.heads_before)
    missing = [head for head in every if head not in item.head_ids]
    for stored in dict.fromkeys(item.stored()):  # fused maps name theirs three times
        if (tensor := stored.tensor) is not None:
            full = with_rows(tensor, stored.rows(every, missing), stored.axis)
            replace_stored(stored.module, stored.name, full)
    _mark(item, list(every))
    item.layout.fit(item.module, every, item.heads_before)


def _mark(item: AttentionModule, ids: Sequence[int]) -> None:
    module: Any = item.module
    vars(module)[HEAD_IDS], vars(module)[HEADS_BEFORE] = tuple(ids), item.heads_before
    sizes = dict.fromkeys(_COUNTS, len(ids)) | dict.fromkeys(_WIDTHS, len(ids) * item.d_head)
    for name, size in sizes.items():
        if isinstance(getattr(module, name, None), int):
            setattr(module, name, size)
