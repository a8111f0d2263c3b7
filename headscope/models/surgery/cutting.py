r"""Take heads out of attention modules, and rows out of stored maps, in place.

::

    out = sum over h of (pattern_h (x W_V[h] + b_V[h])) W_O[h] + b_O

Head h owns rows h d_head ... (h + 1) d_head - 1 of the query, key and value maps (with their
biases) and the same columns of the output map. Leaving them out leaves its term out of the sum, and
nothing else: the result equals a gate of zero. b_O belongs to no head and stays.

An :class:`AttentionModule` is one attention module of a model, with what its family's layout knows
of it: its four maps, the tensors that they are stored in (as :class:`HeadRows`, which say of a
tensor which rows, or columns, a head owns), and the heads that it has.

References
----------
Michel et al. 2019, arXiv:1905.10650, section 2.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headscope.models.layouts.forwards import WithoutHeads, extend
from headscope.models.layouts.layout import AttentionModule
from headscope.models.layouts.maps import HEAD_IDS, HEADS_BEFORE, HeadRows
from headscope.models.layouts.sites import attention_modules

#: Attributes that hold a number of heads, and those that hold the width of all heads together.
_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head")
_WIDTHS = ("all_head_size", "inner_dim", "split_size")


def cut_module(attention: AttentionModule, heads: Collection[int]) -> None:
    """Remove all heads of a module but ``heads``, in place; these keep their original indices.

    The module remembers the indices. A layer may lose all its heads: b_O is what it then adds.
    """
    remaining = [head for head in attention.head_ids if head in heads]
    removed = [head for head in attention.head_ids if head not in heads]
    remove_rows(attention.stored(), attention.head_ids, removed)
    # b_O belongs to no head, but a repair changes it: a copy that shares weights needs its own.
    out = attention.projections.out.module
    if out.bias is not None:
        replace_stored(out, "bias", out.bias.detach())
    _mark(attention, remaining)
    # Let the module's own forward run with the heads that are left: ``extend`` puts methods before
    # those of its class, ``fit`` adapts what the family's forward expects.
    if len(remaining) < attention.heads_before:
        attention.layout.fit(attention.module, remaining, attention.heads_before)
        attention.projections.out.fit()
    if not remaining:  # last, so that it is around whatever forward ``fit`` gave the module
        extend(attention.module, WithoutHeads)


def cut_modules(
    network: Any, heads_of: Callable[[int, AttentionModule], Collection[int] | None]
) -> None:
    """Cut attention modules of a network down to some heads, in place.

    ``heads_of`` takes a module's index and the module, and names the heads that stay; None leaves
    the module as it is.
    """
    base = getattr(network, "base_model", network)
    for index, attention in enumerate(attention_modules(base)):
        heads = heads_of(index, attention)
        if heads is not None:
            cut_module(attention, heads)


def _mark(attention: AttentionModule, head_ids: Sequence[int]) -> None:
    """Let a module remember its heads, and set its attributes that count them."""
    module: Any = attention.module
    setattr(module, HEAD_IDS, tuple(head_ids))
    setattr(module, HEADS_BEFORE, attention.heads_before)
    sizes = {
        **dict.fromkeys(_COUNTS, len(head_ids)),
        **dict.fromkeys(_WIDTHS, len(head_ids) * attention.d_head),
    }
    for name, size in sizes.items():
        if isinstance(getattr(module, name, None), int):
            setattr(module, name, size)


# --- stored tensors -------------------------------------------------------------------------------


def remove_rows(stored: Iterable[HeadRows], present: Sequence[int], removed: Sequence[int]) -> None:
    """Remove the rows of some heads (or neurons) from stored tensors, in place.

    ``stored`` says of each tensor which rows a head owns; a tensor may be listed more than once,
    as a fused map is for q, k and v. ``present`` lists all heads that the tensors have, ``removed``
    among them.
    """
    for head_rows in dict.fromkeys(stored):  # each once
        tensor = head_rows.tensor
        if tensor is None:
            continue
        stays = torch.ones(tensor.shape[head_rows.axis], dtype=torch.bool)
        stays[head_rows.rows(present, removed)] = False
        remaining_rows = stays.nonzero().flatten().to(tensor.device)
        smaller = tensor.detach().index_select(head_rows.axis, remaining_rows)
        replace_stored(head_rows.module, head_rows.name, smaller)


def replace_stored(module: Any, name: str, tensor: Tensor) -> None:
    """Put another tensor in the place of a parameter, and let the module know its new sizes."""
    trained = getattr(module, name).requires_grad
    setattr(module, name, nn.Parameter(tensor.clone(), requires_grad=trained))
    if name != "weight":
        return
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = tensor.shape
    elif hasattr(module, "nf"):  # GPT-2's maps, which are kept transposed
        module.nx, module.nf = tensor.shape
