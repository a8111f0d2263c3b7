"""What is equal on paper decides nothing: every kind of decision with noise of float32 in it."""

import math

import numpy as np
import pytest
import torch

from headscope.analyses.classify.roles.special import which_special
from headscope.analyses.linear.correlation import correlate
from headscope.analyses.linear.stored_keys import readout_errors, unit_keys
from headscope.analyses.rank.shared_projections import knee
from headscope.analyses.transfer.intervals import spread_ratio
from headscope.core.rounding import above, first_largest, tied
from headscope.models.run.pooling import MODES
from headscope.pruning.methods import exchange, per_layer
from headscope.pruning.ranking import Ranking
from headscope.reports.claims import intervals
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.metrics import spearman
from headscope.stats.spectra import RankSettings, asymmetry, column_basis, product_singular_values
from headscope.stats.statistics import t_p

#: Relative noise of a float32 computation, as large as another CPU makes it.
NOISE = 5e-7


def noisy(values: np.ndarray) -> np.ndarray:
    return values * (1 + NOISE * np.random.default_rng(0).uniform(-1, 1, values.shape))


def test_scores_that_agree_are_tied():
    scores = tied([3.0, 1.0, 3.0 + 1e-6, 2.0, math.nan, 1.0 - 1e-7])
    np.testing.assert_array_equal(scores, [3.0, 1 - 1e-7, 3.0, 2.0, math.nan, 1 - 1e-7])
    # A dead head beside others; differences of a metric near 1; one row at a time.
    assert len(set(tied([5.0, 1e-8, -1e-8, 0.0]))) == 2
    assert len(set(tied([2e-7, -3e-7, 1e-3], size=1.0))) == 2
    np.testing.assert_array_equal(tied([[1.0, 2.0], [1.0, 1.0]]), [[1.0, 2.0], [1.0, 1.0]])
    assert tied([]).size == 0
    # What differs by more stays apart, small scores too.
    assert len(set(tied([1.0, 1.0001, 1e-4, 1.01e-4]))) == 4


def test_an_even_row_looks_at_its_first_key():
    rows = torch.from_numpy(noisy(np.full((40, 30), 1 / 30))).float()
    rows[:, :2] = -1.0  # no keys
    top, position = first_largest(rows)
    assert position.tolist() == [2] * 40
    torch.testing.assert_close(top, rows.amax(-1), rtol=0, atol=0)
    rows[:, 17] *= 1.0001
    assert first_largest(rows)[1].tolist() == [17] * 40


def test_copies_of_heads_go_in_the_order_of_their_numbers():
    values = noisy(np.array([2.0, 1.0, 1.0, 3.0, 1.0, 0.5]))
    assert Ranking(torch.from_numpy(values)).order == (5, 4, 2, 1, 0, 3)
    drops = torch.from_numpy(values * 0 + noisy(np.ones(6)) - 1)  # of a metric of 1
    assert Ranking(drops, size=1.0).order == (5, 4, 3, 2, 1, 0)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 3))
    matrix = torch.from_numpy(noisy((rows.T @ rows).repeat(2, 0).repeat(2, 1)))
    matrix = (matrix + matrix.T) / 2
    removed = torch.tensor([False, True] * 3)
    assert exchange(matrix[:2, :2], removed[:2]).tolist() == [False, True]
    # A layer of rounding stays one.
    values = torch.tensor([1e-9, -2e-9, 1.0, 2.0], dtype=torch.float64)
    layers = torch.tensor([0, 0, 1, 1])
    assert per_layer(values, layers)[:2].abs().max() == 0
    assert per_layer(values, layers)[2:].norm() == pytest.approx(1)
    assert not per_layer(0 * values, layers).any()


def test_a_constant_is_one():
    rng = np.random.default_rng(0)
    even = noisy(np.full(24, 0.7))
    other = rng.normal(size=24)
    layers = np.repeat(np.arange(4), 6)
    for ranks in (True, False):
        assert correlate(even, other, layers, ranks=ranks).estimate == UNKNOWN
        values = rng.normal(size=24)
        assert correlate(other, even, layers, ranks=ranks, fixed=values).estimate == UNKNOWN
    assert spread_ratio([0.1, 0.1, 0.1], other) == UNKNOWN
    assert spread_ratio(other, noisy(np.full(3, 80.0))) == UNKNOWN
    one = np.ones((1, 24))
    assert spearman({"similarity": even, "gold": other}, one)[0] == 0
    # Equal texts have a cosine of 1: their order is no order.
    similarity = np.where(np.arange(24) < 6, noisy(np.ones(24)), np.linspace(0, 0.9, 24))
    exact = np.where(np.arange(24) < 6, 1.0, similarity)
    correlations = [spearman({"similarity": x, "gold": other}, one)[0] for x in (similarity, exact)]
    assert correlations[0] == correlations[1]


