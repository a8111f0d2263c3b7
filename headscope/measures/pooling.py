"""Pooled states of sequences, and the cosine between those of two models."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """Average the states of a sequence's real tokens, special ones included: (batch, d_model).

    ``hidden`` is (batch, pos, d_model); ``real`` (batch, pos) is 0 or False at padding. NaN for a
    sequence without real tokens.
    """
    weight = real.to(hidden.dtype)[..., None]
    return (hidden * weight).sum(1) / weight.sum(1)


def cosine(ours: Tensor, theirs: Tensor, *, dtype: torch.dtype | None = torch.float64) -> Tensor:
    """Cosine between corresponding rows, (..., d) -> (...), in [-1, 1]; differentiable.

    Two rows of zeros are equal, so their cosine is 1; a row of zeros and another one have 0. A
    ``dtype`` of None leaves the rows as they are.
    """
    ours, theirs = ours.to(dtype or ours.dtype), theirs.to(dtype or theirs.dtype)
    both_zero = ~(ours.detach().any(dim=-1) | theirs.detach().any(dim=-1))
    return torch.cosine_similarity(ours, theirs, dim=-1).masked_fill(both_zero, 1.0)
