"""One vector of a sequence's states, and the cosine between those of two models.

Every function that pools takes ``hidden`` (batch, pos, d) and ``real`` (batch, pos), which is 0 or
False at padding, and returns (batch, d). Half-precision states are summed in float32. A sequence
needs one real token or more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headscope.core.widest import exact


def wide(values: Tensor) -> Tensor:
    """Give half-precision numbers enough digits for sums and logarithms."""
    return values.float() if values.dtype.itemsize < 4 else values


def mean_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """Average the states of a sequence's real tokens, special ones included.

    NaN for a sequence without real tokens.
    """
    total, count = _total(hidden, real)
    return total / count


def mean_sqrt_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """Sum of the real tokens' states over the root of their number."""
    total, count = _total(hidden, real)
    return total / count.sqrt()


def cls_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """State of the first real token, wherever the padding is."""
    return _at(hidden, real.to(torch.int32).argmax(dim=1))


def last_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """State of the last real token, wherever the padding is."""
    back = real.to(torch.int32).flip(1).argmax(dim=1)
    return _at(hidden, hidden.shape[1] - 1 - back)


def max_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """Largest value of each dimension over the real tokens."""
    return wide(hidden).masked_fill(~real.bool()[..., None], float("-inf")).amax(dim=1)


def weighted_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """Average the states of the real tokens, the first one weighted 1, the second one 2, ....

    References
    ----------
    Muennighoff 2022, arXiv:2202.08904.
    """
    states = wide(hidden)
    weight = (real.to(states.dtype).cumsum(dim=1) * real)[..., None]
    return (states * weight).sum(1) / weight.sum(1)


#: Every way to pool, by the name that users and results have for it.
MODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_pooled,
    "cls": cls_pooled,
    "max": max_pooled,
    "weighted": weighted_pooled,
    "mean-sqrt": mean_sqrt_pooled,
    "last": last_pooled,
}


def cosine(ours: Tensor, theirs: Tensor, *, precise: bool = True) -> Tensor:
    """Cosine between corresponding rows, (..., d) -> (...), in [-1, 1]; differentiable.

    Two rows of zeros are equal, so their cosine is 1; a row of zeros and another one have 0. In
    float64, unless ``precise`` is False: then in the type of the rows.
    """
    if precise:
        ours, theirs = exact(ours), exact(theirs)
    both_zero = ~(ours.detach().any(dim=-1) | theirs.detach().any(dim=-1))
    return torch.cosine_similarity(ours, theirs, dim=-1).masked_fill(both_zero, 1.0)


def _total(hidden: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the real tokens' states, and their number (batch, 1)."""
    states = wide(hidden)
    weight = real.to(states.dtype)[..., None]
    return (states * weight).sum(1), weight.sum(1)


def _at(hidden: Tensor, position: Tensor) -> Tensor:
    """Pick one position of each sequence."""
    index = position[:, None, None].expand(-1, 1, hidden.shape[-1])
    return wide(hidden).gather(1, index)[:, 0]
