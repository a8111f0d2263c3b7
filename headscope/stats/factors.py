"""The factors of one layer of attention: its W_Q, W_K, W_V and W_O by head, in float64.

In this order: :class:`Factors`; how they are made of a layer's weights, with what norms multiply
them by; random factors of the same shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.attention import AttentionWeights
from headscope.stats.planes import Planes


@dataclass(frozen=True)
class Factors:
    """The four factors of one layer, in float64."""

    W_Q: Tensor  # (n_heads, d_in, d_head); d_in is d_model, or d_model + 1 with biases
    W_K: Tensor  # The same shape
    W_V: Tensor  # The same shape
    W_O_T: Tensor  # (n_heads, d_model, d_head): W_O transposed, so that ``ov`` is ``W_V @ W_O_T^T``
    #: Which keys and values each head reads, where heads share them: (0, 0, 1, 1). W_K and W_V have
    #: those of every head all the same. None where each head has its own.
    key_of_head: tuple[int, ...] | None = None
    planes: Planes | None = None  # In which q and k turn with their position; None if in none

    @property
    def n_heads(self) -> int:
        """Number of heads."""
        return self.W_Q.shape[0]

    @property
    def products(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Left and right factor of each product."""
        return {"qk": (self.W_Q, self.W_K), "ov": (self.W_V, self.W_O_T)}

    def each(self, change: Callable[[Tensor], Tensor]) -> Factors:
        """Return the factors with a function applied to each of them."""
        return dataclasses.replace(
            self,
            W_Q=change(self.W_Q),
            W_K=change(self.W_K),
            W_V=change(self.W_V),
            W_O_T=change(self.W_O_T),
        )

    def first(self, n_heads: int) -> Factors:
        """Keep the first heads only."""
        keys = None if self.key_of_head is None else self.key_of_head[:n_heads]
        return dataclasses.replace(self.each(lambda factor: factor[:n_heads]), key_of_head=keys)

    def concatenated(self) -> Factors:
        """Put all heads side by side, as one head of width n_heads * d_head."""
        n_heads, _, d_head = self.W_Q.shape
        planes = None if self.planes is None else self.planes.side_by_side(n_heads, d_head)
        joined = self.each(lambda factor: factor.transpose(0, 1).flatten(1)[None])
        return dataclasses.replace(joined, key_of_head=None, planes=planes)

    def merged(self) -> Factors:
        """Make one head of those that read the same keys: the sums over heads stay as they are.

        ``W_Q W_K^T`` of two heads that share W_K add up to ``(W_Q + W_Q') W_K^T``, and ``W_V W_O``
        to ``W_V (W_O + W_O')``.
        """
        if self.key_of_head is None:
            return self
        keys = torch.tensor(self.key_of_head, dtype=torch.long)
        n_keys = len(set(self.key_of_head))
        first_reader = torch.tensor(list(map(self.key_of_head.index, range(n_keys)))).long()

        def summed(W: Tensor) -> Tensor:
            return W.new_zeros(n_keys, *W.shape[1:]).index_add_(0, keys, W)

        return Factors(
            W_Q=summed(self.W_Q),
            W_K=self.W_K[first_reader],
            W_V=self.W_V[first_reader],
            W_O_T=summed(self.W_O_T),
            planes=self.planes,
        )


def layer_factors(
    weights: AttentionWeights,
    *,
    biases: bool = False,
    key_of_head: tuple[int, ...] | None = None,
    planes: Planes | None = None,
) -> Factors:
    """Take the factors from the weights of one layer's attention, to the CPU.

    With ``biases`` the input x is augmented by a 1: ``[x, 1] [W_Q; b_Q] W_K^T x^T``, so b_Q adds
    the content term ``b_Q W_K^T x^T``. b_K adds the same number to a whole row of scores, which no
    softmax notices, and is left out. ``ov`` gains the row ``b_V``: as the rows of a pattern sum to
    1, every output receives ``b_V W_O``. Where q and k turn with their position (``planes``), b_K
    adds what hangs on the query and on the distance, and is left out all the same.
    """
    W_Q = _exact(weights.W_Q)
    W_K = _exact(weights.W_K)
    W_V = _exact(weights.W_V)
    if biases:
        W_Q = _with_row(W_Q, _exact(weights.b_Q))
        W_K = _with_row(W_K, torch.zeros_like(W_K[:, 0]))
        W_V = _with_row(W_V, _exact(weights.b_V))
    if planes is not None:
        W_Q = planes.sized(W_Q)
        W_K = planes.sized(W_K)
    return Factors(
        W_Q=W_Q,
        W_K=W_K,
        W_V=W_V,
        W_O_T=_exact(weights.W_O.mT),
        key_of_head=key_of_head,
        planes=planes,
    )


def _exact(weight: Tensor) -> Tensor:
    """Copy a weight to the CPU, in float64."""
    return weight.detach().cpu().double()


def _with_row(W: Tensor, b: Tensor) -> Tensor:
    """Append a row b (n_heads, d_head) to every head's map (n_heads, d_in, d_head)."""
    return torch.cat([W, b[:, None, :]], dim=1)


def fold_gain(weights: AttentionWeights, gain: Tensor, shift: Tensor) -> AttentionWeights:
    """Fold the LayerNorm before a layer into its W_Q, W_K, W_V and their biases.

    ``gain`` g and ``shift`` s (d_model,) are the LayerNorm's weight and bias. The input becomes the
    normalised state before both: ``x = g * x' + s`` turns W into ``diag(g) W`` and b into
    ``s W + b``, in float64 on the CPU. W_O and b_O stay as they were.
    """
    gain = _exact(gain)
    shift = _exact(shift)
    folded = {}
    for name in "QKV":
        W = _exact(getattr(weights, f"W_{name}"))
        folded[f"W_{name}"] = gain[:, None] * W
        folded[f"b_{name}"] = shift @ W + _exact(getattr(weights, f"b_{name}"))
    return AttentionWeights(**folded, W_O=weights.W_O, b_O=weights.b_O)


def random_factors(like: Factors, seed: int) -> Factors:
    """Draw i.i.d. Gaussian factors of the same shapes.

    No kind of rank depends on the scale, so the entries have variance 1. Heads share keys and
    values as those of ``like`` do.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = like.each(lambda W: torch.randn(W.shape, generator=generator, dtype=torch.float64))
    if like.key_of_head is None:
        return drawn
    keys = torch.tensor(like.key_of_head, dtype=torch.long)
    return dataclasses.replace(drawn, W_K=drawn.W_K[keys], W_V=drawn.W_V[keys])
