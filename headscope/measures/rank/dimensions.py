r"""How many dimensions a head's W_Q W_K^T uses: spectra of products that are never formed.

For factors ``L`` (m x r) and ``R`` (n x r) with QR decompositions ``L = U_L T_L``, ``R = U_R T_R``,
the singular values of ``L R^T`` are those of the small ``T_L T_R^T`` (r x r). In float64.

``qk`` is ``W_Q W_K^T`` (d_model x d_model, rank at most d_head), ``ov`` is ``W_V W_O``.

References
----------
Cordonnier, Loukas & Jaggi 2020, arXiv:2006.16362. Roy & Vetterli 2007, "The effective rank".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.measures.rank.factors import Factors
from headscope.measures.rounding import EPS
from headscope.results.rank import MatrixRank, NumericalRank

LEVELS = ("90", "95", "99")  # Shares whose dimensions are counted.
#: A cumulative sum may fall short of a share that it reaches on paper: by more than the arithmetic
#: in float64 leaves, as the weights themselves were rounded to float32 (an orthogonal map has ten
#: equal singular values but for that, and 9 of them hold 90%).
_ROUNDING = 8 * EPS
#: A product of factors is zero below this share of their norms: what float64 leaves of columns that
#: are orthogonal.
_ZERO = 64 * torch.finfo(torch.float64).eps


def product_singular_values(left: Tensor, right: Tensor) -> Tensor:
    """Descending singular values of ``left @ right^T`` from factors (..., m, r), (..., n, r)."""
    sides = _triangle(left.double()), _triangle(right.double())
    sigma: Tensor = torch.linalg.svdvals(sides[0] @ sides[1].mT)
    return sigma * (sigma[..., :1] > _ZERO * _sizes(*sides)[..., None])


def _sizes(left: Tensor, right: Tensor) -> Tensor:
    """Frobenius norm of left times that of right, (..., m, r) and (..., n, r) -> (...)."""
    size: Tensor = torch.linalg.matrix_norm(left) * torch.linalg.matrix_norm(right)
    return size


def _triangle(factor: Tensor) -> Tensor:
    """Return T of factor = U T; a factor that is not tall is as small as it gets already."""
    if factor.shape[-2] <= factor.shape[-1]:
        return factor
    triangle: Tensor = torch.linalg.qr(factor, mode="r").R
    return triangle


@dataclass(frozen=True)
class Reading:
    """How singular values are read."""

    share: str = "sigma2"
    eps: float = torch.finfo(torch.float32).eps
    rtol: float | None = None

    @property
    def rounding(self) -> float:
        """Relative strength of the directions that rounding to the stored type adds, at most."""
        # Independent roundings of a tall matrix have a norm of about 0.3 eps of the matrix's own.
        return 2 * self.eps

    def tolerance(self, *shape: int) -> float:
        """Return rtol for a matrix of this shape."""
        return max(shape) * self.eps if self.rtol is None else self.rtol

    def ranks(self, sigma: Tensor, *shape: int) -> list[MatrixRank]:
        """Read singular values (n, r) of n matrices of one shape."""
        rtol = self.tolerance(*shape)
        return [summarise(row, rtol=rtol, share=self.share) for row in sigma]


def matrix_ranks(factors: Factors, reading: Reading) -> dict[str, list[MatrixRank]]:
    """Measure ``qk``, ``ov``, ``w_q`` and ``w_k``: one entry a head."""
    found = {name: product_ranks(*sides, reading) for name, sides in factors.products.items()}
    for name, factor in (("w_q", factors.W_Q), ("w_k", factors.W_K)):
        found[name] = reading.ranks(torch.linalg.svdvals(_triangle(factor)), *factor.shape[-2:])
    return found


def product_ranks(left: Tensor, right: Tensor, reading: Reading) -> list[MatrixRank]:
    """Measure ``left @ right^T``, (n_heads, m, r) and (n_heads, n, r), of every head."""
    return reading.ranks(product_singular_values(left, right), left.shape[-2], right.shape[-2])


def summarise(sigma: Tensor, *, rtol: float, share: str = "sigma2") -> MatrixRank:
    """Read every kind of rank off singular values.

    Shapes: ``sigma`` (r,).
    """
    largest = float(sigma[0]) if len(sigma) else 0.0
    count = None if rtol >= 1 else int((sigma > rtol * largest).sum())
    numerical = NumericalRank(count, rtol)
    values = tuple(sigma.tolist())
    if largest == 0:
        return MatrixRank(values, numerical, None, None, dict.fromkeys(LEVELS))
    scaled = sigma / largest  # squares of tiny weights would underflow
    p = scaled / scaled.sum()
    return MatrixRank(
        singular_values=values,
        numerical_rank=numerical,
        stable_rank=float((scaled**2).sum()),
        effective_rank=math.exp(-float(torch.special.xlogy(p, p).sum())),
        dims={
            level: int((cumulative_share(scaled, share) < int(level) / 100 - _ROUNDING).sum()) + 1
            for level in LEVELS
        },
    )


def cumulative_share(sigma: Tensor, share: str) -> Tensor:
    """Share of the k largest in the sum of all, k = 1..r; (..., r) like ``sigma``."""
    part = sigma**2 if share == "sigma2" else sigma
    return part.cumsum(-1) / part.sum(-1, keepdim=True)


def asymmetry(left: Tensor, right: Tensor) -> Tensor:
    """``||B - B^T||_F / ||B||_F`` of B = left right^T, in [0, 2]: (..., m, r) -> (...), float64.

    0 for a symmetric B, about sqrt(2) for independent random factors, 2 for an antisymmetric B, NaN
    for B = 0 (a product of factors whose columns are orthogonal, say).
    """
    r = left.shape[-1]
    basis = _triangle(torch.cat([left, right], dim=-1).double())
    core = basis[..., :r] @ basis[..., r:].mT
    whole = torch.linalg.matrix_norm(core)
    ratio: Tensor = torch.linalg.matrix_norm(core - core.mT) / whole
    return ratio.where(whole > _ZERO * _sizes(left.double(), right.double()), torch.nan)


def subspace_overlap(left: Tensor, right: Tensor, *, rtol: float = 0.0) -> Tensor:
    """Mean squared cosine of the principal angles between column spaces, each with each.

    ``||U_g^T V_h||_F^2 / min(rank)`` with U, V orthonormal bases: 1 if one space holds the other, 0
    if they are orthogonal, r / m on average for random r-dimensional spaces of m dimensions.

    Shapes: ``left``, ``right`` (n_heads, m, r); returns (n_heads, n_heads).
    """
    (u, rank_u), (v, rank_v) = column_basis(left, rtol), column_basis(right, rtol)
    n_heads, m, r = u.shape
    flat_u, flat_v = (x.transpose(0, 1).reshape(m, n_heads * r) for x in (u, v))
    squares = (flat_u.T @ flat_v).square().view(n_heads, r, n_heads, r).sum(dim=(1, 3))
    return squares / torch.minimum(rank_u[:, None], rank_v[None, :]).clamp(min=1)


def head_overlaps(factors: Factors, reading: Reading) -> dict[str, Tensor]:
    """Overlap of the heads' ``query`` and ``key`` spaces, and of ``query_key``, query with key."""
    pairs = {"query": ("W_Q", "W_Q"), "key": ("W_K", "W_K"), "query_key": ("W_Q", "W_K")}
    return {
        name: subspace_overlap(*(getattr(factors, W) for W in pair), rtol=reading.rounding)
        for name, pair in pairs.items()
    }


def column_basis(factor: Tensor, rtol: float = 2 * EPS) -> tuple[Tensor, Tensor]:
    """Orthonormal bases (n_heads, m, r), zero beyond each factor's rank, and the ranks.

    By default directions that rounding to float32 adds do not count (:attr:`Reading.rounding`).
    """
    u, sigma, _ = torch.linalg.svd(factor.double(), full_matrices=False)
    tolerance = max(rtol, max(factor.shape[-2:]) * torch.finfo(torch.float64).eps)
    inside = sigma > tolerance * sigma[..., :1]
    return u * inside[..., None, :], inside.sum(-1).double()
