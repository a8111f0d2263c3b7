"""Spectra of patterns: closed forms, NumPy's SVD as the oracle, sums that add up."""

import numpy as np
import pytest
import torch
from hand_made import activations
from scipy import stats
from scipy.special import softmax

from headscope.analyses.classify.rows import OFFSETS
from headscope.analyses.spectrum.measure import (
    MatrixPool,
    PatternSpectra,
    Spectrum,
    known_patterns,
    right_vectors,
    shares,
    singular_values,
)


def previous_token(n: int) -> np.ndarray:
    pattern = np.zeros((n, n))
    pattern[0, 0] = 1.0
    for i in range(1, n):
        pattern[i, i - 1] = 1.0
    return pattern


def random_softmax(n: int, seed: int, sharpness: float = 1.0) -> np.ndarray:
    weights = np.exp(sharpness * np.random.default_rng(seed).standard_normal((n, n)))
    return weights / weights.sum(1, keepdims=True)


def measured(patterns: np.ndarray, *, batches: int = 1) -> Spectrum:
    """Sums over patterns (sequences, heads, n, n) of one layer, shown as float32."""
    sums = Spectrum(1, patterns.shape[1], patterns.shape[-1])
    with MatrixPool(2) as pool:
        observer = PatternSpectra(sums, pool, lambda _: slice(1, patterns.shape[-1] - 1))
        for part in np.array_split(patterns, batches):
            observer.observe(activations(torch.from_numpy(part).float()))
    return sums


def slow_shares(patterns: np.ndarray, k: int, power: int) -> np.ndarray:
    """(sequences, heads): the definition, a head at a time."""
    out = np.empty(patterns.shape[:2])
    for place in np.ndindex(*out.shape):
        sigma = np.linalg.svd(patterns[place].astype(np.float64), compute_uv=False) ** power
        out[place] = sorted(sigma, reverse=True)[:k] @ np.ones(k) / sigma.sum()
    return out


@pytest.mark.parametrize("n", [4, 33])
def test_controls_are_what_the_svd_of_their_patterns_says(n):
    generator, controls = np.random.default_rng(5), known_patterns(n, 5, 2)
    drawn = softmax(np.stack([generator.standard_normal((n, n)) for _ in range(5)]), axis=-1)
    for name, patterns in {
        "uniform": np.full((1, n, n), 1 / n),
        "identity": np.eye(n)[None],
        "previous-token": previous_token(n)[None],
        "random-logits": drawn,
    }.items():
        control = controls[name]
        for power, curve in ((1, control.curve), (2, control.curve_sq)):
            sigma = np.linalg.svd(patterns, compute_uv=False) ** power
            expected = (np.cumsum(sigma, -1) / sigma.sum(-1, keepdims=True)).mean(0)
            np.testing.assert_allclose(curve, expected, atol=1e-9)
        assert (control.share_at_k, control.draws) == (control.curve[1], len(patterns))


@pytest.mark.parametrize("sharpness", [0.0, 16.0])
def test_shares_of_any_sharpness(sharpness):
    pattern = random_softmax(128, 0, sharpness).astype(np.float32).astype(np.float64)
    sigma = np.linalg.svd(pattern, compute_uv=False)
    np.testing.assert_allclose(singular_values(pattern), sigma, atol=1e-7 * sigma[0])
    found = shares(singular_values(pattern))
    np.testing.assert_allclose(found, np.cumsum(sigma) / sigma.sum(), atol=1e-6)
    u, s, vt = np.linalg.svd(pattern)
    ours = right_vectors(pattern)[:, :5]  # span the best subspace
    np.testing.assert_allclose(pattern @ ours @ ours.T, (u[:, :5] * s[:5]) @ vt[:5], atol=1e-10)
    np.testing.assert_array_equal(shares(np.zeros(3)), 1.0)  # of nothing


@pytest.fixture(scope="module")
def patterns() -> np.ndarray:
    """(sequences, heads, n, n) of different sharpness."""
    return np.stack(
        [np.stack([random_softmax(20, 10 * i + h, 0.5 + h) for h in range(3)]) for i in range(7)]
    ).astype(np.float32)


def test_means_errors_and_intervals(patterns):
    sums = measured(patterns, batches=3)
    for name, power in (("curve", 1), ("curve_sq", 2)):
        slow = slow_shares(patterns, 5, power)
        np.testing.assert_allclose(sums.means(name)[0, :, 4], slow.mean(0), atol=1e-7)
        low, high = stats.t.interval(0.95, 6, slow.mean(0), stats.sem(slow))
        np.testing.assert_allclose(sums.half_widths(5, name)[0], (high - low) / 2, rtol=1e-4)
    assert sums.worst_half_width(5) == sums.half_widths(5).max()


@pytest.mark.parametrize("n", [4, 20])
def test_offset_means(n):
    pattern = random_softmax(n, 0, 2.0)
    sums = measured(pattern[None, None])
    for i, r in enumerate(OFFSETS):
        inside = [pattern[q, q + r] for q in range(1, n - 1) if 0 <= q + r < n]
        expected = np.mean(inside) if inside else 0.0
        assert sums.means("offsets")[0, 0, i] == pytest.approx(expected, abs=1e-6)
