r"""Multi-head attention, written out: the page to read first.

Row vectors throughout. For one head of width ``d_head``::

    q = x_q W_Q + b_Q          k = x_k W_K + b_K          v = x_k W_V + b_V
    attn_scores = q k^T * scale                 scale = 1 / sqrt(d_head)
    pattern     = softmax(attn_scores + mask)   each row sums to 1
    z           = gate * pattern v              gate = 1; 0 removes the head
    out         = sum over heads of z W_O + b_O

Some models bound their scores before the mask, ``softcap tanh(attn_scores / softcap)``.

The sum over heads equals concatenating the ``z`` of all heads and multiplying once by the stacked
``W_O``. Splitting d_model over more heads therefore costs nothing: with d_head = d_model / n_heads
the parameters and the multiplications stay the same.

Three forms give the same result and are tested against each other:

* :func:`attention_by_head`: a loop over heads, the definition;
* :func:`attention_fused`: all heads and examples in one matrix product;
* :func:`stream_attention`: the patterns appear a few at a time, are measured and forgotten, so
  that memory does not grow with heads x n x n.

``x_q`` and ``x_k`` may be different sequences (cross-attention). A mask is boolean (True: may be
attended) or additive (0 or minus infinity, or the dtype's lowest value, as transformers writes it).
The pattern of a query that may see no key is zeros, with a
:class:`~headscope.core.errors.MaskedRowWarning`, and never NaN.

References
----------
Vaswani et al. 2017, arXiv:1706.03762, section 3.2; the soft cap: Gemma 2, arXiv:2408.00118,
section 2.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from headscope.core.errors import MaskedRowWarning

__all__ = [
    "AttentionWeights",
    "attention_by_head",
    "attention_fused",
    "attention_pattern",
    "capped",
    "causal_mask",
    "combine_masks",
    "default_scale",
    "key_padding_mask",
    "mask_of_chunk",
    "masked_softmax",
    "stream_attention",
    "with_bias",
]

#: Called with ``(examples, heads, pattern, z)`` of a chunk: which examples of the batch and which
#: heads it holds, as slices, and what they compute.
Visitor = Callable[[slice, slice, Tensor, Tensor], None]
#: Which keys may be attended: boolean or additive as above; None allows all.
Mask = Tensor | None

#: Pattern entries that the streaming form has at a time: 2 MiB in float32, the size of two cores'
#: caches.
CHUNK_ENTRIES = 1 << 19


@dataclass(frozen=True)
class AttentionWeights:
    """The canonical weights of one attention layer, whatever the checkpoint calls them.

    Parameters
    ----------
    W_Q, W_K, W_V : Tensor, (n_heads, d_model, d_head)
        Map a head's input to its queries, keys and values; W_K and W_V may have inputs of other
        widths than W_Q, and W_V another d_head.
    b_Q, b_K, b_V : Tensor, (n_heads, d_head)
        Their biases; zeros where the model has none.
    W_O : Tensor, (n_heads, d_head, d_model)
        Maps each head's z back to the residual stream.
    b_O : Tensor, (d_model,)
        Added once, after the sum over heads.
    """

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    b_Q: Tensor
    b_K: Tensor
    b_V: Tensor
    W_O: Tensor
    b_O: Tensor

    def __post_init__(self) -> None:
        """Refuse tensors whose shapes do not belong together."""
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            shape = tuple(getattr(self, name).shape)
            if len(shape) != 3:
                raise ValueError(f"{name} has shape {shape}, not 3 axes")
        n_heads, _, d_head = self.W_Q.shape
        d_in = self.W_K.shape[1]
        d_in_v, d_v = self.W_V.shape[1:]
        d_out = self.W_O.shape[2]
        expected = {
            "W_K": (n_heads, d_in, d_head),
            "W_V": (n_heads, d_in_v, d_v),
            "b_Q": (n_heads, d_head),
            "b_K": (n_heads, d_head),
            "b_V": (n_heads, d_v),
            "W_O": (n_heads, d_v, d_out),
            "b_O": (d_out,),
        }
        for name, shape in expected.items():
            actual = tuple(getattr(self, name).shape)
            if actual != shape:
                raise ValueError(f"{name} has shape {actual}, but the others ask for {shape}")

    @property
    def n_heads(self) -> int:
        """Number of heads."""
        return self.W_Q.shape[0]

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self.W_Q.shape[1]

    @property
    def d_head(self) -> int:
        """Width of one head's queries and keys."""
        return self.W_Q.shape[2]


