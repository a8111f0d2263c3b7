"""Intervals and tests against textbook formulas, enumeration, scipy, and simulated coverage."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headscope.analyses.linear.measure import correlate
from headscope.analyses.transfer.summary import crossed, naive_bayes, share_difference, spread_ratio
from headscope.stats.estimate import UNKNOWN
from headscope.stats.statistics import (
    adjust,
    binomial_p,
    crossed_mean,
    mcnemar_p,
    normal_p,
    paired_p,
    wilson,
)

counts = st.integers(0, 60)


@given(counts, st.integers(1, 60))
def test_wilson_is_the_textbook_formula(hits, more):
    low, high = wilson(hits, hits + more)
    expected = stats.binomtest(hits, hits + more).proportion_ci(method="wilson")
    assert (float(low), float(high)) == pytest.approx(tuple(expected))
    assert low <= hits / (hits + more) <= high
    assert tuple(map(float, wilson(0, 0))) == (0.0, 1.0)  # knows nothing


@given(counts, counts)
def test_mcnemar_is_the_exact_binomial_test(only_head, only_baseline):
    both = only_head + only_baseline
    expected = stats.binomtest(only_head, both).pvalue if both else 1.0
    assert float(mcnemar_p(only_head, only_baseline)) == pytest.approx(expected)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_adjusted_p_values(p):
    assert adjust(np.array(p)) == pytest.approx(np.array(stats.false_discovery_control(p)))


def test_p_values_by_hand():
    tail = sum(math.comb(12, k) * 0.3**k * 0.7 ** (12 - k) for k in range(7, 13))
    assert float(binomial_p(7, 12, 0.3)) == pytest.approx(tail)
    assert float(binomial_p(0, 0, 0.3)) == 1.0
    # The z of the differences hit - expected, computed trial by trial.
    rng = np.random.default_rng(0)
    hit, expected = rng.random(200) < 0.5, rng.random(200) * 0.6
    difference = hit - expected
    z = difference.mean() / (difference.std() / math.sqrt(200))
    p = paired_p(hit.sum(), expected[hit].sum(), expected.sum(), (expected**2).sum(), 200)
    assert float(p) == pytest.approx(0.5 * math.erfc(z / math.sqrt(2)))
    # A certain difference, none, and one the other way.
    assert [float(normal_p(mean, 0.0, 0.5)) for mean in (0.7, 0.5, 0.3)] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(("seed_sd", "example_sd"), [(1.0, 0.0), (0.7, 1.5)])
def test_the_interval_over_seeds_and_examples_covers_the_truth(seed_sd, example_sd):
    """New seeds and new examples every time: 95% of the intervals hold the mean that made them."""
    rng = np.random.default_rng(3)
    hit, n = 0, 200
    for _ in range(n):
        seeds, examples = rng.normal(0, seed_sd, (4, 1)), rng.normal(0, example_sd, (1, 40))
        found = crossed(5 + seeds + examples + rng.normal(0, 1, (4, 40)), floor=0.0)
        hit += found.low <= 5 <= found.high
    assert 0.92 * n <= hit


def test_the_ratio_of_spreads_is_that_of_an_f_test():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 3, 8), rng.normal(0, 1, 6)
    found = spread_ratio(a, b)
    assert found.value == pytest.approx(np.std(a, ddof=1) / np.std(b, ddof=1))
    for end, side in ((found.low, stats.f.sf), (found.high, stats.f.cdf)):
        assert side((found.value / end) ** 2, 7, 5) == pytest.approx(0.025)
    assert found.low < found.value < found.high
    assert spread_ratio([1.0], [1.0, 2.0]) == UNKNOWN
    assert spread_ratio([1.0, 1.0], [1.0, 2.0]) == UNKNOWN


def test_the_difference_of_shares_has_newcombes_interval():
    """His table II, method 10: 56 of 70 against 48 of 80, and 9 of 10 against 3 of 10."""
    for counts, ends in (((56, 70, 48, 80), (0.0524, 0.3339)), ((9, 10, 3, 10), (0.1705, 0.8090))):
        found = share_difference(*counts)
        assert found.value == pytest.approx(counts[0] / counts[1] - counts[2] / counts[3])
        assert found.interval == pytest.approx(ends, abs=1e-4)


def test_naive_bayes_by_hand():
    """Manning, Raghavan & Schuetze, example 13.1: the test document is of class China."""
    of_china = ["chinese beijing chinese", "chinese chinese shanghai", "chinese macao"]
    test = ["chinese chinese chinese tokyo japan", "tokyo japan", "unseen"]
    train, test = ([t.split() for t in part] for part in ([*of_china, "tokyo japan chinese"], test))
    assert naive_bayes(train, [0, 0, 0, 1], test).tolist() == [0, 1, 0]


def test_without_draws_the_interval_is_the_t_interval():
    values = np.random.default_rng(0).normal(size=(9, 1))
    found = crossed_mean(values)
    low, high = stats.t.interval(0.95, 8, values.mean(), stats.sem(values[:, 0]))
    assert (found.mean, found.draw_std) == (pytest.approx(values.mean()), 0.0)
    assert found.half_width == pytest.approx((high - low) / 2)
    one = crossed_mean(np.array([[1.0, 2.0, 3.0]]))  # a single sequence
    assert np.isnan(one.sem)
    assert not np.isfinite(one.half_width)


@pytest.mark.parametrize(("between_sequences", "between_draws"), [(1.0, 0.0), (0.1, 1.0)])
def test_the_interval_over_sequences_and_draws_covers_the_truth(between_sequences, between_draws):
    rng, held = np.random.default_rng(1), 0
    for _ in range(200):
        sequence = between_sequences * rng.normal(size=(16, 1))
        draw = between_draws * rng.normal(size=(1, 5))
        values = sequence + draw + 0.1 * rng.normal(size=(16, 5))
        found = crossed_mean(values)
        held += abs(float(found.mean)) <= float(found.half_width)
    assert held / 200 >= 0.93


LAYER = np.repeat(np.arange(6), 12)
X, NOISE, MORE = np.random.default_rng(4).normal(size=(3, 72))


def test_correlations_within_layers_are_scipys():
    y = np.round(X + NOISE, 1)  # with ties
    for ranks, theirs in ((True, stats.spearmanr), (False, stats.pearsonr)):
        found = correlate(X, y, LAYER, ranks=ranks)
        z = [np.arctanh(theirs(X[i == LAYER], y[i == LAYER]).statistic) for i in range(6)]
        low, high = stats.t.interval(0.95, 5, np.mean(z), stats.sem(z))
        assert found.estimate.value == pytest.approx(np.tanh(np.mean(z)))
        assert found.estimate.interval == pytest.approx(np.tanh((low, high)))
        assert found.p == pytest.approx(stats.ttest_1samp(z, 0).pvalue)
        assert found.layers == 6


def test_what_explains_both_is_held_constant():
    z, x, y = X, X + 0.3 * NOISE, X + 0.3 * MORE
    assert correlate(x, y, LAYER, ranks=True).estimate.low > 0.5
    found = correlate(x, y, LAYER, ranks=True, fixed=z).estimate
    assert found.low < 0.1
    own = []
    for i in range(6):
        rx, ry, rz = (stats.rankdata(v[i == LAYER]) for v in (x, y, z))
        left = [r - np.polyval(np.polyfit(rz, r, 1), rz) for r in (rx, ry)]
        own.append(np.arctanh(stats.pearsonr(*left).statistic))
    assert found.value == pytest.approx(np.tanh(np.mean(own)))


def test_correlations_of_few_layers_and_of_perfect_relations():
    for n in (1, 3):  # no interval
        here = n > LAYER
        found = correlate(X[here], -X[here], LAYER[here], ranks=True)
        assert found.estimate.value < -0.9
        assert (found.estimate.interval, found.p) == (None, None)
    found = correlate(X, X, LAYER, ranks=True).estimate
    assert 0.9 < found.low < found.value < found.high < 1  # still has a width


def test_a_correlation_that_is_not_defined_has_no_number():
    three = np.arange(72) % 12 < 3
    for x, y, layer in ((np.ones(72), X, LAYER), (X[three], X[three], LAYER[three])):
        assert correlate(x, y, layer, ranks=True) == (UNKNOWN, None, 0)
    assert correlate(X, X, LAYER, ranks=False, fixed=X).estimate == UNKNOWN
    holed = np.where(np.arange(72) == 3, np.nan, X)
    assert correlate(holed, X, LAYER, ranks=True).estimate.value > 0.99
    flat = np.where(LAYER == 2, 5.0, X)
    assert correlate(flat, X, LAYER, ranks=True).layers == 5
