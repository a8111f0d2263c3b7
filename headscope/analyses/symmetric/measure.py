r"""Scores made symmetric before the softmax, and the changes that serve as controls.

S are the scaled scores of a sequence, including everything that the model adds to them; a row is a
query, a column a key. A is their antisymmetric part. Mask and softmax stay as they are::

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

The size of a change is its Frobenius norm as a softmax sees it: without masked pairs, and without
each row's mean, since a softmax does not see what is added to a whole row. ``noise`` and
``shuffled`` are scaled to the size of A.

Noise alone is too weak a control: it leaves S intact, whereas averaging S and S^T removes half of
S; and noise has no columns, keys that all queries attend to. In an untrained model S^T is just
another matrix of the same kind, so ``shuffled`` moves the output as far as ``symmetric``.

A causal mask is applied afterwards: S - A is made of the scores of both directions, and the softmax
then uses those that look back. What a model adds to a pair that it never sees (a bias by distance,
say) is taken from the same pair the other way round.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.attention import Mask, capped, masked_softmax
from headscope.core.activations import visible
from headscope.core.rounding import ROUNDING
from headscope.core.widest import widest

CHANGES = ("symmetric", "pairs", "noise", "shuffled", "even")  # Every change of the scores
RANDOM = ("noise", "shuffled")  # Changes that are drawn at random


def changed_attention(
    change: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    mask: Mask = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Attend with changed scores: z of the heads; ``generator`` draws what is random in a change.

    ``mask`` is boolean, or what the model adds to its scores, minus infinity at hidden keys.

    Shapes: ``q``, ``k``, ``v`` (batch, heads, pos, d_head); returns (batch, heads, pos, d_head).
    """
    scores, seen = square_scores(q, k, scale=scale, softcap=softcap, mask=mask)
    new = changed_scores(change, scores, seen, generator)
    return masked_softmax(new, seen).to(v) @ v


def square_scores(
    q: Tensor, k: Tensor, *, scale: float, softcap: float | None = None, mask: Mask = None
) -> tuple[Tensor, Tensor]:
    """Return the scores S, scaled and with what the model adds to them, and which pairs it sees.

    Both are (batch, heads, pos, pos); the first in single precision at least, the second boolean.
    """
    scores = capped(widest(q * scale) @ widest(k).transpose(-2, -1), softcap)
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
    """Return the scores after a change; ``scores`` and ``seen`` are those of :func:`square_scores`.

    Shapes: both (batch, heads, pos, pos), as what is returned.
    """
    if change == "even":
        return torch.zeros_like(scores)
    A = (scores - scores.mT) / 2
    if change == "symmetric":
        return scores - A
    if change == "pairs":
        real = _real(seen).to(A)
        n_real = real.sum(-1).clamp_min(1.0)[..., None, None]
        row_means = (A * real[..., None, :]).sum(-1, keepdim=True) / n_real  # [..., pos, 1]
        column_means = -row_means.mT  # since A^T = -A
        return scores - (A - row_means - column_means)

    # A random step, as long as A is to a softmax.
    step = torch.randn(scores.shape, generator=generator).to(scores)
    if change == "shuffled":
        step = _renumbered(scores.mT, seen, step) - scores
    step = _as_seen(step, seen)
    size_of_A = _norm(_as_seen(A, seen))
    size_of_step = _norm(step).clamp_min(torch.finfo(scores.dtype).tiny)
    return scores + step * (size_of_A / size_of_step)


def score_asymmetry(scores: Tensor, seen: Tensor) -> Tensor:
    """Return ||S - S^T||_F / ||S||_F as a softmax sees both, (batch, heads).

    Over visible pairs, without the means of rows: 0 symmetric, sqrt(2) independent directions, 2
    antisymmetric. 0 for scores that a softmax cannot distinguish from zero: constant rows.
    """
    S = widest(scores)
    size = _norm(_as_seen(S, seen))
    size_with_row_means = _norm(S * seen)
    asymmetry = _norm(_as_seen(S - S.mT, seen)) / size
    rows_vary = size > ROUNDING * size_with_row_means
    return torch.where(rows_vary, asymmetry, 0.0)[..., 0, 0]


def _renumbered(scores: Tensor, seen: Tensor, draw: Tensor) -> Tensor:
    """Permute a sequence's real positions, rows and columns together, in each head at random.

    ``draw`` (batch, heads, pos, pos) are random numbers; padding stays where it is. With three real
    positions, the second of four being padding, the order may become 3, 1, 0, 2: row and column 0
    of the result are those of position 3, and so on.
    """
    real = _real(seen)
    # Both lists have the real positions first: in their own order, and in that of the draw.
    in_order = (~real).to(torch.uint8).argsort(dim=-1, stable=True)  # 0, 2, 3, 1
    drawn = torch.where(real, draw[..., 0], torch.inf).argsort(dim=-1, stable=True)  # 3, 0, 2, 1
    order = torch.empty_like(in_order).scatter(-1, in_order, drawn)  # 3, 1, 0, 2
    rows_permuted = torch.gather(scores, -2, order[..., None].expand(scores.shape))
    return torch.gather(rows_permuted, -1, order[..., None, :].expand(scores.shape))


def _norm(matrix: Tensor) -> Tensor:
    """Return the Frobenius norm of (..., pos, pos) as (..., 1, 1)."""
    size: Tensor = torch.linalg.matrix_norm(matrix, keepdim=True)
    return size


def _real(seen: Tensor) -> Tensor:
    """Return which positions are no padding, (batch, heads, pos): those that see themselves."""
    return seen.diagonal(dim1=-2, dim2=-1)


def _as_seen(change: Tensor, seen: Tensor) -> Tensor:
    """Return what a softmax sees of a change of scores: no masked pair, no mean of a row."""
    weight = (seen & _real(seen)[..., :, None]).to(change)  # [batch, heads, pos, pos]
    n_keys = weight.sum(-1, keepdim=True).clamp_min(1.0)
    row_means = (change * weight).sum(-1, keepdim=True) / n_keys
    return (change - row_means) * weight
