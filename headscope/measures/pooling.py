"""Pooled states of sequences, and the cosine between those of two models."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """Average the states of a sequence's real tokens, special ones included.

    Parameters
    ----------
    hidden : Tensor, (batch, pos, d_model)
        States of every token.
    real : Tensor, (batch, pos)
        0 or False at padding.

    Returns
    -------
    Tensor, (batch, d_model)
        In the dtype of ``hidden``; NaN for a sequence without real tokens.
    """
    weight = real.to(hidden.dtype)[..., None]
    return (hidden * weight).sum(1) / weight.sum(1)


def cosine(ours: Tensor, theirs: Tensor, *, dtype: torch.dtype | None = torch.float64) -> Tensor:
    """Cosine between corresponding rows, (..., d) -> (...), in [-1, 1]; differentiable.

    Two rows of zeros are equal, so their cosine is 1; a row of zeros and another one have 0.

    Parameters
    ----------
    ours, theirs : Tensor, (..., d)
        Rows to compare, pair by pair.
    dtype : torch.dtype, optional
        What to compute in; None leaves the rows as they are.
    """
    ours, theirs = ours.to(dtype or ours.dtype), theirs.to(dtype or theirs.dtype)
    both_zero = ~(ours.detach().any(dim=-1) | theirs.detach().any(dim=-1))
    return torch.cosine_similarity(ours, theirs, dim=-1).masked_fill(both_zero, 1.0)
