r"""Take heads out of the four linear maps of an attention layer, or put empty ones back.

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

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def head_rows(heads: Sequence[int], d_head: int) -> Tensor:
    """Return the rows that heads own in a map of (n_heads * d_head) outputs, in their order."""
    starts = torch.tensor(list(heads), dtype=torch.long) * d_head
    return (starts[:, None] + torch.arange(d_head)).flatten()


def without_rows(tensor: Tensor, rows: Tensor, axis: int = 0) -> Tensor:
    """Return a copy of a stored tensor that lacks some rows of an axis.

    Parameters
    ----------
    tensor : Tensor
        Of any shape.
    rows : Tensor, (k,), int64
        Places on the axis, each once.
    """
    left = torch.ones(tensor.shape[axis], dtype=torch.bool)
    left[rows] = False
    return tensor.detach().index_select(axis, left.nonzero().flatten().to(tensor.device))


def with_rows(tensor: Tensor, rows: Tensor, axis: int = 0) -> Tensor:
    """Return a copy of a stored tensor with rows of zeros put in: the way back.

    Parameters
    ----------
    tensor : Tensor
        Of any shape.
    rows : Tensor, (k,), int64
        Where the new rows lie on the longer axis, each once.
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


def scale_heads(W_O: Tensor, factors: Tensor, d_head: int) -> None:
    """Multiply each head's part of the output map by a factor, in place: a gate made permanent.

    Parameters
    ----------
    W_O : Tensor, (d_model, n_heads * d_head)
        The output map as ``nn.Linear`` keeps it, or a view of it.
    factors : Tensor, (n_heads,)
        The gates.
    """
    with torch.no_grad():
        W_O *= factors.to(W_O).repeat_interleave(d_head)