def default_scale(d_head: int) -> float:
    """Return 1 / sqrt(d_head): the variance of a dot product grows with the *head's* width."""
    return 1.0 / math.sqrt(d_head)


def key_padding_mask(valid: Tensor) -> Tensor:
    """Turn (batch, key_pos) of real keys into a mask (batch, 1, 1, key_pos)."""
    return valid.bool()[:, None, None, :]


def causal_mask(n_q: int, n_k: int, device: torch.device | None = None) -> Tensor:
    """Mask (1, 1, n_q, n_k) in which query i sees the keys 0..i; the diagonal starts top left."""
    return torch.ones(n_q, n_k, dtype=torch.bool, device=device).tril()[None, None]


def combine_masks(*masks: Mask) -> Mask:
    """Return the boolean mask of what *every* boolean mask allows; None allows all."""
    present = [mask for mask in masks if mask is not None]
    return reduce(operator.and_, present) if present else None


def with_bias(mask: Mask, bias: Tensor | None) -> Mask:
    """Add a bias on the scaled scores to a mask: one additive mask for both.

    Parameters
    ----------
    bias : Tensor, (1 or batch, n_heads, query_pos, key_pos), optional
        Finite numbers, such as T5's bias by relative position.
    """
    if bias is None:
        return mask
    if mask is None:
        return bias
    lowest = torch.finfo(bias.dtype).min
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, lowest)
    # Minus infinity is raised, so that the sum stays finite; blocked keys then get the lowest.
    return (bias + mask.clamp(min=lowest / 2)).masked_fill(_blocked(mask), lowest)


def _blocked(mask: Tensor) -> Tensor:
    """Say where a boolean or additive mask forbids attention, in the mask's own shape."""
    if mask.dtype == torch.bool:
        return ~mask
    # transformers writes "minus infinity" as the lowest finite number of the dtype.
    return mask <= torch.finfo(mask.dtype).min / 2


def _lower_blocked(attn_scores: Tensor, blocked: Tensor) -> Tensor:
    """Lower blocked scores so far that their softmax is exactly 0.

    By a finite number, not minus infinity: where all keys are blocked, the gradient then has no
    NaN.
    """
    lowest = torch.finfo(attn_scores.dtype).min
    if attn_scores.dtype == torch.float16:  # whose range is too narrow for the sum below
        return attn_scores.masked_fill(blocked, lowest)
    # Adding is several times as fast as filling in; score and half the lowest have a finite sum.
    bias = torch.zeros_like(blocked, dtype=attn_scores.dtype)
    return attn_scores + bias.masked_fill_(blocked, lowest / 2)


def masked_softmax(attn_scores: Tensor, mask: Mask = None) -> Tensor:
    """Softmax over the last axis in which masked keys get exactly zero.

    Parameters
    ----------
    attn_scores : Tensor, (..., query_pos, key_pos)
        Scaled scores, any real number.
    """
    if mask is None:
        return torch.softmax(attn_scores, dim=-1)
    blocked = _blocked(mask)
    if mask.dtype != torch.bool:
        attn_scores = attn_scores + mask.masked_fill(blocked, 0.0)
    pattern = torch.softmax(_lower_blocked(attn_scores, blocked), dim=-1)
    sees_no_key = blocked.all(dim=-1, keepdim=True)
    if bool(sees_no_key.any()):
        warnings.warn(
            "a query may attend to no key at all: its attention and its output are zeros",
            MaskedRowWarning,
            stacklevel=2,
        )
        pattern = pattern.masked_fill(sees_no_key, 0.0)
    return pattern


