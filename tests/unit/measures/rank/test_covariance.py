"""Covariances of a stream of inputs are those of all inputs at once."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from rank_reference import gaussian
from torch import Tensor

from headscope.measures.rank.covariance import InputCovariance, square_root


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


def test_equals_numpy_over_real_tokens() -> None:
    sums = InputCovariance(2, 6)
    for x, real in batches():
        sums.update(1, x, real)
    assert sums.count.tolist() == [0, len(rows())]
    np.testing.assert_allclose(sums.mean(1), rows().mean(0), rtol=1e-12)
    np.testing.assert_allclose(
        sums.covariance(1), np.cov(rows().T, bias=True), rtol=1e-9, atol=1e-10
    )


def test_merged_parts_and_restored_states_equal_one_pass() -> None:
    whole, first, second = (InputCovariance(1, 6) for _ in range(3))
    for index, (x, real) in enumerate(batches()):
        whole.update(0, x, real)
        (first if index < 1 else second).update(0, x, real)
    first.merge(second)
    restored = InputCovariance(1, 6)
    restored.load_state(first.state())
    for name, value in whole.state().items():
        np.testing.assert_allclose(restored.state()[name], value, rtol=1e-12)


def test_one_token_a_time_equals_a_batch() -> None:
    at_once, one_by_one = InputCovariance(1, 6), InputCovariance(1, 6)
    for x, real in batches():
        at_once.update(0, x, real)
        for row in x[real]:
            one_by_one.update(0, row[None, None], torch.ones(1, 1, dtype=torch.bool))
    torch.testing.assert_close(one_by_one.covariance(0), at_once.covariance(0))


def test_square_root_is_scipys() -> None:
    covariance = np.cov(rows().T, bias=True)
    root = square_root(torch.from_numpy(covariance)).numpy()
    np.testing.assert_allclose(root, np.real(scipy.linalg.sqrtm(covariance)), atol=1e-10)
    np.testing.assert_allclose(root @ root, covariance, atol=1e-10)
    np.testing.assert_allclose(root, root.T, atol=1e-12)


def test_square_root_of_a_singular_covariance() -> None:
    factor = gaussian(6, 2)
    covariance = factor @ factor.T
    root = square_root(covariance - 1e-14 * torch.eye(6))
    assert bool(root.isfinite().all())
    torch.testing.assert_close(root @ root, covariance, atol=1e-6, rtol=0)
    assert int(torch.linalg.matrix_rank(root, rtol=1e-6)) == 2


def test_constant_inputs_have_no_covariance() -> None:
    sums = InputCovariance(1, 4)
    sums.update(0, torch.full((2, 3, 4), 3.0), torch.ones(2, 3, dtype=torch.bool))
    assert float(sums.covariance(0).abs().max()) == pytest.approx(0, abs=1e-12)
