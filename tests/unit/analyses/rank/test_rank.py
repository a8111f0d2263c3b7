"""Every number read off factors equals that of the dense product; the Gaussian control."""

from statistics import fmean, stdev

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_reference import check, dense, gaussian, least_dims, random_layer, spectrum
from scipy.linalg import subspace_angles

from headscope.attention import AttentionWeights, attention_fused
from headscope.stats.factors import Factors, layer_factors, random_factors
from headscope.stats.spectra import (
    LEVELS,
    RankSettings,
    asymmetry,
    column_basis,
    layer_control,
    layer_spectra,
    matrix_ranks,
    product_ranks,
    subspace_overlap,
)

EPS32 = float(np.finfo(np.float32).eps)


def ranks(sigma, **how):
    (matrix,) = RankSettings(**how).ranks(sigma[None], 1)
    return matrix


def numerical_rank(sigma, rtol):
    return ranks(sigma, rtol=rtol).numerical_rank.value


def control_of(draws):
    return layer_control([layer_spectra(draw, RankSettings()) for draw in draws])


@settings(deadline=None, max_examples=25)
@given(
    d_model=st.integers(1, 14),
    d_head=st.integers(1, 10),
    n_heads=st.integers(1, 3),
    seed=st.integers(0, 2**16),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e30]),
    share=st.sampled_from(["sigma2", "sigma"]),
    duplicate=st.booleans(),
)
def test_every_statistic_is_the_dense_products(
    d_model, d_head, n_heads, seed, scale, share, duplicate
):
    factors = random_layer(n_heads, d_model, d_head, seed)
    if duplicate:  # columns twice: the rank is at most half the head's width
        half = (d_head + 1) // 2
        columns = torch.arange(d_head) % half
        factors = factors.each(lambda factor: factor[..., columns])
    factors = factors.each(lambda factor: factor * scale)
    power = 2 if share == "sigma2" else 1
    for item in (factors, factors.concatenated()):
        measured = matrix_ranks(item, RankSettings(share))
        width = item.W_Q.shape[-1]
        count = min(d_model, width)
        for head in range(item.n_heads):
            square = d_model * EPS32
            flat = max(d_model, width) * EPS32
            for name, (queries, keys) in item.products.items():
                matrix = dense(queries[head], keys[head])
                check(measured[name][head], matrix, count, rtol=square, power=power)
            for name, factor in (("w_q", item.W_Q), ("w_k", item.W_K)):
                matrix = factor[head].numpy()
                check(measured[name][head], matrix, count, rtol=flat, power=power)


def test_included_biases_equal_dense_augmented_matrices_and_give_the_scores():
    """[x, 1] B [x, 1]^T is q k^T up to a number for each query, which no softmax notices."""
    (W_Q, W_K, W_V) = gaussian(3, 3, 10, 4)
    (b_Q, b_K, b_V) = gaussian(3, 3, 4, seed=1)
    W_O = gaussian(3, 4, 10, seed=2)
    x = gaussian(6, 10, seed=4)
    weights = AttentionWeights(W_Q, W_K, W_V, b_Q, b_K, b_V, W_O, gaussian(10, seed=3))
    factors = layer_factors(weights, biases=True)
    ones = np.column_stack([x, np.ones(6)])
    measured = matrix_ranks(factors, RankSettings())
    _, pattern = attention_fused(x[None], x[None], weights, scale=0.5)
    for head in range(3):
        query = np.vstack([W_Q[head], b_Q[head][None]])
        key = np.vstack([W_K[head], np.zeros((1, 4))])
        value = np.vstack([W_V[head], b_V[head][None]])
        check(measured["qk"][head], query @ key.T, 4, rtol=11 * EPS32)
        check(measured["ov"][head], value @ W_O[head].numpy(), 4, rtol=11 * EPS32)
        check(measured["w_q"][head], query, 4, rtol=11 * EPS32)
        scores = torch.from_numpy(ones @ dense(factors.W_Q[head], factors.W_K[head]) @ ones.T)
        np.testing.assert_allclose(torch.softmax(scores * 0.5, -1), pattern[0, head], rtol=1e-10)


@pytest.mark.parametrize("share", ["sigma2", "sigma"])
@pytest.mark.parametrize("scale", [1e-30, 1 / 3])
def test_equal_singular_values_are_counted_at_the_exact_boundary(share, scale):
    """Nine of ten hold 90%, nineteen of twenty 95%: not one more, whatever rounding does."""
    for k, dims in ((10, (9, 10, 10)), (20, (18, 19, 20)), (100, (90, 95, 99)), (1, (1, 1, 1))):
        sigma = torch.full((k,), scale, dtype=torch.float64)
        counted = ranks(sigma, rtol=1e-6, share=share)
        assert counted.dims == dict(zip(LEVELS, dims, strict=True))
        assert (counted.effective_rank, counted.stable_rank) == pytest.approx((k, k), rel=1e-12)
        assert counted.numerical_rank.value == k


