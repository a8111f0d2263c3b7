r"""Collaborative attention: one query and one key projection shared by all heads of a layer.

::

    B_h = W_Q[h] W_K[h]^T  ~  W_Q' diag(m_h) W_K'^T        W_Q', W_K' (d_model, width)

The mixing vector m_h says how much head h uses each shared dimension. All heads at once this is a
rank-``width`` CP (PARAFAC) decomposition of the tensor of all B_h, d_model x d_model x n_heads,
fitted by alternating least squares (tensorly).

:func:`share_projections` fits one layer at one width: it refines the better of two guesses, which
are made at the end of the file. :func:`truncate` is what it is compared with: every head alone, cut
to a lower rank. W_Q and W_K of all heads come as :class:`Factors`, (n_heads, d_model, d_head).

References
----------
Cordonnier, Loukas & Jaggi 2020, arXiv:2006.16362, section 4.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headscope.core.accumulator import numpy
from headscope.core.rounding import tied
from headscope.stats.factors import Factors

#: Rounds of alternating least squares at most. On all-MiniLM-L6-v2 thirty more bring the error
#: down by less than a hundredth of itself.
ITERATIONS = 30
_SETTLED = 1e-4  # Change of the relative error that ends the rounds earlier.
#: Ridge of every least squares step: heads that are copies of each other make it singular.
_RIDGE = 1e-6
_EXACT = 1e-7  # Relative error at which there is nothing to refine.
_NOISE = 1e-13  # Directions weaker than this share of the strongest are arithmetic noise.


class Mixed(NamedTuple):
    """Factors of every head's approximated B: ``B_h ~ query[h] key[h]^T``.

    From shared projections ``query[h] = W_Q' diag(m_h)``, the projection with the head's mixing
    vector multiplied in, and ``key[h] = W_K'``.
    """

    query: Tensor  # (n_heads, d_model, width)
    key: Tensor  # (n_heads, d_model, width)

    def first(self, width: int) -> Mixed:
        """Keep the first ``width`` columns of each head."""
        return Mixed(self.query[..., :width], self.key[..., :width])


class Shared(NamedTuple):
    """Shared projections and mixing vectors, float64."""

    query: Tensor  # W_Q', (d_model, width)
    key: Tensor  # W_K', (d_model, width)
    mixing: Tensor  # m, (n_heads, width): how much each head uses each shared dimension

    @property
    def mixed(self) -> Mixed:
        """Write them out for every head."""
        n_heads = len(self.mixing)
        return Mixed(self.query * self.mixing[:, None, :], self.key.expand(n_heads, -1, -1))


def share_projections(factors: Factors, width: int) -> Mixed:
    """Fit shared projections of one layer."""
    # Start from the better of two guesses; the first of them where they are equally good.
    guesses = [_strongest_directions(factors, width)]
    joint = _joint_diagonal(factors, width)
    if joint is not None:
        guesses.append(joint)
    errors = [score_error(factors, guess.mixed) for guess in guesses]
    best = int(np.nanargmin(tied(errors)))
    start = guesses[best]
    start_error = errors[best]

    # Refine it, and keep that where the error is no larger.
    if start_error < _EXACT:
        return start.mixed
    refined = _refine(factors, start)
    if refined is None or score_error(factors, refined.mixed) > start_error:
        return start.mixed
    return refined.mixed


def _refine(factors: Factors, start: Shared) -> Shared | None:
    """Improve projections by alternating least squares; None where these break down."""
    import tensorly as tl
    from tensorly.cp_tensor import CPTensor
    from tensorly.decomposition import parafac

    tl.set_backend("numpy")
    # All B_h as one tensor, in float32, scaled so that its norm is 1.
    tensor = torch.einsum("hir,hjr->ijh", factors.W_Q, factors.W_K)  # (d_model, d_model, n_heads)
    norm = tensor.norm()
    width = start.mixing.shape[1]
    scaled_start = [start.query / norm.sqrt(), start.key / norm.sqrt(), start.mixing]
    start_arrays = [numpy(factor.float()) for factor in scaled_start]
    no_weights = np.ones(width, dtype=np.float32)  # tensorly can weight the dimensions besides
    try:
        fitted = parafac(
            numpy((tensor / norm).float()),
            width,
            n_iter_max=ITERATIONS,
            init=CPTensor((no_weights, start_arrays)),
            tol=_SETTLED,
            l2_reg=_RIDGE,
        )
    except np.linalg.LinAlgError:
        return None
    query, key, mixing = [torch.from_numpy(factor.copy()).double() for factor in fitted.factors]
    return Shared(query * norm.sqrt(), key * norm.sqrt(), mixing)


def score_error(factors: Factors, mixed: Mixed) -> float:
    """Return how far the approximated B of all heads are from their own.

    ``sqrt(sum_h ||B_h - query[h] key[h]^T||_F^2 / sum_h ||B_h||_F^2)``; for a layer of zeros the
    numerator alone.
    """
    # B - query key^T = [W_Q, query] [W_K, -key]^T: the norm of a product of factors, too.
    gap_query = torch.cat([factors.W_Q, mixed.query], dim=-1)  # (n_heads, d_model, d_head + width)
    gap_key = torch.cat([factors.W_K, -mixed.key], dim=-1)
    gap = _product_norm(gap_query, gap_key)
    size = _product_norm(factors.W_Q, factors.W_K)
    if size > 0:
        return float(gap / size)
    return float(gap)


def _product_norm(query: Tensor, key: Tensor) -> Tensor:
    """Return the norm of ``query key^T`` of all heads, without computing d_model x d_model."""
    r_query = torch.linalg.qr(query, mode="r").R
    r_key = torch.linalg.qr(key, mode="r").R
    norm: Tensor = (r_query @ r_key.mT).norm()
    return norm


def truncate(factors: Factors) -> Mixed:
    """Write each head's B as its singular value decomposition, strongest direction first.

    The first r columns of the result, ``truncate(factors).first(r)``, are the best approximation of
    rank r, head by head.
    """
    basis_q, r_q = torch.linalg.qr(factors.W_Q)
    basis_k, r_k = torch.linalg.qr(factors.W_K)
    u, sigma, v_t = torch.linalg.svd(r_q @ r_k.mT, full_matrices=False)
    root = sigma.sqrt()[:, None, :]  # half of each singular value goes to either factor
    return Mixed(query=basis_q @ u * root, key=basis_k @ v_t.mT * root)


# --- the two guesses ------------------------------------------------------------------------------


def _strongest_directions(factors: Factors, width: int) -> Shared:
    """Take the strongest singular directions of all heads, each used by its own head alone."""
    mixed = truncate(factors)
    sigma = mixed.query.norm(dim=1) * mixed.key.norm(dim=1)  # (n_heads, directions)
    strongest_first: Tensor = sigma.flatten().argsort(descending=True, stable=True)
    n_positive = int((sigma > sigma.max() * _NOISE).sum())
    chosen = strongest_first[: min(width, n_positive)]
    # Back from places in the flattened sigma to the head, and to the direction of that head.
    n_directions = sigma.shape[1]
    head = chosen // n_directions
    direction = chosen % n_directions
    mixing = torch.zeros(factors.n_heads, len(chosen), dtype=torch.float64)
    mixing[head, torch.arange(len(chosen))] = 1
    return Shared(
        query=mixed.query[head, :, direction].T,
        key=mixed.key[head, :, direction].T,
        mixing=mixing,
    )


def _joint_diagonal(factors: Factors, width: int) -> Shared | None:
    """Diagonalise all heads together: exact where they truly share ``width`` projections.

    Let X and Y be two weighted sums of all B_h. Where ``B_h = query diag(m_h) key^T`` for every
    head, ``X = query diag(x) key^T`` and ``Y = query diag(y) key^T``, so the eigenvectors of
    ``X Y^-1 = query diag(x / y) query^-1`` are the shared query directions. To make X and Y square
    and invertible, they are taken of small *cores* of the B_h. None where there is no such core.
    """
    # The heads' cores: their B between the leading directions of all queries and of all keys.
    u = _leading(factors.W_Q, factors.W_K, width)
    v = _leading(factors.W_K, factors.W_Q, width)
    size = min(u.shape[1], v.shape[1])
    if size == 0:  # a layer of zeros
        return None
    u = u[:, -size:]  # the strongest stand last
    v = v[:, -size:]
    cores = (u.T @ factors.W_Q) @ (v.T @ factors.W_K).mT  # (n_heads, size, size)

    # The eigenvectors of X Y^-1, with random weights of the heads, are the shared query directions.
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, factors.n_heads, generator=generator, dtype=torch.float64)
    X, Y = torch.einsum("mh,hij->mij", weights, cores)
    try:
        X_over_Y = torch.linalg.lstsq(Y.T, X.T).solution.T
        values, vectors = torch.linalg.eig(X_over_Y)
        # Complex eigenvectors come in conjugate pairs: the real and imaginary part span the same.
        basis = torch.where(values.imag >= 0, vectors.real, vectors.imag)
        mixed_keys = torch.linalg.solve(basis, cores)  # diag(m_h) key^T of each head
    except RuntimeError:  # torch.linalg.LinAlgError is one
        return None

    # Each shared direction is now a matrix, heads x core keys: the outer product of its mixing of
    # the heads and its key, if there is structure at all. Its strongest singular pair gives them.
    by_direction = mixed_keys.transpose(0, 1)  # (size, n_heads, size)
    mixing, sigma, key_directions = torch.linalg.svd(by_direction, full_matrices=False)
    strongest_mixing = mixing[:, :, 0].T  # (n_heads, size)
    strongest_keys = (key_directions[:, 0] * sigma[:, :1]).T  # (size, size): one column a direction
    return Shared(query=u @ basis, key=v @ strongest_keys, mixing=strongest_mixing)


def _leading(W: Tensor, W_other: Tensor, width: int) -> Tensor:
    """Return the leading left singular vectors of all heads' W W_other^T side by side.

    (d_model, at most ``width``), the weakest first, as ``eigh`` sorts; none that is mere noise.
    """
    gram = torch.einsum("hir,hrs,hjs->ij", W, W_other.mT @ W_other, W)
    values, vectors = torch.linalg.eigh(gram)
    count = min(width, int((values > _NOISE * values[-1]).sum()))
    leading: Tensor = vectors[:, vectors.shape[1] - count :]
    return leading
