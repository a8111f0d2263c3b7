r"""Collaborative attention: one query and one key projection shared by all heads of a layer.

::

    B_h = W_Q[h] W_K[h]^T  ~  W_Q' diag(m_h) W_K'^T        W_Q', W_K' (d_model, width)

The mixing vector m_h says how much head h uses each shared dimension. All heads at once this is a
rank-``width`` CP (PARAFAC) decomposition of the tensor of all B_h, d_model x d_model x n_heads,
fitted by alternating least squares (tensorly).

References
----------
Cordonnier, Loukas & Jaggi 2020, arXiv:2006.16362, section 4.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headscope.measures.accumulator import numpy
from headscope.measures.rank.factors import Factors
from headscope.measures.rank.starts import Mixed, Start, joint_diagonal, strongest_directions
from headscope.measures.rounding import above, tied

#: Rounds of alternating least squares at most. On all-MiniLM-L6-v2 thirty more bring the error
#: down by less than a hundredth of itself.
ITERATIONS = 30
#: Change of the relative error that ends them earlier.
_SETTLED = 1e-4
#: Ridge of every least squares step: heads that are copies of each other make it singular.
_RIDGE = 1e-6
#: Relative error at which there is nothing to refine.
_EXACT = 1e-7


def share_projections(factors: Factors, width: int) -> Mixed:
    """Fit shared projections of one layer.

    Parameters
    ----------
    factors : Factors
        Of one layer, without biases.
    width : int
        Shared dimensions, 1 .. n_heads * d_head.

    Returns
    -------
    Mixed
        The factors ``W_Q' diag(m_h)`` and ``W_K'``, (n_heads, d_model, width), float64.

    Notes
    -----
    Starts from the better of two closed forms (:mod:`headscope.measures.rank.starts`) and is
    never worse than it; one of them cuts the heads to as many directions in all. Fitted in float32:
    twice as fast, and the error of the fit is a hundred thousand times that of the arithmetic.
    Deterministic.
    """
    start, error = _best_start(factors, width)
    if error < _EXACT:
        return start.mixed
    fitted = _refine(factors, start)
    if fitted is None or score_error(factors, fitted.mixed) > error:
        return start.mixed
    return fitted.mixed


def _best_start(factors: Factors, width: int) -> tuple[Start, float]:
    starts = [strongest_directions(factors, width)]
    if (found := joint_diagonal(factors, width)) is not None:
        starts.append(found)
    errors = [score_error(factors, start.mixed) for start in starts]
    best = int(np.nanargmin(tied(errors)))
    return starts[best], errors[best]


def _refine(factors: Factors, start: Start) -> Start | None:
    """Alternate least squares; None where they break down."""
    import tensorly as tl
    from tensorly.cp_tensor import CPTensor
    from tensorly.decomposition import parafac

    tl.set_backend("numpy")
    tensor = torch.einsum("hir,hjr->ijh", factors.W_Q, factors.W_K)
    size = tensor.norm()
    begin = (start.left / size.sqrt(), start.right / size.sqrt(), start.mixing)
    width = start.mixing.shape[1]
    try:
        fitted = parafac(
            numpy((tensor / size).float()),
            width,
            n_iter_max=ITERATIONS,
            init=CPTensor((np.ones(width, dtype=np.float32), [numpy(x.float()) for x in begin])),
            tol=_SETTLED,
            l2_reg=_RIDGE,
        )
    except np.linalg.LinAlgError:
        return None
    left, right, mixing = (torch.from_numpy(x.copy()).double() for x in fitted.factors)
    return Start(left * size.sqrt(), right * size.sqrt(), mixing)


def score_error(factors: Factors, mixed: Mixed) -> float:
    """``sqrt(sum_h ||B_h - L_h R_h^T||_F^2 / sum_h ||B_h||_F^2)``; 0 for a layer of zeros."""
    # B - B' = [W_Q, L] [W_K, -R]^T: the norm of a product of factors.
    gap = _product_norm(
        torch.cat([factors.W_Q, mixed.left], -1), torch.cat([factors.W_K, -mixed.right], -1)
    )
    size = _product_norm(factors.W_Q, factors.W_K)
    return float((gap / size) if size > 0 else gap)


def _product_norm(left: Tensor, right: Tensor) -> Tensor:
    r_left, r_right = (torch.linalg.qr(side, mode="r").R for side in (left, right))
    norm: Tensor = (r_left @ r_right.mT).norm()
    return norm


def score_parameters(n_heads: int, d_model: int, d_head: int) -> int:
    """Parameters of a layer's W_Q, b_Q, W_K (b_K cannot change a pattern)."""
    return n_heads * d_head * (2 * d_model + 1)


def shared_parameters(n_heads: int, d_model: int, width: int) -> int:
    """Parameters of shared projections, mixing vectors, and b_Q W_K^T of every head."""
    return width * (2 * d_model + n_heads) + n_heads * d_model


def truncated_rank(n_heads: int, d_model: int, d_head: int, width: int) -> int:
    """Rank per head whose factors cost no more than shared projections of this width."""
    # n_heads * 2 * d_model * rank <= width * (2 * d_model + n_heads), b_Q W_K^T alike in both
    return min(d_head, int(width * (2 * d_model + n_heads) // (2 * d_model * n_heads)))


def knee(widths: list[int], errors: list[float]) -> int | None:
    """Width where the falling error turns flat: farthest below the chord, both axes scaled to 1.

    References
    ----------
    Satopaa et al. 2011, "Finding a Kneedle in a Haystack", without its smoothing.
    """
    if len(widths) < 3 or not above(errors[0], errors[-1]):  # errors are shares of a layer's norm
        return None
    x = (np.array(widths) - widths[0]) / (widths[-1] - widths[0])
    y = (np.array(errors) - errors[-1]) / (errors[0] - errors[-1])
    below = 1 - x - y
    best = int(tied(below).argmax())
    return widths[best] if above(below[best], 0.0) else None  # a straight line has no knee
