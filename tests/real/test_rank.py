"""Rank on the demo model's weights."""

import numpy as np
import pytest
from rank_reference import check, dense, dense_asymmetry
from scipy.linalg import subspace_angles

EPS32 = float(np.finfo(np.float32).eps)


@pytest.fixture(scope="module")
def result(measured):
    return measured("rank", control_seeds=2)


def test_the_demo_is_what_dense_products_say(demo, result):
    """Heads, a concatenated layer, and the overlap of heads."""
    assert len(result.heads) == 72
    for layer in (0, 5):
        w = demo.sites[layer].weights()
        for head in (head for head in result.heads if head.layer == layer and head.head % 4 == 0):
            W_Q, W_K, W_V, W_O = (
                x[head.head].detach().double().numpy() for x in (w.W_Q, w.W_K, w.W_V, w.W_O)
            )
            check(head.qk, dense(W_Q, W_K), 32, rtol=384 * EPS32)
            check(head.ov, W_V @ W_O, 32, rtol=384 * EPS32)
            check(head.w_q, W_Q, 32, rtol=384 * EPS32)
            assert head.asymmetry == pytest.approx(dense_asymmetry(dense(W_Q, W_K)), rel=1e-9)

    w = demo.sites[2].weights()
    side = [x.detach().double().transpose(0, 1).flatten(1).numpy() for x in (w.W_Q, w.W_K)]
    sigma = np.linalg.svd(dense(*side), compute_uv=False)
    found = result.layers[2].qk
    np.testing.assert_allclose(found.singular_values, sigma, rtol=1e-8, atol=1e-12 * sigma[0])
    share = np.cumsum(sigma**2) / (sigma**2).sum()
    assert found.dims["90"] == int(np.searchsorted(share, 0.9)) + 1
    tolerance = float(np.linalg.norm(side[0], 2)) * 384 * EPS32
    rank_of_all = np.linalg.matrix_rank(side[0], tol=tolerance)
    assert result.layers[2].w_q.numerical_rank.value == rank_of_all
    W_Q = demo.sites[3].weights().W_Q.detach().double().numpy()
    for g, h in ((0, 1), (4, 9)):
        angles = subspace_angles(W_Q[g], W_Q[h])
        overlap = result.layers[3].overlap.query[g][h]
        assert overlap == pytest.approx(float(np.mean(np.cos(angles) ** 2)), rel=1e-8)


def test_layers_of_the_demo_stand_below_their_controls(result):
    """Cordonnier et al. 2020: the concatenated product is of low rank, a head by far less so."""
    gaussian = result.controls["gaussian"]
    assert gaussian is not None
    control = gaussian.of(12)
    assert control is not None
    together = np.mean([layer.qk.dims["90"] or 0 for layer in result.layers])
    alone = np.mean([head.qk.dims["90"] or 0 for head in result.heads])
    layer_share = together / (control.layers["qk"].dims["90"] or 1)
    head_share = alone / (control.heads["qk"].dims["90"] or 1)
    assert layer_share < head_share < 1
    fresh = result.controls["fresh"]
    assert fresh is not None
    start = fresh.of(12)
    assert start is not None
    assert start.layers["qk"].effective_rank == pytest.approx(
        control.layers["qk"].effective_rank, rel=0.02
    )
