r"""One layer's weights as factors of the products whose rank is asked for.

::

    qk:  W_Q W_K^T        ov:  W_V W_O

With biases included, x is augmented by a 1: ``[x, 1] [W_Q; b_Q] W_K^T x^T``, so b_Q adds the
content term ``b_Q W_K^T x^T``. b_K adds the same number to a whole row of scores, which no softmax
notices, and is left out. ``ov`` gains the row ``b_V``: as the rows of a pattern sum to 1, every
output receives ``b_V W_O``.

With the preceding LayerNorm folded in, the input is the normalised state before gain and shift:
``x = g * x' + s`` turns W into ``diag(g) W`` and b into ``s W + b``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.attention import AttentionWeights


@dataclass(frozen=True)
class Factors:
    """The four factors of one layer, float64."""

    W_Q: Tensor  # (n_heads, d_in, d_head). d_in is d_model, or d_model + 1 with biases.
    W_K: Tensor
    W_V: Tensor
    W_O_T: Tensor  # (n_heads, d_model, d_head). W_O transposed: ``ov`` is ``W_V @ W_O_T^T``.

    @property
    def n_heads(self) -> int:
        """Heads there are."""
        return self.W_Q.shape[0]

    @property
    def products(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Left and right factor of each product."""
        return {"qk": (self.W_Q, self.W_K), "ov": (self.W_V, self.W_O_T)}

    def each(self, change: Callable[[Tensor], Tensor]) -> Factors:
        """Change each factor."""
        return Factors(*map(change, (self.W_Q, self.W_K, self.W_V, self.W_O_T)))

    def first(self, n_heads: int) -> Factors:
        """Keep the first heads only."""
        return self.each(lambda factor: factor[:n_heads])

    def concatenated(self) -> Factors:
        """Put all heads side by side, as one head of width n_heads * d_head."""
        return self.each(lambda factor: factor.transpose(0, 1).flatten(1)[None])


def layer_factors(weights: AttentionWeights, *, biases: bool = False) -> Factors:
    """Take the factors from a layer's canonical weights, to the CPU.

    With ``biases`` the input is augmented by a 1 that carries b_Q and b_V.
    """
    W_Q, W_K, W_V, W_O = map(_exact, (weights.W_Q, weights.W_K, weights.W_V, weights.W_O))
    if biases:
        W_Q, W_V = _augmented(W_Q, weights.b_Q), _augmented(W_V, weights.b_V)
        W_K = _augmented(W_K, torch.zeros_like(weights.b_K))
    return Factors(W_Q, W_K, W_V, W_O.mT)


def _exact(weight: Tensor) -> Tensor:
    return weight.detach().cpu().double()


def _augmented(W: Tensor, b: Tensor) -> Tensor:
    return torch.cat([W, _exact(b)[:, None, :]], dim=1)


def fold_gain(weights: AttentionWeights, gain: Tensor, shift: Tensor) -> AttentionWeights:
    """Fold the LayerNorm before a layer into its W_Q, W_K, W_V and their biases.

    ``gain`` and ``shift`` (d_model,) are the LayerNorm's weight and bias. What is folded comes back
    in float64 on the CPU; W_O and b_O stay as they were.
    """
    gain, shift = _exact(gain), _exact(shift)
    folded = {}
    for name in "QKV":
        W = _exact(getattr(weights, f"W_{name}"))
        folded[f"W_{name}"] = gain[:, None] * W
        folded[f"b_{name}"] = shift @ W + _exact(getattr(weights, f"b_{name}"))
    return AttentionWeights(**folded, W_O=weights.W_O, b_O=weights.b_O)


def weigh(factors: Factors, root: Tensor, mean: Tensor) -> Factors:
    """Weigh the query and key factors by what the layer really reads.

    ``S^(1/2) W_Q (S^(1/2) W_K)^T = S^(1/2) B S^(1/2)``, inputs written as their mean plus a
    deviation. With biases the query's last row becomes the constant query, ``mean W_Q + b_Q``.

    Shapes: ``root`` (d_model, d_model), ``mean`` (d_model,).
    """
    d_model = len(root)
    W_Q, W_K = (root @ W[:, :d_model] for W in (factors.W_Q, factors.W_K))
    if factors.W_Q.shape[1] > d_model:
        constant = mean @ factors.W_Q[:, :d_model] + factors.W_Q[:, d_model]
        W_Q = torch.cat([W_Q, constant[:, None]], dim=1)
        W_K = torch.cat([W_K, factors.W_K[:, d_model:]], dim=1)
    return dataclasses.replace(factors, W_Q=W_Q, W_K=W_K)


def random_factors(like: Factors, seed: int) -> Factors:
    """Draw i.i.d. Gaussian factors of the same shapes.

    No kind of rank depends on the scale, so the entries have variance 1.
    """
    generator = torch.Generator().manual_seed(seed)
    return like.each(lambda W: torch.randn(W.shape, generator=generator, dtype=torch.float64))
