"""Projections that heads share: planted ones are recovered, others never do worse than cutting."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from rank_reference import dense, gaussian, random_layer

from headscope.analyses.rank.collaborative import Mixed, score_error, share_projections, truncate
from headscope.analyses.rank.shared_projections import knee, score_costs
from headscope.stats.factors import Factors


def planted(n_heads: int, d_model: int, d_head: int, r: int, seed: int = 0) -> Factors:
    """B_h = P diag(m_h) Q^T with one P and Q of r columns; each head uses at most d_head of them.

    Inside each head the basis is turned, so that nothing can be read off the columns.
    """
    P = gaussian(d_model, r, seed=seed)
    Q = gaussian(d_model, r, seed=seed + 1)
    M = gaussian(n_heads, r, seed=seed + 2)
    W_Q, W_K = torch.zeros(2, n_heads, d_model, d_head, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    for h in range(n_heads):
        used = torch.randperm(r, generator=generator)[:d_head]
        basis = gaussian(d_head, d_head, seed=seed + 10 + h)[: len(used)]
        W_Q[h] = (P[:, used] * M[h, used]) @ torch.linalg.pinv(basis).T
        W_K[h] = Q[:, used] @ basis
    return Factors(W_Q, W_K, W_Q, W_K)


def products(factors: Factors) -> np.ndarray:
    """The dense W_Q W_K^T of every head."""
    return np.stack([dense(q, k) for q, k in zip(factors.W_Q, factors.W_K, strict=True)])


def lost(sigma: np.ndarray, rank: int) -> float:
    """The relative error where only the first singular values remain."""
    return float(np.sqrt((sigma[..., rank:] ** 2).sum() / (sigma**2).sum()))


@pytest.mark.parametrize("width", [1, 20])
def test_score_error_is_the_dense_one(width):
    factors = random_layer(3, 14, 4)
    mixed = Mixed(*gaussian(2, 3, 14, width, seed=1))
    B = products(factors)
    gap = B - np.stack([dense(a, b) for a, b in zip(mixed.query, mixed.key, strict=True)])
    expected = np.linalg.norm(gap) / np.linalg.norm(B)
    assert score_error(factors, mixed) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("shape", [(3, 14, 4), (2, 4, 6)])
def test_truncating_a_head_is_its_best_approximation(shape):
    factors = random_layer(*shape)
    mixed = truncate(factors)
    sigma = np.linalg.svd(products(factors), compute_uv=False)
    for rank in range(min(shape[1:]) + 1):
        error = score_error(factors, mixed.first(rank))
        assert error == pytest.approx(lost(sigma, rank), abs=1e-10)


def test_every_head_uses_the_same_projections_and_full_width_is_exact():
    mixed = share_projections(random_layer(4, 20, 5), 7)
    again = share_projections(random_layer(4, 20, 5), 7)
    assert torch.equal(mixed.query, again.query)
    assert torch.equal(mixed.key, again.key)
    assert mixed.query.shape == mixed.key.shape == (4, 20, 7)
    for column in range(7):  # queries' columns are multiples of one vector, keys' are equal
        assert int(torch.linalg.matrix_rank(mixed.query[:, :, column], rtol=1e-5)) == 1
    assert bool((mixed.key == mixed.key[:1]).all())
    factors = random_layer(3, 20, 4)
    errors = [score_error(factors, share_projections(factors, w)) for w in (1, 3, 6, 9, 12)]
    assert errors[-1] < 1e-10
    assert all(b < a + 1e-3 for a, b in pairwise(errors))
    assert errors[0] > 0.8
    for scale in (1e-30, 1e15):  # of the weights, which does not matter
        scaled = factors.each(lambda factor, by=scale: factor * by)
        error = score_error(scaled, share_projections(scaled, 6))
        assert error == pytest.approx(errors[2], abs=1e-3)


@pytest.mark.parametrize("shape", [(4, 32, 8, 6), (6, 48, 8, 8), (4, 32, 8, 12), (2, 16, 8, 5)])
def test_truly_shared_projections_are_recovered(shape):
    *_, d_head, r = shape
    factors = planted(*shape)
    for width in (r, r + 3):
        assert score_error(factors, share_projections(factors, width)) < 1e-4
    assert score_error(factors, share_projections(factors, r - 1)) > 1e-3
    cut = score_costs(factors, r).truncated_rank
    assert cut < min(r, d_head)
    assert score_error(factors, truncate(factors).first(cut)) > 0.2


def test_layers_of_identical_single_and_zero_heads():
    factors = Factors(*gaussian(4, 1, 12, 4).expand(4, 3, 12, 4))  # need what one of them needs
    sigma = np.linalg.svd(products(factors)[0], compute_uv=False)
    for width in (1, 4, 11):
        error = score_error(factors, share_projections(factors, width))
        assert error == pytest.approx(lost(sigma, width), abs=1e-3)
    one = random_layer(1, 12, 4)  # sharing with nobody: the best approximation of that rank
    for width in (1, 4):
        cut = score_error(one, truncate(one).first(width))
        assert score_error(one, share_projections(one, width)) == pytest.approx(cut, abs=1e-6)
    factors = random_layer(3, 20, 4)
    factors.W_Q[1] = factors.W_K[1] = 0  # one zero head among others
    for width in (1, 8):
        error = score_error(factors, share_projections(factors, width))
        assert np.isfinite(error)
        assert error < 1e-10 or width < 8


@pytest.mark.parametrize(
    ("widths", "errors", "expected"),
    [
        (range(10, 70, 10), [1.0, 0.6, 0.1, 0.09, 0.08, 0.07], 30),
        ([10, 20, 80, 90], [0.9, 0.2, 0.1, 0.0], 20),
        ([1, 2], [1.0, 0.5], None),
        ([1, 2, 3], [1.0, 0.5, 0.0], None),  # a straight line
        ([1, 2, 3], [0.5, 0.4, 0.5], None),  # does not fall
        ([1, 2, 3], [1.0, 0.9, 0.0], None),  # falls ever faster
    ],
)
def test_knee(widths, errors, expected):
    assert knee(list(widths), errors) == expected
