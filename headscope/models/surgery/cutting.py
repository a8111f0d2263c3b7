r"""Take heads out of attention modules, and rows out of stored maps, in place, or put them back.

::

    out = sum over h of (pattern_h (x W_V[h] + b_V[h])) W_O[h] + b_O

Head h owns rows h d_head ... (h + 1) d_head - 1 of the query, key and value maps (with their
biases) and the same columns of the output map. Leaving them out leaves its term out of the sum, and
nothing else: the result equals a gate of zero. b_O belongs to no head and stays.

References
----------
Michel et al. 2019, arXiv:1905.10650, section 2.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscope.core.errors import UnsupportedModelError
from headscope.models.layouts.forwards import WithoutHeads, extend
from headscope.models.layouts.layout import AttentionModule
from headscope.models.layouts.maps import HeadRows
from headscope.models.layouts.sites import HEAD_IDS, HEADS_BEFORE, attention_modules

#: Attributes that hold a number of heads, and those that hold the width of all heads together.
_COUNTS = ("num_attention_heads", "num_heads", "n_heads")
_WIDTHS = ("all_head_size", "inner_dim", "split_size")


def cut_module(item: AttentionModule, heads: Collection[int]) -> None:
    """Remove all heads of a module but ``heads``, in place; they keep their original indices.

    The module remembers these names. A layer may lose all its heads: b_O is what it then adds.
    """
    remaining = [head for head in item.head_ids if head in heads]
    gone = [head for head in item.head_ids if head not in heads]
    remove_rows(item.stored(), item.head_ids, gone)
    # b_O belongs to no head, but a repair changes it: a copy that shares weights needs its own.
    out = item.projections.out.module
    if out.bias is not None:
        replace_stored(out, "bias", out.bias.detach())
    _mark(item, remaining)
    if not remaining:
        extend(item.module, WithoutHeads)
    if len(remaining) < item.heads_before:
        item.layout.fit(item.module, remaining, item.heads_before)
        item.projections.out.fit()


def cut_modules(
    network: Any, heads_of: Callable[[int, AttentionModule], Collection[int] | None]
) -> None:
    """Cut every attention module of a network for which ``heads_of`` names heads, in place."""
    for index, item in enumerate(attention_modules(getattr(network, "base_model", network))):
        if (heads := heads_of(index, item)) is not None:
            cut_module(item, heads)


def fill_module(item: AttentionModule) -> None:
    """Give a module all its heads back, in place; those that it lacks are zeros."""
    every = range(item.heads_before)
    missing = [head for head in every if head not in item.head_ids]
    fill_rows(item.stored(), every, missing)
    _mark(item, list(every))
    item.layout.fit(item.module, every, item.heads_before)


def _mark(item: AttentionModule, ids: Sequence[int]) -> None:
    module: Any = item.module
    vars(module)[HEAD_IDS] = tuple(ids)
    vars(module)[HEADS_BEFORE] = item.heads_before
    sizes = dict.fromkeys(_COUNTS, len(ids)) | dict.fromkeys(_WIDTHS, len(ids) * item.d_head)
    for name, size in sizes.items():
        if isinstance(getattr(module, name, None), int):
            setattr(module, name, size)


# --- stored tensors -------------------------------------------------------------------------------


def remove_rows(stored: Iterable[HeadRows], present: Sequence[int], gone: Sequence[int]) -> None:
    """Remove the rows of some heads (or neurons) from stored tensors; ``present`` lists all."""
    for part in dict.fromkeys(stored):  # fused maps are listed three times
        if (tensor := part.tensor) is not None:
            left = torch.ones(tensor.shape[part.axis], dtype=torch.bool)
            left[part.rows(present, gone)] = False
            rows = left.nonzero().flatten().to(tensor.device)
            replace_stored(part.module, part.name, tensor.detach().index_select(part.axis, rows))


def fill_rows(stored: Iterable[HeadRows], every: Sequence[int], missing: Sequence[int]) -> None:
    """Put zeros where some of ``every`` head (or neuron) are missing in stored tensors."""
    for part in dict.fromkeys(stored):
        if (tensor := part.tensor) is not None:
            full = with_rows(tensor, part.rows(every, missing), part.axis)
            replace_stored(part.module, part.name, full)


def with_rows(tensor: Tensor, rows: Tensor, axis: int = 0) -> Tensor:
    """Return a copy of a stored tensor, of any shape, with rows of zeros put in.

    ``rows`` (k,) says where the new rows lie on the longer axis, each once.
    """
    left = torch.ones(tensor.shape[axis] + len(rows), dtype=torch.bool)
    left[rows] = False
    shape = [*tensor.shape[:axis], len(left), *tensor.shape[axis + 1 :]]
    full = tensor.new_zeros(shape)
    return full.index_copy(axis, left.nonzero().flatten().to(tensor.device), tensor.detach())


def replace_stored(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Put another tensor in the place of a parameter, and let the module know its new sizes."""
    trained = getattr(module, name).requires_grad
    setattr(module, name, nn.Parameter(tensor.clone(), requires_grad=trained))
    if name != "weight":
        return
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = tensor.shape
    elif hasattr(module, "nf"):  # GPT-2's maps, which are kept transposed
        vars(module)["nx"], vars(module)["nf"] = tensor.shape