def capped(attn_scores: Tensor, softcap: float | None) -> Tensor:
    """Bend scores so that none is beyond ``softcap``: small ones hardly change; None changes none.

    With a soft cap of 50, a score of 10 becomes 9.87, and one of 200 becomes 49.97.
    """
    return attn_scores if softcap is None else softcap * torch.tanh(attn_scores / softcap)


def attention_pattern(
    q: Tensor,
    k: Tensor,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    mask: Mask = None,
) -> Tensor:
    """Return softmax(q k^T * scale + mask), (..., query_pos, key_pos), from (..., pos, d_head)."""
    scale = default_scale(q.shape[-1]) if scale is None else scale
    # Scaling q costs n x d_head multiplications, scaling the scores n x n.
    attn_scores = (q * scale) @ k.transpose(-2, -1)
    return masked_softmax(capped(attn_scores, softcap), mask)


def attention_by_head(
    x_q: Tensor,
    x_k: Tensor,
    weights: AttentionWeights,
    *,
    mask: Mask = None,
    scale: float | None = None,
    softcap: float | None = None,
    gate: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Multi-head attention as its definition reads: one head after the other.

    Parameters
    ----------
    x_q : Tensor, (batch, query_pos, d_model)
        What the queries are made from.
    x_k : Tensor, (batch, key_pos, d_model)
        What keys and values are made from; the same tensor for self-attention.
    mask : Tensor, optional
        Broadcastable to (batch, n_heads, query_pos, key_pos).
    softcap : float, optional
        Bounds the scaled scores (:func:`capped`).
    gate : Tensor, (n_heads,), optional
        Multiplies each head's z; zero removes the head, its b_V included. b_O stays.

    Returns
    -------
    out : Tensor, (batch, query_pos, d_model)
        The sum over heads, and b_O.
    pattern : Tensor, (batch, n_heads, query_pos, key_pos)
        In [0, 1]; rows sum to 1, and masked keys are exactly 0.
    """
    out = weights.b_O.expand(*x_q.shape[:-1], -1)
    if mask is not None:
        mask = mask.expand(len(x_q), weights.n_heads, x_q.shape[1], x_k.shape[1])
    patterns = []
    for h in range(weights.n_heads):
        q = x_q @ weights.W_Q[h] + weights.b_Q[h]  # (batch, query_pos, d_head)
        k = x_k @ weights.W_K[h] + weights.b_K[h]  # (batch, key_pos, d_head)
        v = x_k @ weights.W_V[h] + weights.b_V[h]  # (batch, key_pos, d_head)
        head_mask = None if mask is None else mask[:, h]
        pattern = attention_pattern(q, k, scale=scale, softcap=softcap, mask=head_mask)
        z = pattern @ v if gate is None else gate[h] * (pattern @ v)
        out = out + z @ weights.W_O[h]
        patterns.append(pattern)
    return out, torch.stack(patterns, dim=1)


def attention_fused(
    x_q: Tensor,
    x_k: Tensor,
    weights: AttentionWeights,
    *,
    mask: Mask = None,
    scale: float | None = None,
    softcap: float | None = None,
    gate: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Multi-head attention with all heads in one product.

    Arguments and results are those of :func:`attention_by_head`.
    """
    q = project(x_q, weights.W_Q, weights.b_Q)  # (batch, n_heads, query_pos, d_head)
    k = project(x_k, weights.W_K, weights.b_K)  # (batch, n_heads, key_pos, d_head)
    v = project(x_k, weights.W_V, weights.b_V)
    pattern = attention_pattern(q, k, scale=scale, softcap=softcap, mask=mask)
    return project_out(_gated(pattern @ v, gate), weights), pattern


def project(x: Tensor, W: Tensor, b: Tensor) -> Tensor:
    """Project (batch, pos, d_model) for all heads at once: (batch, n_heads, pos, d_head)."""
    n_heads, d_model, d_head = W.shape
    side_by_side = W.transpose(0, 1).reshape(d_model, n_heads * d_head)
    projected = x @ side_by_side + b.reshape(-1)  # (batch, pos, n_heads * d_head)
    return projected.view(*x.shape[:-1], n_heads, d_head).transpose(1, 2)


def project_out(z: Tensor, weights: AttentionWeights) -> Tensor:
    """Concatenate z (batch, n_heads, pos, d_head) and mix the heads: (batch, pos, d_model)."""
    side_by_side = z.transpose(1, 2).flatten(2)  # (batch, pos, n_heads * d_head)
    return side_by_side @ weights.W_O.flatten(0, 1) + weights.b_O


def _gated(z: Tensor, gate: Tensor | None) -> Tensor:
    """Multiply each head's z (batch, n_heads, pos, d_head) by its gate."""
    return z if gate is None else z * gate[:, None, None]


def stream_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask = None,
    scale: float | None = None,
    softcap: float | None = None,
    gate: Tensor | None = None,
    visit: Visitor | None = None,
    chunk_entries: int = CHUNK_ENTRIES,
) -> Tensor:
    """Attention whose patterns exist a chunk at a time, for whoever wants to measure them.

    Parameters
    ----------
    q : Tensor, (batch, n_heads, query_pos, d_head)
        Queries, not yet scaled.
    k, v : Tensor, (batch, n_heads, key_pos, d_head)
        Keys and values.
    mask : Tensor, optional
        Broadcastable to (batch, n_heads, query_pos, key_pos).
    softcap : float, optional
        Bounds the scaled scores (:func:`capped`).
    visit : callable, optional
        Called as ``visit(examples, heads, pattern, z)`` for each chunk; it must not keep or change
        ``pattern`` (examples, heads, query_pos, key_pos). ``z`` is not gated.

    Returns
    -------
    z : Tensor, (batch, n_heads, query_pos, d_head)
    """
    z = torch.empty(*q.shape[:-1], v.shape[-1], dtype=v.dtype, device=v.device)
    for chunk in _chunks(q, k.shape[-2], chunk_entries):
        examples, heads = chunk
        chunk_mask = None if mask is None else mask_of_chunk(mask, examples, heads)
        pattern = attention_pattern(
            q[chunk], k[chunk], scale=scale, softcap=softcap, mask=chunk_mask
        )
        z_chunk = pattern @ v[chunk]
        z[chunk] = z_chunk
        if visit is not None:
            visit(examples, heads, pattern, z_chunk)
    return _gated(z, gate)