def test_numerical_rank_counts_above_the_tolerance():
    sigma = torch.tensor([2.0, 1.0, 0.02, 0.0199, 0.0], dtype=torch.float64)
    assert numerical_rank(sigma, 0.01) == 2  # 0.02 is not above
    assert numerical_rank(sigma, 0.00996) == 3
    assert numerical_rank(sigma, 1e-12) == 4
    # The default tolerance is the larger side times epsilon.
    for n, larger in ((768, 768), (10, 64)):
        (square,) = RankSettings(eps=2.0**-10).ranks(sigma[None], n, 64)
        assert square.numerical_rank.rtol == larger * 2.0**-10
    # A type too coarse to decide gives no rank.
    (coarse,) = product_ranks(
        gaussian(1, 300, 4), gaussian(1, 300, 4, seed=1), RankSettings(eps=2**-7)
    )
    assert (coarse.numerical_rank.value, coarse.numerical_rank.rtol) == (None, 300 * 2**-7)
    assert coarse.dims["90"] is not None
    assert numerical_rank(torch.ones(3).double(), 1.0) is None
    assert numerical_rank(torch.ones(3).double(), 0.999) == 3


def test_overlap_is_the_mean_squared_cosine_of_the_principal_angles():
    first = gaussian(4, 20, 5)
    second = gaussian(4, 20, 5, seed=1)
    second[3, :, :3] = first[2, :, :3]  # two spaces that share three dimensions
    overlap = subspace_overlap(column_basis(first * 1e-30, 0.0), column_basis(second, 0.0))
    for g, h in np.ndindex(4, 4):
        angles = subspace_angles(first[g].numpy(), second[h].numpy())
        assert float(overlap[g, h]) == pytest.approx(np.mean(np.cos(angles) ** 2), abs=1e-10)
    assert float(overlap[2, 3]) > 0.6


def test_control_values_are_those_of_gaussian_matrices():
    """4 heads of 64 in 256, dimensions to 90% of sigma^2: a random product looks low rank."""

    def dims(matrix):
        return least_dims(spectrum(matrix, 256), 0.9, 2)

    like = Factors(*torch.empty(4, 4, 256, 64))
    control = control_of([random_factors(like, seed) for seed in range(2)])
    first, second = np.random.default_rng(0).normal(size=(2, 4, 256, 64))
    products = first @ second.transpose(0, 2, 1)
    for name, heads, layer in (
        ("w_q", first, np.hstack(first)),
        ("qk", products, products.sum(0)),
        ("ov", products, products.sum(0)),
    ):
        assert control.heads[name].dims["90"] == pytest.approx(np.mean([*map(dims, heads)]), abs=1)
        assert control.layers[name].dims["90"] == pytest.approx(dims(layer), abs=2)
    assert (control.n_heads, control.heads["qk"].numerical_rank) == (4, 64)
    assert (control.heads["qk"].draws, control.layers["qk"].draws) == (8, 2)
    assert (control.asymmetry, control.layer_asymmetry) == pytest.approx((2**0.5,) * 2, abs=0.03)
    for value in control.overlap.values():
        assert value == pytest.approx(64 / 256, abs=0.01)


def test_averages_and_deviations_by_hand():
    draws = [random_layer(2, 20, 4, seed) for seed in range(3)]
    control = control_of(draws)
    single = []
    asymmetries: list[float] = []
    for draw in draws:
        single += matrix_ranks(draw, RankSettings())["qk"]
        asymmetries += map(float, asymmetry(draw.W_Q, draw.W_K))
    ours = control.heads["qk"]
    for name in ("stable_rank", "effective_rank"):
        values = [getattr(rank, name) for rank in single]
        assert getattr(ours, name) == pytest.approx(fmean(values))
        assert ours.std[name] == pytest.approx(stdev(values))
    assert ours.dims["95"] == pytest.approx(fmean(rank.dims["95"] or 0 for rank in single))
    unit = [np.array(r.singular_values) / np.linalg.norm(r.singular_values) for r in single]
    np.testing.assert_allclose(ours.singular_values, np.mean(unit, axis=0), rtol=1e-12)
    assert control.asymmetry == pytest.approx(fmean(asymmetries))
    bases = [column_basis(draw.W_Q, 0.0) for draw in draws]
    between = [float(subspace_overlap(basis, basis)[0, 1]) for basis in bases]
    assert control.overlap["query"] == pytest.approx(fmean(between))