# --- rows of the vocabulary that a model puts out ---
#
# They are the weight (and bias) of the output embedding, which may be the input embedding itself,
# and whatever else behind the base model has a number, or a vector, for each piece: biases that
# stand by themselves (BERT's, the final_logits_bias of BART), the second table of MobileBERT.


@dataclass(frozen=True)
class OutputRows:
    """One tensor with a number, or a vector, for each piece that a model puts out."""

    module: nn.Module
    name: str
    tensor: Tensor
    axis: int  # Along which pieces are counted

    def write(self, tensor: Tensor) -> None:
        """Put another tensor in its place, of whatever length."""
        if isinstance(self.tensor, nn.Parameter) and not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=self.tensor.requires_grad)
        setattr(self.module, self.name, tensor)


def output_rows(network: Any, rows: int) -> list[OutputRows]:
    """Find these tensors in a network with a vocabulary of ``rows``; none if it puts out none.

    Raises
    ------
    UnsupportedModelError
        If its output embedding has another number of rows.
    """
    head = getattr(network, "get_output_embeddings", lambda: None)()
    if head is None:
        return []
    if not isinstance(head, nn.Linear) or head.weight.shape[0] != rows:
        raise UnsupportedModelError(
            f"{type(network).__name__} has no output embedding with one row for each of its "
            f"{rows:,} pieces; leave the vocabulary whole."
        )
    base = getattr(network, "base_model", network)
    inside = set(base.modules())
    outputs = []
    for module in network.modules():
        tensors = {**module._parameters, **module._buffers}
        for name, tensor in tensors.items():
            behind = module not in inside or module is head or name == "final_logits_bias"
            if behind and tensor is not None and rows in tensor.shape:
                axis = tuple(tensor.shape).index(rows)
                outputs.append(OutputRows(module, name, tensor, axis))
    return outputs


def cut_outputs(
    network: Any, row_ids: Sequence[int], rows: int, known: dict[int, nn.Parameter]
) -> None:
    """Leave only the rows ``row_ids`` of what a network puts out, in place.

    ``known`` has the cut tensors of its input, by the ids of the old ones: tied ones stay tied.
    """
    made: dict[int, Tensor] = dict(known)
    for item in output_rows(network, rows):
        old = item.tensor
        if id(old) not in made:
            left = old.detach().index_select(item.axis, torch.tensor(row_ids, device=old.device))
            is_parameter = isinstance(old, nn.Parameter)
            made[id(old)] = nn.Parameter(left, old.requires_grad) if is_parameter else left
        item.write(made[id(old)])
        if isinstance(item.module, nn.Linear):
            width = "in_features" if item.axis else "out_features"
            setattr(item.module, width, len(row_ids))
