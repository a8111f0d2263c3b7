"""Sums over a text: padding, chunks, batches and merging leave what all tokens give at once."""

import numpy as np
import pytest
import scipy.linalg
import torch
from hand_made import activations
from rank_reference import gaussian
from torch import Tensor

from headscope.measures.rank.covariance import InputCovariance, square_root
from headscope.measures.rank.pattern_asymmetry import PatternAsymmetry


def test_asymmetry_of_known_patterns():
    n = 6
    cyclic = torch.roll(torch.eye(n), 1, dims=1)  # everybody to the next: no pair is mutual
    mutual = torch.eye(n)[[1, 0, 3, 2, 5, 4]]
    even = torch.full((n, n), 1 / n)
    one, two = PatternAsymmetry(1, 3), PatternAsymmetry(1, 3)
    for sums, patterns in ((one, (even, cyclic, mutual)), (two, (mutual, cyclic, cyclic))):
        sums.start(torch.ones(1, n, dtype=torch.bool))
        sums.observe(activations(torch.stack(patterns)[None]))
    root = 2**0.5
    np.testing.assert_allclose(one.mean(), [[0, root, 0]], atol=1e-7)
    assert bool(np.isnan(one.sem()).all())  # of a single sequence
    assert bool(np.isnan(PatternAsymmetry(1, 2).mean()).all())
    one.merge(two)
    np.testing.assert_allclose(one.mean(), [[0, root, root / 2]], atol=1e-7)
    np.testing.assert_allclose(one.sem(), [[0, 0, root / 2]], atol=1e-7)


def batches() -> list[tuple[Tensor, Tensor]]:
    """Three padded batches of 6 dimensions, far from mean zero; padding holds nonsense."""
    made = []
    for seed in range(3):
        x = gaussian(4, 5, 6, seed=seed) * torch.arange(1, 7) + 20
        real = torch.arange(5)[None] < torch.tensor([5, 3, 1, 4])[:, None]
        x[~real] = 1e6
        made.append((x, real))
    return made


def rows() -> np.ndarray:
    return np.concatenate([x[real].numpy() for x, real in batches()])


def test_covariance_is_numpys_over_real_tokens_however_they_come():
    whole, first, second, single = (InputCovariance(2, 6) for _ in range(4))
    for index, (x, real) in enumerate(batches()):
        whole.update(1, x, real)
        (first if index < 1 else second).update(1, x, real)
        for row in x[real]:
            single.update(1, row[None, None], torch.ones(1, 1, dtype=torch.bool))
    first.merge(second)
    restored = InputCovariance(2, 6)
    restored.load_state(first.state())
    expected = np.cov(rows().T, bias=True)
    for sums in (whole, restored, single):
        assert sums.count.tolist() == [0, len(rows())]
        np.testing.assert_allclose(sums.mean(1), rows().mean(0), rtol=1e-12)
        np.testing.assert_allclose(sums.covariance(1), expected, rtol=1e-9, atol=1e-10)
    constant = InputCovariance(1, 4)
    constant.update(0, torch.full((2, 3, 4), 3.0), torch.ones(2, 3, dtype=torch.bool))
    assert float(constant.covariance(0).abs().max()) == pytest.approx(0, abs=1e-12)


def test_square_root_is_scipys():
    covariance = np.cov(rows().T, bias=True)
    root = square_root(torch.from_numpy(covariance)).numpy()
    np.testing.assert_allclose(root, np.real(scipy.linalg.sqrtm(covariance)), atol=1e-10)
    np.testing.assert_allclose(root @ root, covariance, atol=1e-10)
    np.testing.assert_allclose(root, root.T, atol=1e-12)
    factor = gaussian(6, 2)
    singular = factor @ factor.T
    own = square_root(singular - 1e-14 * torch.eye(6))
    assert bool(own.isfinite().all())
    torch.testing.assert_close(own @ own, singular, atol=1e-6, rtol=0)
    assert int(torch.linalg.matrix_rank(own, rtol=1e-6)) == 2
