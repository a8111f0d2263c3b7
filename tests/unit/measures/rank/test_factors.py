"""Factors of a layer: biases as an augmented input, folded LayerNorms, weighing by a covariance."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from rank_reference import check, dense, gaussian, random_layer
from torch import Tensor

from headscope.attention import AttentionWeights, attention_fused
from headscope.measures.rank.dimensions import Reading, matrix_ranks, product_singular_values
from headscope.measures.rank.factors import Factors, fold_gain, layer_factors, random_factors, weigh

H, D, R = 3, 10, 4
EPS32 = float(np.finfo(np.float32).eps)


@pytest.fixture
def weights() -> AttentionWeights:
    W = gaussian(3, H, D, R)
    b = gaussian(3, H, R, seed=1)
    W_O, b_O = gaussian(H, R, D, seed=2), gaussian(D, seed=3)
    return AttentionWeights(W[0], W[1], W[2], b[0], b[1], b[2], W_O, b_O)


def changed(weights: AttentionWeights, **parts: Tensor) -> AttentionWeights:
    return AttentionWeights(**{**vars(weights), **parts})


def test_factors_are_the_canonical_weights(weights: AttentionWeights) -> None:
    half = AttentionWeights(**{name: value.half() for name, value in vars(weights).items()})
    factors = layer_factors(half)
    assert factors.n_heads == H
    for name in ("W_Q", "W_K", "W_V"):
        assert getattr(factors, name).dtype == torch.float64
        np.testing.assert_array_equal(getattr(factors, name), getattr(half, name).double())
    for head in range(H):
        out = half.W_V[head].double() @ half.W_O[head].double()
        np.testing.assert_allclose(dense(factors.W_V[head], factors.W_O_T[head]), out, rtol=1e-12)


def test_concatenation_puts_head_after_head_like_a_linear_map(weights: AttentionWeights) -> None:
    together = layer_factors(weights).concatenated()
    assert together.W_Q.shape == (1, D, H * R)
    for head in range(H):
        np.testing.assert_array_equal(
            together.W_Q[0, :, head * R : head * R + R], weights.W_Q[head]
        )
        np.testing.assert_array_equal(
            together.W_O_T[0, :, head * R : head * R + R], weights.W_O[head].T
        )
    assert layer_factors(weights).first(2).W_V.shape == (2, D, R)


def test_included_biases_equal_dense_augmented_matrices(weights: AttentionWeights) -> None:
    found = matrix_ranks(layer_factors(weights, biases=True), Reading())
    for head in range(H):
        query = np.vstack([weights.W_Q[head], weights.b_Q[head][None]])
        key = np.vstack([weights.W_K[head], np.zeros((1, R))])
        value = np.vstack([weights.W_V[head], weights.b_V[head][None]])
        check(found["qk"][head], query @ key.T, R, rtol=(D + 1) * EPS32)
        check(found["ov"][head], value @ weights.W_O[head].numpy(), R, rtol=(D + 1) * EPS32)
        check(found["w_q"][head], query, R, rtol=(D + 1) * EPS32)


def test_the_augmented_product_is_the_score(weights: AttentionWeights) -> None:
    """[x, 1] B [x, 1]^T is q k^T up to a number for each query, which no softmax notices."""
    x = gaussian(6, D, seed=4)
    ones = torch.cat([x, torch.ones(6, 1).double()], dim=1)
    factors = layer_factors(weights, biases=True)
    _, pattern = attention_fused(x[None], x[None], weights, scale=0.5)
    for head in range(H):
        scores = (ones @ factors.W_Q[head]) @ (ones @ factors.W_K[head]).T
        ours = torch.softmax(scores * 0.5, dim=-1)
        np.testing.assert_allclose(ours, pattern[0, head], rtol=1e-10)


def test_key_bias_changes_nothing_and_query_bias_does(weights: AttentionWeights) -> None:
    for biases in (False, True):
        moved = layer_factors(changed(weights, b_K=weights.b_K * 100), biases=biases)
        for name, value in vars(layer_factors(weights, biases=biases)).items():
            np.testing.assert_array_equal(value, getattr(moved, name))
    moved = changed(weights, b_Q=weights.b_Q * 100)
    plain, biased = (
        [
            product_singular_values(*layer_factors(w, biases=b).products["qk"])
            for w in (weights, moved)
        ]
        for b in (False, True)
    )
    torch.testing.assert_close(plain[0], plain[1], rtol=0, atol=0)
    assert not torch.allclose(biased[0], biased[1])


def test_zero_biases_are_the_same_as_none(weights: AttentionWeights) -> None:
    zero = torch.zeros(H, R).double()
    plain = changed(weights, b_Q=zero, b_V=zero)
    for name in ("qk", "ov"):
        torch.testing.assert_close(
            product_singular_values(*layer_factors(plain, biases=True).products[name]),
            product_singular_values(*layer_factors(plain).products[name]),
            rtol=1e-12,
            atol=0,
        )


def test_folded_weights_give_the_same_attention_from_normalised_states(
    weights: AttentionWeights,
) -> None:
    gain, shift = gaussian(D, seed=5), gaussian(D, seed=6)
    normalised = torch.nn.functional.layer_norm(gaussian(2, 7, D, seed=7), (D,))
    folded = fold_gain(weights, gain, shift)
    x = normalised * gain + shift
    for ours, theirs in zip(
        attention_fused(normalised, normalised, folded), attention_fused(x, x, weights), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_folding_by_hand(weights: AttentionWeights) -> None:
    gain, shift = gaussian(D, seed=5), gaussian(D, seed=6)
    factors = layer_factors(fold_gain(weights, gain, shift), biases=True)
    for head in range(H):
        np.testing.assert_allclose(
            factors.W_Q[head, :D], np.diag(gain) @ weights.W_Q[head].numpy(), rtol=1e-12
        )
        np.testing.assert_allclose(
            factors.W_V[head, D],
            shift.numpy() @ weights.W_V[head].numpy() + weights.b_V[head].numpy(),
        )
        np.testing.assert_array_equal(factors.W_O_T[head], weights.W_O[head].T)
    same = layer_factors(fold_gain(weights, torch.ones(D), torch.zeros(D)), biases=True)
    for name, value in vars(layer_factors(weights, biases=True)).items():
        np.testing.assert_array_equal(getattr(same, name), value)


def inputs() -> np.ndarray:
    return (gaussian(200, D, seed=8) @ gaussian(D, D, seed=9) + gaussian(D, seed=10)).numpy()


def test_weighing_is_the_dense_square_root_on_both_sides(weights: AttentionWeights) -> None:
    covariance = np.cov(inputs().T, bias=True)
    root = np.real(scipy.linalg.sqrtm(covariance))
    factors = layer_factors(weights)
    weighed = weigh(factors, torch.from_numpy(root), torch.zeros(D).double())
    ours = product_singular_values(weighed.W_Q, weighed.W_K)
    for head in range(H):
        matrix = root @ dense(factors.W_Q[head], factors.W_K[head]) @ root
        np.testing.assert_allclose(ours[head], np.linalg.svd(matrix)[1][:R], rtol=1e-10)


def test_frobenius_norm_of_the_weighed_form_is_what_scores_vary_by(
    weights: AttentionWeights,
) -> None:
    """||S^(1/2) B S^(1/2)||_F is the standard deviation of x B y^T for independent x, y."""
    x = inputs()
    x -= x.mean(0)
    root = np.real(scipy.linalg.sqrtm(np.cov(x.T, bias=True)))
    factors = layer_factors(weights)
    weighed = weigh(factors, torch.from_numpy(root), torch.zeros(D).double())
    for head in range(H):
        scores = x @ dense(factors.W_Q[head], factors.W_K[head]) @ x.T
        norm = np.linalg.norm(dense(weighed.W_Q[head], weighed.W_K[head]))
        assert norm == pytest.approx(np.sqrt((scores**2).mean()), rel=1e-9)


def test_weighing_with_biases_adds_the_constant_query(weights: AttentionWeights) -> None:
    x = inputs()
    mean, root = x.mean(0), np.real(scipy.linalg.sqrtm(np.cov(x.T, bias=True)))
    factors = layer_factors(weights, biases=True)
    weighed = weigh(factors, torch.from_numpy(root), torch.from_numpy(mean))
    for head in range(H):
        constant = mean @ weights.W_Q[head].numpy() + weights.b_Q[head].numpy()
        query = np.vstack([root @ weights.W_Q[head].numpy(), constant])
        key = np.vstack([root @ weights.W_K[head].numpy(), np.zeros(R)])
        np.testing.assert_allclose(
            dense(weighed.W_Q[head], weighed.W_K[head]), query @ key.T, rtol=1e-9, atol=1e-9
        )


def test_random_factors_are_standard_normal_and_follow_the_seed() -> None:
    like = random_layer(2, 30, 8)
    first, again, other = (random_factors(like, seed) for seed in (0, 0, 1))
    for name, value in vars(first).items():
        assert value.shape == getattr(like, name).shape
        np.testing.assert_array_equal(value, getattr(again, name))
        assert not torch.equal(value, getattr(other, name))
        assert abs(float(value.mean())) < 0.2
        assert float(value.std()) == pytest.approx(1, abs=0.15)
    assert not torch.equal(first.W_Q, first.W_K)
    assert isinstance(first, Factors)
