"""A slow, literal reading of docs/rank.md: every product formed, NumPy's dense SVD.

Shares no code with the package. Float64 throughout.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headscope.stats.factors import Factors
from headscope.stats.ranks import MatrixRank

Matrix = NDArray[np.float64]


def dense(factor: Any, right: Any) -> Matrix:
    """Form ``left @ right^T``, which the package never does."""
    return np.asarray(factor, dtype=np.float64) @ np.asarray(right, dtype=np.float64).T


def spectrum(matrix: Matrix, count: int) -> Matrix:
    """The ``count`` largest singular values, scaled so that no number is too small for LAPACK."""
    size = np.abs(matrix).max(initial=0.0) or 1.0
    return np.asarray(np.linalg.svd(matrix / size, compute_uv=False)[:count] * size)


def entropy_rank(sigma: Matrix) -> float:
    total = math.fsum(sigma)
    entropy = 0.0
    for value in sigma:
        p = value / total
        entropy -= p * math.log(p) if p > 0 else 0.0
    return math.exp(entropy)


def least_dims(sigma: Matrix, level: float, power: int) -> int:
    """Least k, one sum after the other; a share that lacks 1e-11 counts as reached."""
    powers = [(value / sigma[0]) ** power for value in sigma]
    total = math.fsum(powers)
    for k in range(1, len(powers) + 1):
        if math.fsum(powers[:k]) / total >= level - 1e-11:
            return k
    raise AssertionError


def check(rank: MatrixRank, matrix: Matrix, count: int, *, rtol: float, power: int = 2) -> None:
    """Compare every number of ``found`` with the dense matrix's, to 1e-10 relative."""
    sigma = spectrum(matrix, count)
    assert len(rank.singular_values) == count
    np.testing.assert_allclose(rank.singular_values, sigma, rtol=1e-10, atol=1e-13 * sigma[0])
    assert rank.numerical_rank.rtol == rtol
    if rtol < 1:
        assert rank.numerical_rank.value == sum(value > rtol * sigma[0] for value in sigma)
    else:
        assert rank.numerical_rank.value is None
    frobenius = math.sqrt(math.fsum(((matrix / sigma[0]) ** 2).ravel()))
    assert rank.stable_rank is not None
    assert math.isclose(rank.stable_rank, frobenius**2, rel_tol=1e-10)
    assert rank.effective_rank is not None
    assert math.isclose(rank.effective_rank, entropy_rank(sigma), rel_tol=1e-10)
    levels = {"90": 0.9, "95": 0.95, "99": 0.99}
    assert rank.dims == {name: least_dims(sigma, level, power) for name, level in levels.items()}


def dense_asymmetry(matrix: Matrix) -> float:
    return float(np.linalg.norm(matrix - matrix.T) / np.linalg.norm(matrix))


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def orthonormal(rows: int, columns: int, seed: int = 0) -> Tensor:
    basis: Tensor = torch.linalg.qr(gaussian(rows, columns, seed=seed)).Q
    return basis


def random_layer(n_heads: int, d_model: int, d_head: int, seed: int = 0) -> Factors:
    return Factors(*gaussian(4, n_heads, d_model, d_head, seed=seed))


def planted_spectrum(d_model: int, d_head: int, sigma: list[float], seed: int = 0) -> Any:
    """Factors (d_model x d_head) of a product with exactly these singular values, and its U, V."""
    r = len(sigma)
    u = orthonormal(d_model, r, seed)
    v = orthonormal(d_model, r, seed + 1)
    mix = gaussian(r, d_head, seed=seed + 2)  # any basis inside the head
    factor = (u * torch.tensor(sigma, dtype=torch.float64)) @ torch.linalg.pinv(mix).T
    return factor, v @ mix, u, v
