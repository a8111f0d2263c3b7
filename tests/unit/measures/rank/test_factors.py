"""Factors of a layer: biases as an augmented input, folded LayerNorms, weighing by a covariance."""

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


def test_factors_are_the_canonical_weights(weights):
    half = AttentionWeights(**{name: value.half() for name, value in vars(weights).items()})
    factors = layer_factors(half)
    assert factors.n_heads == H
    for name in ("W_Q", "W_K", "W_V"):
        assert getattr(factors, name).dtype == torch.float64
        np.testing.assert_array_equal(getattr(factors, name), getattr(half, name).double())
    for head in range(H):
        out = half.W_V[head].double() @ half.W_O[head].double()
        np.testing.assert_allclose(dense(factors.W_V[head], factors.W_O_T[head]), out, rtol=1e-12)


def test_concatenation_puts_head_after_head_like_a_linear_map(weights):
    together = layer_factors(weights).concatenated()
    assert together.W_Q.shape == (1, D, H * R)
    for head in range(H):
        own = slice(head * R, head * R + R)
        np.testing.assert_array_equal(together.W_Q[0, :, own], weights.W_Q[head])
        np.testing.assert_array_equal(together.W_O_T[0, :, own], weights.W_O[head].T)
    assert layer_factors(weights).first(2).W_V.shape == (2, D, R)


def test_included_biases_equal_dense_augmented_matrices(weights):
    found = matrix_ranks(layer_factors(weights, biases=True), Reading())
    for head in range(H):
        query = np.vstack([weights.W_Q[head], weights.b_Q[head][None]])
        key = np.vstack([weights.W_K[head], np.zeros((1, R))])
        value = np.vstack([weights.W_V[head], weights.b_V[head][None]])
        check(found["qk"][head], query @ key.T, R, rtol=(D + 1) * EPS32)
        check(found["ov"][head], value @ weights.W_O[head].numpy(), R, rtol=(D + 1) * EPS32)
        check(found["w_q"][head], query, R, rtol=(D + 1) * EPS32)


def test_the_augmented_product_is_the_score(weights):
    """[x, 1] B [x, 1]^T is q k^T up to a number for each query, which no softmax notices."""
    x = gaussian(6, D, seed=4)
    ones = torch.cat([x, torch.ones(6, 1).double()], dim=1)
    factors = layer_factors(weights, biases=True)
    _, pattern = attention_fused(x[None], x[None], weights, scale=0.5)
    for head in range(H):
        scores = (ones @ factors.W_Q[head]) @ (ones @ factors.W_K[head]).T
        ours = torch.softmax(scores * 0.5, dim=-1)
        np.testing.assert_allclose(ours, pattern[0, head], rtol=1e-10)


def test_key_bias_changes_nothing_and_query_bias_does(weights):
    for biases in (False, True):
        moved = layer_factors(changed(weights, b_K=weights.b_K * 100), biases=biases)
        for name, value in vars(layer_factors(weights, biases=biases)).items():
            np.testing.assert_array_equal(value, getattr(moved, name))
    moved = changed(weights, b_Q=weights.b_Q * 100)
    for biases in (False, True):
        before, after = (
            product_singular_values(*layer_factors(w, biases=biases).products["qk"])
            for w in (weights, moved)
        )
        assert not torch.allclose(before, after) if biases else torch.equal(before, after)


def test_zero_biases_are_the_same_as_none(weights):
    plain = changed(weights, b_Q=torch.zeros(H, R).double(), b_V=torch.zeros(H, R).double())
    for name in ("qk", "ov"):
        found, expected = (
            product_singular_values(*layer_factors(plain, biases=biases).products[name])
            for biases in (True, False)
        )
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_folded_weights_give_the_same_attention_from_normalised_states(weights):
    gain, shift = gaussian(D, seed=5), gaussian(D, seed=6)
    folded = fold_gain(weights, gain, shift)
    normalised = torch.nn.functional.layer_norm(gaussian(2, 7, D, seed=7), (D,))
    x = normalised * gain + shift
    ours, theirs = attention_fused(normalised, normalised, folded), attention_fused(x, x, weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    factors = layer_factors(folded, biases=True)
    for head in range(H):  # by hand
        query = np.diag(gain) @ weights.W_Q[head].numpy()
        np.testing.assert_allclose(factors.W_Q[head, :D], query, rtol=1e-12)
        value = shift.numpy() @ weights.W_V[head].numpy() + weights.b_V[head].numpy()
        np.testing.assert_allclose(factors.W_V[head, D], value)
        np.testing.assert_array_equal(factors.W_O_T[head], weights.W_O[head].T)
    same = layer_factors(fold_gain(weights, torch.ones(D), torch.zeros(D)), biases=True)
    for name, value in vars(layer_factors(weights, biases=True)).items():
        np.testing.assert_array_equal(getattr(same, name), value)


@pytest.mark.parametrize("biases", [False, True])
def test_weighing_is_the_dense_square_root_on_both_sides(weights, biases):
    x = (gaussian(200, D, seed=8) @ gaussian(D, D, seed=9) + gaussian(D, seed=10)).numpy()
    mean, root = x.mean(0), np.real(scipy.linalg.sqrtm(np.cov(x.T, bias=True)))
    factors = layer_factors(weights, biases=biases)
    weighed = weigh(factors, torch.from_numpy(root), torch.from_numpy(mean))
    for head in range(H):
        query, key = root @ weights.W_Q[head].numpy(), root @ weights.W_K[head].numpy()
        if biases:  # a constant query more
            constant = mean @ weights.W_Q[head].numpy() + weights.b_Q[head].numpy()
            query, key = np.vstack([query, constant]), np.vstack([key, np.zeros(R)])
        ours = dense(weighed.W_Q[head], weighed.W_K[head])
        np.testing.assert_allclose(ours, query @ key.T, rtol=1e-9, atol=1e-9)
        if not biases:
            # ||S^(1/2) B S^(1/2)||_F is the deviation of x B y^T for independent x, y.
            scores = (x - mean) @ dense(factors.W_Q[head], factors.W_K[head]) @ (x - mean).T
            assert np.linalg.norm(ours) == pytest.approx(np.sqrt((scores**2).mean()), rel=1e-9)


def test_random_factors_are_standard_normal_and_follow_the_seed():
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
