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


def cosine(ours: Tensor, theirs: Tensor) -> Tensor:
    """Cosine between corresponding rows, (batch, d) -> (batch,), in [-1, 1]."""
    return torch.cosine_similarity(ours.double(), theirs.double(), dim=-1)
