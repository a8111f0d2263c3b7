"""One attention layer on one sentence: every step computed on its own, and kept.

All heads of a layer at once, without the axis of examples::

    products = q k^T            scores = products * scale + bias       (n_heads, query_pos, key_pos)
    pattern  = softmax(scores where allowed)
    z        = pattern v                                               (n_heads, query_pos, d_head)
    parts    = z W_O, head by head;   out = sum of parts + b_O         (query_pos, d_model)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.attention import AttentionWeights, masked_softmax
from headscope.core.widest import widest

__all__ = [
    "Attended",
    "attend",
    "attention_flops",
    "entropy",
    "even_entropy",
    "feed_forward",
    "layer_norm",
    "links",
    "mix",
    "moved",
    "shares",
]


@dataclass(frozen=True)
class Attended:
    """What all heads of a layer make of a sentence."""

    #: (n_heads, query_pos, key_pos). Before the scale; with scale and bias; after mask and softmax.
    products: Tensor
    scores: Tensor
    pattern: Tensor
    z: Tensor  # (n_heads, query_pos, d_head). Weighted sums of values.


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, bias: Tensor | None, allowed: Tensor
) -> Attended:
    """Run attention step by step.

    Shapes: ``q``, ``k``, ``v`` (n_heads, pos, d_head), ``bias`` (n_heads, query_pos, key_pos),
    ``allowed`` (query_pos, key_pos).
    """
    products = q @ k.transpose(-1, -2)
    scores = products * scale
    if bias is not None:
        scores = scores + bias
    pattern = masked_softmax(scores, allowed)
    return Attended(products, scores, pattern, pattern @ v)


def mix(z: Tensor, weights: AttentionWeights, beside: Tensor | None) -> tuple[Tensor, Tensor]:
    """Map each head's z (n_heads, pos, d_head) back by its W_O, and add everything up.

    Shapes: ``z`` (n_heads, pos, d_head), ``beside`` (pos, d_model); returns (n_heads, pos,
    d_model), (pos, d_model).
    """
    parts = z @ weights.W_O
    out = parts.sum(0) + weights.b_O
    return parts, out if beside is None else out + beside


def layer_norm(x: Tensor, gain: Tensor, shift: Tensor, epsilon: float) -> Tensor:
    """Return (x - mean) / sqrt(variance + epsilon) * gain + shift of each token on its own."""
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()
    return centred / spread * gain.to(x.dtype) + shift.to(x.dtype)


def feed_forward(
    x: Tensor,
    up: tuple[Tensor, Tensor],
    activation: Callable[[Tensor], Tensor],
    down: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Return the hidden units (pos, d_ff) and the network's output (pos, d_model)."""
    hidden = activation(x @ up[0] + up[1])
    return hidden, hidden @ down[0] + down[1]


# --- what the numbers say -------------------------------------------------------------------------


def entropy(pattern: Tensor) -> Tensor:
    """Entropy of every row of a pattern in bits: 0 where all weight is on one key."""
    p = widest(pattern)
    return -(p * p.clamp(min=torch.finfo(p.dtype).tiny).log2()).sum(-1)


def even_entropy(allowed: Tensor) -> float:
    """Mean entropy in bits if each query attended evenly to the keys that it may see."""
    return float(widest(allowed.sum(-1)).log2().mean())


def moved(pattern: Tensor, other: Tensor) -> Tensor:
    """Share of each row's weight that lies elsewhere in another pattern, 0 to 1."""
    return (widest(pattern) - widest(other)).abs().sum(-1) / 2


def links(pattern: Tensor, words: Tensor) -> Tensor:
    """How clearly a head links each word to a word of its own.

    The largest weight on a word two or more positions away, less what that word gets from all words
    on average; mean over the words. A head that looks at a neighbour, at a special token or at one
    word from everywhere scores low, however sharp it is.

    Shapes: ``pattern`` (n_heads, pos, pos), ``words`` (pos,); returns (n_heads,).
    """
    if not bool(words.any()):
        return torch.zeros(len(pattern), dtype=torch.float64)
    place = torch.arange(len(words), device=words.device)
    apart = (place[:, None] - place).abs() >= 2
    of_words = widest(pattern)[:, words]  # (n_heads, words, key_pos)
    above = (of_words - of_words.mean(1, keepdim=True)).clamp(min=0)
    return (above * (apart & words)[words]).amax(-1).mean(-1)


def shares(parts: Tensor, out: Tensor) -> Tensor:
    """Split a sum into the shares of its parts.

    The share of a part is the length of its projection on the whole, ``<part, out> / ||out||^2``
    over all tokens: shares add up to 1, and one that works against the others is negative.

    Shapes: ``parts`` (parts, pos, d_model), ``out`` (pos, d_model).
    """
    whole = widest(out)
    return (widest(parts) * whole).sum((-1, -2)) / whole.square().sum()


def attention_flops(tokens: int, parameters: int, width: int, n_heads: int) -> tuple[int, int, int]:
    """Count floating-point operations; a multiplication with its addition counts as two."""
    return 2 * tokens * parameters, 4 * tokens**2 * width, n_heads * tokens**2