def _chunks(q: Tensor, n_k: int, entries: int) -> Iterator[tuple[slice, slice]]:
    """Cut (batch, n_heads) into chunks of at most ``entries`` pattern entries, where that can be.

    A chunk is one or more examples with all their heads, or some heads of one example. With 8 heads
    of 100 entries each, ``entries`` 2,000 makes chunks of 2 examples, 300 chunks of 3 heads.
    """
    batch, n_heads, n_q, _ = q.shape
    if n_heads == 0:  # every head of this layer has been removed
        return
    per_head = max(1, n_q * n_k)
    heads_at_once = max(1, min(n_heads, entries // per_head))
    examples_at_once = max(1, entries // (per_head * n_heads))
    for example in range(0, batch, examples_at_once):
        for head in range(0, n_heads, heads_at_once):
            examples = slice(example, min(example + examples_at_once, batch))
            heads = slice(head, min(head + heads_at_once, n_heads))
            yield examples, heads


def mask_of_chunk(mask: Tensor, examples: slice, heads: slice) -> Tensor:
    """Cut a mask to a chunk; axes that it lacks, or of size 1, hold for all and stay."""
    missing_axes = 4 - mask.dim()
    mask = mask[(None,) * missing_axes]  # (1 or batch, 1 or n_heads, query_pos, key_pos)
    if mask.shape[0] > 1:
        mask = mask[examples]
    return mask[:, heads] if mask.shape[1] > 1 else mask
