r"""Scores made symmetric before the softmax, and the changes that serve as controls.

With S the scaled scores of a sequence, including everything that the model adds to them. Mask and
softmax stay as they are::

    S = q k^T scale + bias        A = (S - S^T) / 2        S - A = (S + S^T) / 2

=============  =================================================================================
``symmetric``  S - A: two tokens attend to each other with the same score
``pairs``      S - A', A' = A without its row and column means: how much a token is attended to by
               all (its column) and attends itself (its row) stays, the pairs become symmetric
``noise``      S + R, R independent normal numbers: a change of the same size as ``symmetric``
``shuffled``   S + f (S'^T - S), S' the scores with the tokens renumbered at random: a step of the
               same size as ``symmetric`` towards scores of the same kind
``even``       0: every key that may be seen gets the same weight
=============  =================================================================================

A softmax does not see what is added to a whole row. So ``noise`` and ``shuffled`` have the
Frobenius norm of A after each row's mean over the keys that it sees is taken out. Noise alone is
too weak a control: it leaves S intact, whereas averaging S and S^T removes half of S; and noise has
no columns, keys that all queries attend to. In an untrained model S^T is just another matrix of the
same kind, so ``shuffled`` moves the output as far as ``symmetric``.

A causal mask is applied afterwards: S - A is made of the scores of both directions, and the softmax
then uses those that look back. What a model adds to a pair that it never sees (a bias by distance,
say) is taken from the same pair the other way round.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.attention import Mask, masked_softmax
from headscope.core.activations import visible
from headscope.core.rounding import ROUNDING
from headscope.core.widest import widest

CHANGES = ("symmetric", "pairs", "noise", "shuffled", "even")  # Every change of the scores
RANDOM = ("noise", "shuffled")  # Those with something random in them


def changed_attention(
    change: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Mask = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Attend with changed scores; ``generator`` draws what is random in a change.

    Shapes: ``q``, ``k``, ``v`` (batch, heads, pos, d_head); returns (batch, heads, pos, d_head).
    """
    scores, seen = square_scores(q, k, scale=scale, mask=mask)
    new = changed_scores(change, scores, seen, generator)
    return masked_softmax(new, seen).to(v) @ v


def square_scores(
    q: Tensor, k: Tensor, *, scale: float, mask: Mask = None
) -> tuple[Tensor, Tensor]:
    """Return scaled scores with what the model adds to them, and which pairs it sees.

    Both are (batch, heads, pos, pos); the first in single precision at least, the second boolean.
    """
    scores = widest(q * scale) @ widest(k).transpose(-2, -1)
    if mask is None:
        return scores, torch.ones_like(scores, dtype=torch.bool)
    seen = visible(mask).expand(scores.shape)
    if mask.dtype == torch.bool:
        return scores, seen
    bias = mask.expand(scores.shape).to(scores)
    mirrored = bias.mT.masked_fill(~seen.mT, 0.0)
    return scores + torch.where(seen, bias, mirrored), seen


def changed_scores(
    change: str, scores: Tensor, seen: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Return other scores for the softmax; arguments as :func:`square_scores` gives them."""
    if change == "even":
        return torch.zeros_like(scores)
    odd = (scores - scores.mT) / 2  # A of the module's docstring
    if change == "symmetric":
        return scores - odd
    if change == "pairs":
        # The column means of A are its row means with the sign changed.
        real = _real(seen).to(odd)
        count = real.sum(-1).clamp_min(1.0)[..., None, None]
        row_means = (odd * real[..., None, :]).sum(-1, keepdim=True) / count
        return scores - (odd - row_means + row_means.mT)

    # A random step, as long as A is to a softmax.
    step = torch.randn(scores.shape, generator=generator).to(scores)
    if change == "shuffled":
        step = _renumbered(scores.mT, seen, step) - scores
    step = _visible(step, seen)
    size = _norm(_visible(odd, seen))
    least = torch.finfo(scores.dtype).tiny
    return scores + step * (size / _norm(step).clamp_min(least))


def score_asymmetry(scores: Tensor, seen: Tensor) -> Tensor:
    """Return ||S - S^T||_F / ||S||_F as a softmax sees both, (batch, heads).

    Over visible pairs, without the means of rows: 0 symmetric, sqrt(2) independent directions, 2
    antisymmetric. 0 for scores that a softmax cannot distinguish from zero: constant rows.
    """
    wide = widest(scores)
    size = _norm(_visible(wide, seen))
    raw_size = _norm(wide * seen)
    ratio = _norm(_visible(wide - wide.mT, seen)) / size
    return torch.where(size > ROUNDING * raw_size, ratio, 0.0)[..., 0, 0]


def _renumbered(scores: Tensor, seen: Tensor, draw: Tensor) -> Tensor:
    """Permute a sequence's real positions, rows and columns together, in each head at random.

    ``draw`` (batch, heads, pos, pos) are random numbers; padding stays where it is.
    """
    real = _real(seen)
    # Positions with the real ones first: in their order, and in that of the random numbers.
    in_order = (~real).to(torch.uint8).argsort(dim=-1, stable=True)
    shuffled = torch.where(real, draw[..., 0], torch.inf).argsort(dim=-1, stable=True)
    order = torch.empty_like(in_order).scatter(-1, in_order, shuffled)
    rows = torch.gather(scores, -2, order[..., None].expand(scores.shape))
    return torch.gather(rows, -1, order[..., None, :].expand(scores.shape))


def _norm(matrix: Tensor) -> Tensor:
    """Return the Frobenius norm of the last two axes, which stay with length 1."""
    size: Tensor = torch.linalg.matrix_norm(matrix, keepdim=True)
    return size


def _real(seen: Tensor) -> Tensor:
    """Return which positions are real, (batch, heads, pos): those that see themselves."""
    return seen.diagonal(dim1=-2, dim2=-1)


def _visible(change: Tensor, seen: Tensor) -> Tensor:
    """Return what a softmax sees of a change: no masked pair, no mean of a row."""
    weight = (seen & _real(seen)[..., :, None]).to(change)
    mean = (change * weight).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp_min(1.0)
    return (change - mean) * weight
