r"""Where the fit of shared projections starts: two closed forms, the better of which is refined.

Both write all heads of a layer as ``B_h ~ left diag(mixing_h) right^T``.

References
----------
Leurgans, Ross & Abel 1993, "A decomposition for three-way arrays" (simultaneous diagonalisation).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.measures.rank.factors import Factors

#: Directions weaker than this share of the strongest are arithmetic noise.
_NOISE = 1e-13


@dataclass(frozen=True)
class Mixed:
    """Factors of every head's scores, ``L_h R_h^T``; each (n_heads, d_model, width)."""

    left: Tensor
    right: Tensor

    def first(self, width: int) -> Mixed:
        """Keep the first columns of each head."""
        return Mixed(self.left[..., :width], self.right[..., :width])


@dataclass(frozen=True)
class Start:
    """Shared projections and mixing vectors, float64.

    Attributes
    ----------
    left, right : Tensor, (d_model, width)
        The shared query and key projections, W_Q' and W_K'.
    mixing : Tensor, (n_heads, width)
        How much each head uses each shared dimension.
    """

    left: Tensor
    right: Tensor
    mixing: Tensor

    @property
    def mixed(self) -> Mixed:
        """The factors of every head's scores."""
        n_heads = len(self.mixing)
        return Mixed(self.left * self.mixing[:, None, :], self.right.expand(n_heads, -1, -1))


def truncate(factors: Factors) -> Mixed:
    """Write each head's B as its singular value decomposition, strongest direction first.

    :meth:`Mixed.first` of the result is the best approximation of that rank, head by head.
    """
    q_left, r_left = torch.linalg.qr(factors.W_Q)
    q_right, r_right = torch.linalg.qr(factors.W_K)
    u, sigma, v_t = torch.linalg.svd(r_left @ r_right.mT, full_matrices=False)
    root = sigma.sqrt()[:, None, :]
    return Mixed(q_left @ u * root, q_right @ v_t.mT * root)


def strongest_directions(factors: Factors, width: int) -> Start:
    """Take the strongest singular directions of all heads, each used by its own head alone."""
    mixed = truncate(factors)
    strength = mixed.left.norm(dim=1) * mixed.right.norm(dim=1)  # sigma, (n_heads, d_head)
    order: Tensor = strength.flatten().argsort(descending=True, stable=True)
    positive = int((strength > strength.max() * _NOISE).sum())
    chosen = order[: min(width, positive)]
    head, column = chosen // strength.shape[1], chosen % strength.shape[1]
    mixing = torch.zeros(factors.n_heads, len(chosen), dtype=torch.float64)
    mixing[head, torch.arange(len(chosen))] = 1
    left, right = (side[head, :, column].T for side in (mixed.left, mixed.right))
    return Start(left, right, mixing)


def joint_diagonal(factors: Factors, width: int) -> Start | None:
    """Diagonalise all heads together: exact where they truly share ``width`` projections.

    ``B_h = left diag(m_h) right^T`` makes ``X Y^-1`` of two mixtures X, Y of the heads' cores have
    the shared left directions as eigenvectors.

    Returns
    -------
    Start or None
        None where the heads have no such structure that arithmetic could find.
    """
    u, v = _leading(factors.W_Q, factors.W_K, width), _leading(factors.W_K, factors.W_Q, width)
    size = min(u.shape[1], v.shape[1])
    if size == 0:  # a layer of zeros
        return None
    u, v = u[:, -size:], v[:, -size:]
    core = (u.T @ factors.W_Q) @ (v.T @ factors.W_K).mT  # (n_heads, size, size)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, factors.n_heads, generator=generator, dtype=torch.float64)
    x, y = torch.einsum("mh,hij->mij", weights, core)
    try:
        values, vectors = torch.linalg.eig(torch.linalg.lstsq(y.T, x.T).solution.T)
        # Complex eigenvectors come in conjugate pairs: the real and imaginary part span the same.
        basis = torch.where(values.imag >= 0, vectors.real, vectors.imag)
        rows = torch.linalg.solve(basis, core)
    except RuntimeError:  # torch.linalg.LinAlgError is one
        return None
    # Each shared direction is now a matrix heads x right of rank one, if there is structure at all.
    mixing, sigma, right = torch.linalg.svd(rows.transpose(0, 1), full_matrices=False)
    return Start(u @ basis, v @ (right[:, 0] * sigma[:, :1]).T, mixing[:, :, 0].T)


def _leading(W: Tensor, other: Tensor, width: int) -> Tensor:
    """Leading left singular vectors of all heads' W other^T side by side, weakest first."""
    gram = torch.einsum("hir,hrs,hjs->ij", W, other.mT @ other, W)
    values, vectors = torch.linalg.eigh(gram)
    kept = min(width, int((values > _NOISE * values[-1]).sum()))
    leading: Tensor = vectors[:, vectors.shape[1] - kept :]
    return leading
