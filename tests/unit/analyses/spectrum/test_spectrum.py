"""Spectra of patterns: closed forms, NumPy's SVD as the oracle, sums that add up."""

import numpy as np
import pytest
import torch
from hand_made import activations
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from scipy.special import softmax

from headscope.analyses.classify.rows import OFFSETS
from headscope.analyses.spectrum.measure import (
    MatrixPool,
    PatternSpectra,
    Spectrum,
    control_spectra,
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
            observer.finish("encoder", 0)
    return sums


def slow_shares(patterns: np.ndarray, k: int, power: int) -> np.ndarray:
    """(sequences, heads): the definition, a head at a time."""
    out = np.empty(patterns.shape[:2])
    for place in np.ndindex(*out.shape):
        sigma = np.linalg.svd(patterns[place].astype(np.float64), compute_uv=False) ** power
        out[place] = sorted(sigma, reverse=True)[:k] @ np.ones(k) / sigma.sum()
    return out


CLOSED = {
    "uniform": (np.full((512, 512), 1 / 512), 1.0, 1.0, 1e-6),
    "identity": (np.eye(512), 0.25, 0.25, 1e-6),
    "previous-token": (previous_token(512), 0.251, 0.252, 5e-4),
    "random-logits": (random_softmax(512, 1), 0.487, 0.773, 4e-3),
}


@pytest.mark.parametrize("name", CLOSED)
def test_measured_patterns_and_controls_hit_their_closed_form(name):
    pattern, *expected, tolerance = CLOSED[name]
    sums, sigma = measured(pattern[None, None]), control_spectra(512, 0)[name]
    found = [sums.means(curve)[0, 0, 127] for curve in ("curve", "curve_sq")]
    assert found == pytest.approx(expected, abs=tolerance)
    found = [shares(sigma**power).mean(0)[127] for power in (1, 2)]
    assert found == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("n", [4, 5, 33])
def test_controls_are_what_the_svd_of_their_patterns_says(n):
    generator = np.random.default_rng(5)
    drawn = softmax(np.stack([generator.standard_normal((n, n)) for _ in range(5)]), axis=-1)
    for name, patterns in {
        "uniform": np.full((1, n, n), 1 / n),
        "identity": np.eye(n)[None],
        "previous-token": previous_token(n)[None],
        "random-logits": drawn,
    }.items():
        sigma = np.linalg.svd(patterns, compute_uv=False)
        expected = np.cumsum(sigma, -1) / sigma.sum(-1, keepdims=True)
        found = shares(control_spectra(n, 5)[name])
        np.testing.assert_allclose(found, expected, atol=1e-9)


weights = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 3), st.just(9), st.just(9)),
    elements=st.floats(0.0, 1.0, width=32),
)


@settings(max_examples=80, deadline=None)
@given(weights)
def test_singular_values_equal_numpys(matrices):
    expected = np.linalg.svd(matrices, compute_uv=False)
    error = np.abs(singular_values(matrices) - expected)
    assert (error <= 1e-7 * expected[:, :1] + 1e-300).all()


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 16.0])
def test_shares_of_any_sharpness(sharpness):
    pattern = random_softmax(128, 0, sharpness).astype(np.float32).astype(np.float64)
    sigma = np.linalg.svd(pattern, compute_uv=False)
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


@pytest.mark.parametrize("k", [1, 5, 20])
def test_means_errors_and_intervals(patterns, k):
    sums = measured(patterns, batches=3)
    for name, power in (("curve", 1), ("curve_sq", 2)):
        expected = slow_shares(patterns, k, power)
        np.testing.assert_allclose(sums.means(name)[0, :, k - 1], expected.mean(0), atol=1e-7)
        error = expected.std(0, ddof=1) / np.sqrt(7)
        np.testing.assert_allclose(sums.standard_errors(name)[0, :, k - 1], error, atol=1e-7)
    slow = slow_shares(patterns, 5, 1)
    low, high = stats.t.interval(0.95, 6, slow.mean(0), stats.sem(slow))
    np.testing.assert_allclose(sums.half_widths(5)[0], (high - low) / 2, rtol=1e-4)
    assert sums.worst_half_width(5) == pytest.approx(((high - low) / 2).max(), rel=1e-4)


def test_no_pattern_is_kept(patterns):
    """The observer may not look at a chunk again after it was shown: its memory is reused."""
    sums = Spectrum(1, 3, 20)
    shown = torch.from_numpy(patterns.copy())
    with MatrixPool(1) as pool:
        observer = PatternSpectra(sums, pool, lambda _: slice(1, 19))
        observer.observe(activations(shown))
        shown.zero_()
        observer.finish("encoder", 0)
    np.testing.assert_array_equal(sums.curve, measured(patterns).curve)


@pytest.mark.parametrize("n", [4, 20])
def test_offset_means(n):
    pattern = random_softmax(n, 0, 2.0)
    sums = measured(pattern[None, None])
    for i, r in enumerate(OFFSETS):
        inside = [pattern[q, q + r] for q in range(1, n - 1) if 0 <= q + r < n]
        expected = np.mean(inside) if inside else 0.0
        assert sums.means("offsets")[0, 0, i] == pytest.approx(expected, abs=1e-6)
