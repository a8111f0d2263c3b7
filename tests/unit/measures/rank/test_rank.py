"""Every number read off factors equals that of the dense product; the Gaussian control."""

import math
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_reference import (
    check,
    dense,
    dense_asymmetry,
    gaussian,
    orthonormal,
    planted_spectrum,
    random_layer,
    spectrum,
)
from scipy.linalg import subspace_angles
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headscope.measures.rank.dimensions import (
    LEVELS,
    Reading,
    asymmetry,
    cumulative_share,
    matrix_ranks,
    product_ranks,
    product_singular_values,
    subspace_overlap,
    summarise,
)
from headscope.measures.rank.factors import Factors, random_factors
from headscope.measures.rank.gaussian import average, layer_control
from headscope.measures.rank.layer import measure_layer

EPS32 = float(np.finfo(np.float32).eps)
sizes = st.integers(1, 12)
seeds = st.integers(0, 2**16)


@settings(deadline=None, max_examples=60)
@given(heads=st.integers(0, 3), m=sizes, n=sizes, r=sizes, seed=seeds, scale=st.integers(-30, 30))
def test_singular_values_are_the_dense_products(heads, m, n, r, seed, scale):
    left = gaussian(heads, m, r, seed=seed) * 10.0**scale
    right = gaussian(heads, n, r, seed=seed + 1)
    sigma = product_singular_values(left, right)
    assert sigma.dtype == torch.float64
    assert sigma.shape == (heads, min(m, n, r))
    for head in range(heads):
        expected = spectrum(dense(left[head], right[head]), min(m, n, r))
        np.testing.assert_allclose(sigma[head], expected, rtol=1e-10, atol=1e-13 * expected[0])