def test_equal_keys_store_nothing_without_their_mean():
    rng = np.random.default_rng(0)
    keys = torch.from_numpy(noisy(np.tile(rng.normal(size=4), (1, 2, 6, 1))))
    keys[:, 1] = torch.from_numpy(rng.normal(size=(6, 4)))  # another head
    real = torch.ones(1, 6, dtype=torch.bool)
    unit, _ = unit_keys(keys, real, centred=True)
    assert not unit[:, 0].any()
    torch.testing.assert_close(unit[:, 1].norm(dim=-1), torch.ones(1, 6).double())
    assert readout_errors(unit, real, {"softmax": 1.0})["least-squares"][0, 0] == 0.5


def test_a_gap_of_rounding_is_no_gap():
    for mean, error, reference, p in (
        (0.6 + 1e-8, 1e-4, 0.6, 0.5),
        (0.6 + 1e-8, 0.0, 0.6, 0.5),
        (0.6, 0.0, 0.6 + 1e-8, 0.5),
        (0.61, 0.0, 0.6, 0.0),
        (0.59, 0.0, 0.6, 1.0),
        (0.6, 0.1, 0.6 - 0.2093, 0.025),  # Student's quantile of 19 degrees of freedom
    ):
        assert float(t_p(mean, error, reference, 20)) == pytest.approx(p, abs=1e-4)
    for low, high, verdict in (
        (1e-17, 1e-17, "does not hold"),
        (-1e-17, 1e-9, "does not hold"),
        (1e-4, 2e-4, "holds"),
        (-1e-4, 1e-4, "open"),
    ):
        assert intervals.above(Estimate((low + high) / 2, low, high), 0.0) == verdict
        assert intervals.below(Estimate(-(low + high) / 2, -high, -low), 0.0) == verdict
        assert bool(above(low, 0.0)) == (verdict == "holds")
    # The special token that has more.
    kinds = which_special(np.array([0.3, 0.4]), np.array([0.3 - 1e-8, 0.3]))
    assert kinds.tolist() == ["last", "first"]


def test_no_knee_in_rounding():
    straight = noisy(np.linspace(0.9, 0.1, 9))
    nothing_left = 1e-16 * np.random.default_rng(0).random(9)
    for errors in (straight, nothing_left):
        assert knee(list(range(8, 80, 8)), errors.tolist()) is None


@pytest.mark.parametrize("mode", MODES)
def test_the_average_of_equal_states_is_that_state(mode):
    """Of 300 tokens: bfloat16 cannot count so far."""
    pooled = MODES[mode](torch.full((1, 300, 2), 0.75, dtype=torch.bfloat16), torch.ones(1, 300))
    factor = math.sqrt(300) if mode == "mean-sqrt" else 1.0
    torch.testing.assert_close(pooled, torch.full((1, 2), 0.75 * factor))


def test_weights_are_stored_in_float32():
    torch.manual_seed(0)
    narrow = (torch.randn(2, 12, 1) @ torch.randn(2, 1, 4)).double()  # rounded to float32
    assert column_basis(narrow)[1].tolist() == [1, 1]
    factor = torch.randn(1, 12, 4).double()
    right = torch.randn(1, 12, 4).double()
    assert float(asymmetry(factor, factor)) == pytest.approx(0, abs=1e-12)
    # Query and key of different dimensions: nothing but rounding is left of their product.
    rotation = torch.linalg.qr(torch.randn(4, 4).double()).Q
    factor[..., 2:] = 0
    right[..., :2] = 0
    assert math.isnan(float(asymmetry(factor @ rotation, right @ rotation)))
    assert not product_singular_values(factor @ rotation, right @ rotation).any()
    equal = torch.linalg.qr(torch.randn(20, 10)).Q  # ten equal singular values but for float32
    (rank,) = RankSettings(rtol=1e-6).ranks(torch.linalg.svdvals(equal.double())[None], 1)
    assert rank.dims["90"] == 9
