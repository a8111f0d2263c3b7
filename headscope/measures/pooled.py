"""How near a changed model stays to the original: cosine of mean-pooled states, label-free."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["cosine", "mean_pooled"]


def mean_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """Average the states of a sequence's real tokens, special ones included.

    Parameters
    ----------
    hidden : Tensor, (batch, pos, d_model)
    real : Tensor, (batch, pos)
        0 or False at padding.

    Returns
    -------
    Tensor, (batch, d_model)
    """
    weight = real.to(hidden.dtype)[..., None]
    return (hidden * weight).sum(1) / weight.sum(1)


def cosine(ours: Tensor, theirs: Tensor, *, dtype: torch.dtype | None = torch.float64) -> Tensor:
    """Cosine between corresponding rows, (..., d) -> (...), in [-1, 1]; differentiable.

    Two rows of zeros are equal, so their cosine is 1; a row of zeros and another one have 0.

    Parameters
    ----------
    ours, theirs : Tensor, (..., d)
    dtype : torch.dtype, optional
        What to compute in; None leaves the rows as they are.
    """
    ours, theirs = ours.to(dtype or ours.dtype), theirs.to(dtype or theirs.dtype)
    both_zero = ~(ours.detach().any(dim=-1) | theirs.detach().any(dim=-1))
    return torch.cosine_similarity(ours, theirs, dim=-1).masked_fill(both_zero, 1.0)