@settings(deadline=None, max_examples=60)
@given(
    d_model=st.integers(1, 14),
    d_head=st.integers(1, 10),
    n_heads=st.integers(1, 3),
    seed=seeds,
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
        factors = Factors(*(getattr(factors, name)[..., columns] for name in vars(factors)))
    factors = Factors(*(getattr(factors, name) * scale for name in vars(factors)))
    power = 2 if share == "sigma2" else 1
    for item in (factors, factors.concatenated()):
        found = matrix_ranks(item, Reading(share))
        width = item.W_Q.shape[-1]
        count = min(d_model, width)
        for head in range(item.n_heads):
            square, flat = d_model * EPS32, max(d_model, width) * EPS32
            for name, (left, right) in item.products.items():
                matrix = dense(left[head], right[head])
                check(found[name][head], matrix, count, rtol=square, power=power)
            for name, factor in (("w_q", item.W_Q), ("w_k", item.W_K)):
                matrix = factor[head].numpy()
                check(found[name][head], matrix, count, rtol=flat, power=power)


def test_factors_of_any_shape_and_type():
    left, right = gaussian(2, 5, 9), gaussian(2, 5, 9, seed=1)  # a head wider than the model
    for head, found in enumerate(product_ranks(left, right, Reading())):
        check(found, dense(left[head], right[head]), 5, rtol=5 * EPS32)
    left, right = gaussian(1, 11, 3), gaussian(1, 7, 3, seed=1)
    check(product_ranks(left, right, Reading())[0], dense(left[0], right[0]), 3, rtol=11 * EPS32)
    left, right = gaussian(1, 30, 4).float(), gaussian(1, 30, 4, seed=1).float()
    expected = spectrum(dense(left[0], right[0]), 4)  # float32 is read in float64
    np.testing.assert_allclose(product_singular_values(left, right)[0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("sigma", "dims"),
    [
        ([3.0], (1, 1, 1)),
        ([0.7] * 10, (9, 10, 10)),  # at the exact boundary
        ([8.0, 4.0, 2.0, 1.0], (2, 3, 4)),  # squares 64 16 4 1 of 85
        ([1.0, 1e-3, 1e-6], (1, 1, 1)),
        ([100.0, *[1.0] * 7], (1, 1, 1)),
    ],
)
def test_planted_spectrum_is_found(sigma, dims):
    left, right, _, _ = planted_spectrum(24, 10, sigma)
    (found,) = product_ranks(left[None], right[None], Reading(rtol=1e-9))
    planted = [*sigma, *[0.0] * (10 - len(sigma))]
    np.testing.assert_allclose(found.singular_values, planted, rtol=1e-10, atol=1e-12 * sigma[0])
    assert found.numerical_rank.value == len(sigma)
    assert tuple(found.dims.values()) == dims
    squares = sum(value**2 for value in sigma)
    assert found.stable_rank == pytest.approx(squares / sigma[0] ** 2, rel=1e-10)
    entropy = -sum(v / sum(sigma) * math.log(v / sum(sigma)) for v in sigma)
    assert found.effective_rank == pytest.approx(math.exp(entropy), rel=1e-9)


@pytest.mark.parametrize("share", ["sigma2", "sigma"])
@pytest.mark.parametrize("scale", [1e-30, 0.1, 1.0, 1 / 3, 1e30])
def test_equal_singular_values_are_counted_at_the_exact_boundary(share, scale):
    """Nine of ten hold 90%, nineteen of twenty 95%: not one more, whatever rounding does."""
    for k, dims in ((10, (9, 10, 10)), (20, (18, 19, 20)), (100, (90, 95, 99)), (1, (1, 1, 1))):
        sigma = torch.full((k,), scale, dtype=torch.float64)
        found = summarise(sigma, rtol=1e-6, share=share)
        assert found.dims == dict(zip(LEVELS, dims, strict=True))
        assert found.effective_rank == pytest.approx(k, rel=1e-12)
        assert found.stable_rank == pytest.approx(k, rel=1e-12)
        assert found.numerical_rank.value == k


def test_share_of_sigma_and_of_its_square_differ_as_by_hand():
    sigma = torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    # squares 16 9 4 1 of 30: 53%, 83%, 97%; values of 10: 40%, 70%, 90%
    assert summarise(sigma, rtol=1e-6).dims == {"90": 3, "95": 3, "99": 4}
    assert summarise(sigma, rtol=1e-6, share="sigma").dims == {"90": 3, "95": 4, "99": 4}
    np.testing.assert_allclose(cumulative_share(sigma, "sigma"), [0.4, 0.7, 0.9, 1.0])
    np.testing.assert_allclose(
        cumulative_share(torch.stack([sigma, 2 * sigma]), "sigma2"),
        [np.array([16, 25, 29, 30]) / 30] * 2,
    )


def test_numerical_rank_counts_above_the_tolerance():
    sigma = torch.tensor([2.0, 1.0, 0.02, 0.0199, 0.0], dtype=torch.float64)
    assert summarise(sigma, rtol=0.01).numerical_rank.value == 2  # 0.02 is not above
    assert summarise(sigma, rtol=0.00996).numerical_rank.value == 3
    assert summarise(sigma, rtol=1e-12).numerical_rank.value == 4
    # The default tolerance is the larger side times epsilon.
    reading = Reading(eps=2.0**-10)
    assert [reading.tolerance(n, 64) for n in (768, 10)] == [768 * 2.0**-10, 64 * 2.0**-10]
    assert Reading(rtol=0.25).tolerance(768, 64) == 0.25
    found = matrix_ranks(random_layer(2, 24, 4), reading)
    assert {item.numerical_rank.rtol for item in found["qk"] + found["w_q"]} == {24 * 2.0**-10}
    # A type too coarse to decide gives no rank.
    (coarse,) = product_ranks(gaussian(1, 300, 4), gaussian(1, 300, 4, seed=1), Reading(eps=2**-7))
    assert (coarse.numerical_rank.value, coarse.numerical_rank.rtol) == (None, 300 * 2**-7)
    assert coarse.dims["90"] is not None
    assert summarise(torch.ones(3).double(), rtol=1.0).numerical_rank.value is None
    assert summarise(torch.ones(3).double(), rtol=0.999).numerical_rank.value == 3


def test_where_nothing_is():
    (found,) = product_ranks(torch.zeros(1, 6, 3), gaussian(1, 6, 3), Reading())
    assert found.singular_values == (0.0, 0.0, 0.0)
    assert found.numerical_rank.value == 0
    assert (found.stable_rank, found.effective_rank) == (None, None)
    assert found.dims == dict.fromkeys(LEVELS)
    heads, whole = measure_layer(3, random_layer(2, 6, 3).first(0), Reading())
    assert (heads, whole.layer, whole.heads, whole.asymmetry) == ([], 3, (), None)
    assert whole.qk.singular_values == whole.w_q.singular_values == ()
    assert whole.qk.effective_rank is None
    assert whole.overlap.query == whole.overlap.query_key == ()
    (head,), whole = measure_layer(0, Factors(*torch.zeros(4, 1, 6, 3).double()), Reading())
    assert (head.asymmetry, whole.asymmetry) == (None, None)
    assert whole.overlap.query == ((0.0,),)
    assert bool(asymmetry(torch.zeros(2, 5, 3), gaussian(2, 5, 3)).isnan().all())


@settings(deadline=None, max_examples=20)
@given(seed=seeds)
def test_a_change_of_basis_shared_by_query_and_key_changes_no_product(seed):
    factors = random_layer(2, 16, 4, seed)
    G = orthonormal(4, 4, seed) @ torch.diag(torch.tensor([1, 2, 3, 5.0]).double())
    G = G @ orthonormal(4, 4, seed + 1)
    back = torch.linalg.inv(G).T
    moved = Factors(factors.W_Q @ G, factors.W_K @ back, factors.W_V @ G, factors.W_O_T @ back)
    before, after = (matrix_ranks(item, Reading()) for item in (factors, moved))
    for name in ("qk", "ov"):
        for a, b in zip(before[name], after[name], strict=True):
            np.testing.assert_allclose(a.singular_values, b.singular_values, rtol=1e-10)
            assert (a.dims, a.numerical_rank) == (b.dims, b.numerical_rank)
            assert a.effective_rank == pytest.approx(b.effective_rank, rel=1e-10)
    assert before["w_q"][0].effective_rank != pytest.approx(after["w_q"][0].effective_rank)
    torch.testing.assert_close(
        asymmetry(factors.W_Q, factors.W_K), asymmetry(moved.W_Q, moved.W_K), rtol=1e-10, atol=0
    )


@settings(deadline=None, max_examples=40)
@given(m=st.integers(1, 14), r=st.integers(1, 8), seed=seeds, scale=st.integers(-30, 30))
def test_asymmetry_is_the_dense_products(m, r, seed, scale):
    left, right = gaussian(2, m, r, seed=seed) * 10.0**scale, gaussian(2, m, r, seed=seed + 1)
    for head, value in enumerate(asymmetry(left, right)):
        expected = dense_asymmetry(dense(left[head], right[head]))
        assert float(value) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_asymmetry_of_planted_symmetry():
    A, B = gaussian(40, 6), gaussian(40, 6, seed=1)
    signs = torch.tensor([1.0, -2, 3, -4, 5, 0]).double()
    # W_Q = W_K; A diag A^T; (A B^T + B A^T) of rank 12; (A B^T - B A^T)
    assert float(asymmetry(A, A)) < 1e-12
    assert float(asymmetry(A * signs, A)) < 1e-12
    assert float(asymmetry(torch.cat([A, B], 1), torch.cat([B, A], 1))) < 1e-12
    anti = asymmetry(torch.cat([A, -B], 1), torch.cat([B, A], 1))
    assert float(anti) == pytest.approx(2, abs=1e-12)
    # Between them it is Pythagoras: ||B - B^T|| / ||B|| = 2 a / sqrt(s^2 + a^2) for B = s S + a A
    # with |S| = |A| = 1; here S = u0 u1^T + u1 u0^T, A = u0 u1^T - u1 u0^T.
    u, (s, a) = orthonormal(20, 2), (3.0, 4.0)
    left = torch.stack([(s + a) * u[:, 0], (s - a) * u[:, 1]], dim=1)
    assert float(asymmetry(left, u[:, [1, 0]])) == pytest.approx(2 * a / 5, rel=1e-12)
    values = asymmetry(gaussian(12, 256, 32), gaussian(12, 256, 32, seed=1))  # independent factors
    assert float(values.mean()) == pytest.approx(math.sqrt(2), abs=0.01)
    assert float(values.max()) < 2


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_overlap_is_the_mean_squared_cosine_of_the_principal_angles(scale):
    left, right = gaussian(4, 20, 5), gaussian(4, 20, 5, seed=1)
    right[3, :, :3] = left[2, :, :3]  # two spaces that share three dimensions
    found = subspace_overlap(left * scale, right)
    for g, h in np.ndindex(4, 4):
        angles = subspace_angles(left[g].numpy(), right[h].numpy())
        assert float(found[g, h]) == pytest.approx(np.mean(np.cos(angles) ** 2), abs=1e-10)
    assert float(found[2, 3]) > 0.6


def test_overlap_of_planted_subspaces():
    basis = orthonormal(12, 12)
    mixed = [basis[:, :4] @ gaussian(4, 4, seed=seed) for seed in (0, 1)]
    spaces = torch.stack([*mixed, basis[:, 4:8], basis[:, 2:6]])
    expected = [[1, 1, 0, 0.5], [1, 1, 0, 0.5], [0, 0, 1, 0.5], [0.5, 0.5, 0.5, 1]]
    np.testing.assert_allclose(subspace_overlap(spaces, spaces), expected, atol=1e-12)
    narrow = torch.cat([basis[:, :2], basis[:, :2]], 1)  # rank 2 in four columns: held by the other
    both = torch.stack([narrow, basis[:, :4]])
    wide = gaussian(2, 5, 9)  # as wide as the model
    for x in (both, wide):
        np.testing.assert_allclose(subspace_overlap(x, x), np.ones((2, 2)), atol=1e-12)
    # Random subspaces overlap by their share of the space.
    left, right = gaussian(8, 128, 16), gaussian(8, 128, 16, seed=1)
    assert float(subspace_overlap(left, right).mean()) == pytest.approx(16 / 128, abs=0.01)
    own = subspace_overlap(left, left)
    np.testing.assert_allclose(own.diagonal(), 1, atol=1e-12)
    np.testing.assert_allclose(own, own.T, atol=1e-12)


def test_overlap_ignores_directions_that_are_only_rounding_of_the_stored_weights():
    """A planted space of 3 dimensions, stored in float32 in a head of 8 columns."""
    basis = orthonormal(48, 3)
    W_Q, W_K = (torch.stack([basis @ gaussian(3, 8, seed=s) for s in (k, k + 1)]) for k in (0, 2))
    stored = [w.float().double() for w in (W_Q, W_K)]
    _, whole = measure_layer(0, Factors(*stored, *stored), Reading())
    for table in (whole.overlap.query, whole.overlap.key, whole.overlap.query_key):
        np.testing.assert_allclose(table, np.ones((2, 2)), atol=1e-5)


@pytest.mark.parametrize(("n_heads", "d_model"), [(3, 20), (5, 12)])
def test_layer_is_the_sum_of_its_heads(n_heads, d_model):
    """Heads side by side can exceed the model's width."""
    factors = random_layer(n_heads, d_model, 4)
    heads, whole = measure_layer(7, factors, Reading(), folded=True)
    every, rtol = range(n_heads), d_model * EPS32
    total = np.sum([dense(factors.W_Q[h], factors.W_K[h]) for h in every], axis=0)
    check(whole.qk, total, 12, rtol=rtol)
    out = np.sum([dense(factors.W_V[h], factors.W_O_T[h]) for h in every], axis=0)
    check(whole.ov, out, 12, rtol=rtol)
    side_by_side = np.concatenate([factors.W_Q[h].numpy() for h in every], axis=1)
    check(whole.w_q, side_by_side, 12, rtol=max(d_model, 4 * n_heads) * EPS32)
    assert whole.asymmetry == pytest.approx(dense_asymmetry(total), rel=1e-10)
    assert [(head.layer, head.head) for head in heads] == [(7, h) for h in every]
    assert (whole.layer, whole.heads, whole.folded) == (7, tuple(every), True)


class Shapes(TorchDispatchMode):
    """Writes down the shape of every tensor that any torch operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for item in out if isinstance(out, tuple | list) else (out,):
            if isinstance(item, Tensor):
                self.seen.append((str(func), tuple(item.shape)))
        return out


def test_no_square_of_the_models_width_is_made_for_heads():
    factors = random_layer(4, 512, 16)
    with Shapes() as shapes:
        product_singular_values(factors.W_Q, factors.W_K)
        asymmetry(factors.W_Q, factors.W_K)
        matrix_ranks(factors, Reading())
        subspace_overlap(factors.W_Q, factors.W_K)
    assert len(shapes.seen) > 10
    large = [entry for entry in shapes.seen if sum(side >= 512 for side in entry[1]) >= 2]
    assert large == []
    with Shapes() as shapes:  # the watch sees one that is made
        factors.W_Q @ factors.W_K.mT
    assert [entry for entry in shapes.seen if sum(side >= 512 for side in entry[1]) >= 2]


def test_control_values_of_bert_base():
    """768 x 768 (12 x 64), dimensions to 90% of sigma^2: a random product looks low rank."""
    like = Factors(*torch.empty(4, 12, 768, 64))
    found = layer_control([random_factors(like, seed) for seed in range(2)], Reading())
    assert found.n_heads == 12
    for name, heads, layers in (("w_q", 54, 391), ("qk", 52, 287), ("ov", 52, 287)):
        assert found.heads[name].dims["90"] == pytest.approx(heads, abs=1)
        assert found.layers[name].dims["90"] == pytest.approx(layers, abs=1)
    assert found.heads["qk"].numerical_rank == 64
    assert (found.heads["qk"].draws, found.layers["qk"].draws) == (24, 2)
    assert (found.asymmetry, found.layer_asymmetry) == pytest.approx((2**0.5,) * 2, abs=0.005)
    for value in found.overlap.values():
        assert value == pytest.approx(64 / 768, abs=0.001)


def test_averages_and_deviations_by_hand():
    draws = [random_layer(2, 20, 4, seed) for seed in range(3)]
    found = layer_control(draws, Reading())
    single = [rank for draw in draws for rank in matrix_ranks(draw, Reading())["qk"]]
    ours = found.heads["qk"]
    for name in ("stable_rank", "effective_rank"):
        values = [getattr(rank, name) for rank in single]
        assert getattr(ours, name) == pytest.approx(fmean(values))
        assert ours.std[name] == pytest.approx(stdev(values))
    assert ours.dims["95"] == pytest.approx(fmean(rank.dims["95"] or 0 for rank in single))
    unit = [np.array(r.singular_values) / np.linalg.norm(r.singular_values) for r in single]
    np.testing.assert_allclose(ours.singular_values, np.mean(unit, axis=0), rtol=1e-12)
    assert found.asymmetry == pytest.approx(
        fmean(float(a) for draw in draws for a in asymmetry(draw.W_Q, draw.W_K))
    )
    between = [float(subspace_overlap(draw.W_Q, draw.W_Q)[0, 1]) for draw in draws]
    assert found.overlap["query"] == pytest.approx(fmean(between))


def test_what_a_control_cannot_know():
    # One head has no overlap with another.
    found = layer_control([random_layer(1, 20, 4, seed) for seed in range(2)], Reading())
    assert (found.overlap["query"], found.overlap["key"]) == (None, None)
    assert found.overlap["query_key"] == pytest.approx(0.2, abs=0.15)
    # What a coarse type cannot decide stays undecided.
    reading = Reading(eps=2.0**-7)
    coarse = layer_control([random_layer(2, 200, 4, seed) for seed in range(2)], reading)
    assert coarse.heads["qk"].numerical_rank is None
    assert "numerical_rank" not in coarse.heads["qk"].std
    assert coarse.heads["qk"].effective_rank is not None
    # One matrix has no deviation.
    (one,) = matrix_ranks(Factors(*gaussian(4, 1, 9, 3)), Reading())["qk"]
    alone = average([one])
    assert (alone.std, alone.draws, alone.effective_rank) == ({}, 1, one.effective_rank)


def test_control_does_not_depend_on_the_scale_or_order_of_heads():
    draw = random_layer(3, 20, 4)
    scaled = Factors(*(getattr(draw, name)[[2, 0, 1]] * 1e-3 for name in vars(draw)))
    ours, theirs = (layer_control([item, item], Reading()) for item in (draw, scaled))
    for name in ("qk", "ov", "w_q", "w_k"):
        for table in ("heads", "layers"):
            a, b = getattr(ours, table)[name], getattr(theirs, table)[name]
            np.testing.assert_allclose(a.singular_values, b.singular_values, rtol=1e-9)
            assert a.effective_rank == pytest.approx(b.effective_rank, rel=1e-9)
            assert a.dims == b.dims
    assert ours.asymmetry == pytest.approx(theirs.asymmetry, rel=1e-9)
