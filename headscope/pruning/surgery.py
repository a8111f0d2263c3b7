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


def keep_heads(
    inputs: Sequence[nn.Linear], out: nn.Linear, heads: Sequence[int], d_head: int
) -> None:
    """Cut an attention layer down to some of its heads, in place.

    Parameters
    ----------
    inputs : sequence of nn.Linear, (d_model -> n_heads * d_head)
        The query, key and value maps.
    out : nn.Linear, (n_heads * d_head -> d_model)
        The output map.
    heads : sequence of int
        Which to keep, in the order that they are to have; none is allowed.
    d_head : int
        Width of one head.
    """
    rows = head_rows(heads, d_head)
    for linear in inputs:
        _replace(linear, linear.weight[rows], None if linear.bias is None else linear.bias[rows])
    _replace(out, out.weight[:, rows], out.bias)


def expand_heads(
    inputs: Sequence[nn.Linear], out: nn.Linear, heads: Sequence[int], n_heads: int, d_head: int
) -> None:
    """Give an attention layer its full shape back, in place; the heads it lacks become zeros.

    Parameters
    ----------
    inputs, out : sequence of nn.Linear, nn.Linear
        As in :func:`keep_heads`.
    heads : sequence of int
        Where each head that is there belongs among ``n_heads``.
    n_heads, d_head : int
        Heads of the full shape, and the width of each.
    """
    rows, width = head_rows(heads, d_head), n_heads * d_head
    for linear in inputs:
        bias = None if linear.bias is None else scatter_rows(linear.bias, rows, width)
        _replace(linear, scatter_rows(linear.weight, rows, width), bias)
    _replace(out, scatter_rows(out.weight.t(), rows, width).t().contiguous(), out.bias)


def scale_heads(out: nn.Linear, factors: Tensor, d_head: int) -> None:
    """Multiply each head's part of the output map by a factor, in place: a gate made permanent.

    ``factors`` (n_heads,) are the gates; the map is n_heads * d_head -> d_model.
    """
    with torch.no_grad():
        out.weight *= factors.to(out.weight).repeat_interleave(d_head)


def scatter_rows(tensor: Tensor, rows: Tensor, width: int) -> Tensor:
    """Put the rows of ``tensor`` at places ``rows`` of a zero tensor with ``width`` rows."""
    full = tensor.new_zeros(width, *tensor.shape[1:])
    full[rows.to(tensor.device)] = tensor.detach()
    return full


def _replace(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    trained = linear.weight.requires_grad
    linear.weight = nn.Parameter(weight.detach().clone(), requires_grad=trained)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone(), requires_grad=trained)
    linear.out_features, linear.in_features = linear.weight.shape
