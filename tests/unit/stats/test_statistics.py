"""Intervals and tests against textbook formulas, enumeration, scipy, and simulated coverage."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headscope.analyses.linear import LinearOptions
from headscope.analyses.linear.correlation import correlate
from headscope.analyses.transfer.intervals import crossed, share_difference, spread_ratio
from headscope.analyses.transfer.summary import naive_bayes
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.paired_change import resampled_estimate
from headscope.stats.statistics import (
    FEWEST_DRAWS,
    FEWEST_UNITS,
    adjust,
    binomial_p,
    crossed_mean,
    effective_units,
    jackknife,
    mcnemar_p,
    paired_p,
    ratio_error,
    share_interval,
    t_half_width,
    t_p,
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
    disagreements = only_head + only_baseline
    expected = stats.binomtest(only_head, disagreements).pvalue if disagreements else 1.0
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
    hit = rng.random(200) < 0.5
    expected = rng.random(200) * 0.6
    difference = hit - expected
    z = difference.mean() / (difference.std() / math.sqrt(200))
    p = paired_p(hit.sum(), expected[hit].sum(), expected.sum(), (expected**2).sum(), 200)
    assert float(p) == pytest.approx(0.5 * math.erfc(z / math.sqrt(2)))


def test_a_mean_over_sentences_is_tested_by_students_t():
    """Against scipy's one-sample test; where all agree, by signs; too few say nothing."""
    values = np.random.default_rng(0).normal(0.62, 0.2, 9)
    error = values.std(ddof=1) / 3
    p = stats.ttest_1samp(values, 0.5, alternative="greater").pvalue
    assert float(t_p(values.mean(), error, 0.5, 9)) == pytest.approx(p)
    by_sign = [float(t_p(mean, 0.0, 0.5, 9)) for mean in (0.7, 0.5, 0.3)]
    assert by_sign == [0.5**9, 0.5, 1.0]
    assert t_p(0.9, [np.inf, np.nan], 0.5, 9).tolist() == [1.0, 1.0]


def clustered(rng, sentences):
    """Draw hits and queries of sentences: rare words, rates from sentence to sentence 0 to 1."""
    queries = rng.integers(1, 40, sentences)
    queries[rng.random(sentences) >= 0.9] = 0
    hits = rng.binomial(queries, rng.beta(0.6, 1.4, sentences)) if sentences else queries
    sums = hits.sum(), (hits**2).sum(), (hits * queries).sum()
    terms = (*sums, queries.sum(), (queries**2).sum(), np.count_nonzero(queries))
    return terms, effective_units(terms[3], terms[4])


@pytest.mark.parametrize("sentences", [9, 14, 25, 60])
def test_a_share_over_sentences_misses_one_of_twenty(sentences):
    """The mean rate of the sentences that :func:`clustered` draws is 0.3, by its beta values."""
    rng = np.random.default_rng(1)
    missed = 0
    n_intervals = 0
    n = 1500
    for _ in range(n):
        terms, units = clustered(rng, sentences)
        rate = terms[0] / terms[3]
        error = ratio_error(*terms)
        low, high = share_interval(rate, error, units)
        assert np.isnan(low) == (terms[5] < FEWEST_UNITS)
        n_intervals += bool(np.isfinite(low))
        missed += bool(low > 0.3 or high < 0.3)
    assert n_intervals > 0.5 * n
    assert 0.03 * n_intervals < missed < 0.075 * n_intervals


def test_a_share_has_wilsons_interval_of_its_effective_trials():
    """Without clusters it is Wilson's, but for Student's quantile; never of no width."""
    hits = 13
    n = 400
    error = math.sqrt(hits / n * (1 - hits / n) / n)
    interval = [float(limit) for limit in share_interval(hits / n, error, n)]
    assert interval == pytest.approx([float(limit) for limit in wilson(hits, n)], abs=2e-4)
    low, high = share_interval(1.0, 0.0, 10)  # 10 sentences that all agree
    t = stats.t.ppf(0.975, 9)
    assert (float(low), float(high)) == (pytest.approx(10 / (10 + t**2)), 1.0)
    assert np.isnan(share_interval(0.4, np.inf, 5)).all()


@pytest.mark.parametrize("n", [2, 7])
def test_few_sentences_have_no_interval(n):
    assert np.isinf(t_half_width(0.1, n))
    assert np.isfinite(t_half_width(0.1, FEWEST_UNITS))
    assert float(t_half_width(0.1, 2, FEWEST_DRAWS)) == pytest.approx(0.1 * stats.t.ppf(0.975, 1))
    values = np.random.default_rng(0).random((n, 3))
    assert crossed_mean(values).estimate().interval is None
    assert crossed_mean(values, FEWEST_DRAWS).estimate().interval is not None
    assert np.isnan(jackknife(1.0, values[:, 0])).all()
    assert resampled_estimate(0.5, np.random.default_rng(0).random(1000), n) == Estimate(0.5)


def test_the_jackknife_holds_ratios_of_sums_nineteen_times_in_twenty():
    """Of sentences with skewed sizes, and parts of them; the truth is 0.4."""
    rng = np.random.default_rng(4)
    missed = 0
    n = 600
    for _ in range(n):
        size = rng.lognormal(0, 0.5, 24)
        hits = size * rng.beta(4, 6, 24)
        without_each = (hits.sum() - hits) / (size.sum() - size)
        low, high = jackknife(hits.sum() / size.sum(), without_each)
        missed += bool(low > 0.4 or high < 0.4)
    assert 0.025 * n < missed < 0.085 * n


def test_means_of_skewed_numbers_of_sentences_are_covered_at_a_reports_default():
    """The bootstrap of ``linear``, of the lines that a report reads, on lognormal numbers."""
    lines = LinearOptions.in_report["sentences"]
    rng = np.random.default_rng(2)
    missed = 0
    n = 400
    counts = rng.multinomial(lines, np.full(lines, 1 / lines), size=1000) / lines
    for _ in range(n):
        values = rng.lognormal(0, 0.4, lines)
        estimate = resampled_estimate(values.mean(), counts @ values, lines)
        missed += not estimate.low < math.exp(0.08) < estimate.high
    assert missed < 0.085 * n


@pytest.mark.parametrize(("seed_sd", "example_sd"), [(1.0, 0.0), (0.7, 1.5)])
def test_the_interval_over_seeds_and_examples_covers_the_truth(seed_sd, example_sd):
    """New seeds and new examples every time: 95% of the intervals hold the mean that made them."""
    rng = np.random.default_rng(3)
    hit = 0
    n = 200
    for _ in range(n):
        seeds = rng.normal(0, seed_sd, (4, 1))
        examples = rng.normal(0, example_sd, (1, 40))
        estimate = crossed(5 + seeds + examples + rng.normal(0, 1, (4, 40)), floor=0.0)
        hit += estimate.low <= 5 <= estimate.high
    assert 0.92 * n <= hit


def test_the_ratio_of_spreads_has_the_interval_of_a_permutation_test():
    """By all deals of the squared distances from the medians, at both ends of the interval."""
    a = np.array([0.0, 1.0, 4.0, 9.0, 13.0, 21.0])
    b = np.array([2.0, 2.5, 3.0, 4.2, 5.0, 5.1])
    estimate = spread_ratio(a, b)
    assert estimate.value == pytest.approx(np.std(a, ddof=1) / np.std(b, ddof=1))
    squares_a = (a - np.median(a)) ** 2
    squares_b = (b - np.median(b)) ** 2

    def p_values(ratio):
        squares = np.concatenate([squares_a / ratio**2, squares_b])
        deals = [squares[list(deal)].sum() for deal in itertools.combinations(range(12), 6)]
        more = [deal >= deals[0] - 1e-9 for deal in deals]
        less = [deal <= deals[0] + 1e-9 for deal in deals]
        return np.mean(more), np.mean(less)

    assert min(p_values(estimate.low)) > 0.025 >= p_values(estimate.low / 1.03)[0]
    assert min(p_values(estimate.high)) > 0.025 >= p_values(estimate.high * 1.03)[1]
    assert estimate.low < estimate.value < estimate.high
    assert spread_ratio(a[:3], b[:3]).interval is None  # 20 deals say too little
    assert spread_ratio([1.0], [1.0, 2.0]) == UNKNOWN
    assert spread_ratio([1.0, 1.0], [1.0, 2.0]) == UNKNOWN


def test_equal_spreads_are_rarely_told_apart_where_some_runs_diverge():
    """The F interval takes four of ten such pairs for different."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(60):
        runs = np.where(rng.random((2, 6)) < 0.2, 50.0, 80.0) + rng.normal(size=(2, 6))
        low, high = spread_ratio(*runs).interval or (0.0, np.inf)
        alarms += low > 1 or high < 1
    assert alarms <= 0.12 * 60


def test_the_difference_of_shares_has_newcombes_interval():
    """His table II, method 10: 56 of 70 against 48 of 80, and 9 of 10 against 3 of 10."""
    for counts, published in (
        ((56, 70, 48, 80), (0.0524, 0.3339)),
        ((9, 10, 3, 10), (0.1705, 0.8090)),
    ):
        difference = share_difference(*counts)
        assert difference.value == pytest.approx(counts[0] / counts[1] - counts[2] / counts[3])
        assert difference.interval == pytest.approx(published, abs=1e-4)


def test_naive_bayes_by_hand():
    """Manning, Raghavan & Schuetze, example 13.1: the test document is of class China."""
    of_china = ["chinese beijing chinese", "chinese chinese shanghai", "chinese macao"]
    train = [text.split() for text in [*of_china, "tokyo japan chinese"]]
    test = [["chinese", "chinese", "chinese", "tokyo", "japan"], ["tokyo", "japan"], ["unseen"]]
    assert naive_bayes(train, [0, 0, 0, 1], test).tolist() == [0, 1, 0]


def test_without_draws_the_interval_is_the_t_interval():
    values = np.random.default_rng(0).normal(size=(9, 1))
    crossed = crossed_mean(values)
    low, high = stats.t.interval(0.95, 8, values.mean(), stats.sem(values[:, 0]))
    assert (crossed.mean, crossed.draw_std) == (pytest.approx(values.mean()), 0.0)
    assert crossed.half_width == pytest.approx((high - low) / 2)
    one = crossed_mean(np.array([[1.0, 2.0, 3.0]]))  # a single sequence
    assert np.isnan(one.sem)
    assert not np.isfinite(one.half_width)


@pytest.mark.parametrize(("between_sequences", "between_draws"), [(1.0, 0.0), (0.1, 1.0)])
def test_the_interval_over_sequences_and_draws_covers_the_truth(between_sequences, between_draws):
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        sequence = between_sequences * rng.normal(size=(16, 1))
        draw = between_draws * rng.normal(size=(1, 5))
        values = sequence + draw + 0.1 * rng.normal(size=(16, 5))
        crossed = crossed_mean(values)
        held += abs(float(crossed.mean)) <= float(crossed.half_width)
    assert held / 200 >= 0.93


LAYER = np.repeat(np.arange(6), 12)
X, NOISE, MORE = np.random.default_rng(4).normal(size=(3, 72))


def test_correlations_within_layers_are_scipys():
    y = np.round(X + NOISE, 1)  # with ties
    for ranks, scipys in ((True, stats.spearmanr), (False, stats.pearsonr)):
        correlation = correlate(X, y, LAYER, ranks=ranks)
        layers = [np.flatnonzero(i == LAYER) for i in range(6)]
        z = [np.arctanh(scipys(X[layer], y[layer]).statistic) for layer in layers]
        low, high = stats.t.interval(0.95, 5, np.mean(z), stats.sem(z))
        assert correlation.estimate.value == pytest.approx(np.tanh(np.mean(z)))
        assert correlation.estimate.interval == pytest.approx(np.tanh((low, high)))
        assert correlation.p == pytest.approx(stats.ttest_1samp(z, 0).pvalue)
        assert correlation.layers == 6


def test_what_explains_both_is_held_constant():
    z = X
    x = X + 0.3 * NOISE
    y = X + 0.3 * MORE
    assert correlate(x, y, LAYER, ranks=True).estimate.low > 0.5
    correlation = correlate(x, y, LAYER, ranks=True, fixed=z).estimate
    assert correlation.low < 0.1
    by_layer = []
    for i in range(6):
        layer = np.flatnonzero(i == LAYER)
        rz = stats.rankdata(z[layer])
        ranks = [stats.rankdata(values[layer]) for values in (x, y)]
        residuals = [r - np.polyval(np.polyfit(rz, r, 1), rz) for r in ranks]
        by_layer.append(np.arctanh(stats.pearsonr(*residuals).statistic))
    assert correlation.value == pytest.approx(np.tanh(np.mean(by_layer)))


def test_correlations_of_few_layers_and_of_perfect_relations():
    for n in (1, 3):  # no interval
        in_few_layers = n > LAYER
        correlation = correlate(
            X[in_few_layers], -X[in_few_layers], LAYER[in_few_layers], ranks=True
        )
        assert correlation.estimate.value < -0.9
        assert (correlation.estimate.interval, correlation.p) == (None, None)
    correlation = correlate(X, X, LAYER, ranks=True).estimate
    assert 0.9 < correlation.low < correlation.value < correlation.high < 1  # still has a width


def test_a_correlation_that_is_not_defined_has_no_number():
    three = np.arange(72) % 12 < 3
    for x, y, layer in ((np.ones(72), X, LAYER), (X[three], X[three], LAYER[three])):
        assert correlate(x, y, layer, ranks=True) == (UNKNOWN, None, 0)
    assert correlate(X, X, LAYER, ranks=False, fixed=X).estimate == UNKNOWN
    holed = np.where(np.arange(72) == 3, np.nan, X)
    assert correlate(holed, X, LAYER, ranks=True).estimate.value > 0.99
    flat = np.where(LAYER == 2, 5.0, X)
    assert correlate(flat, X, LAYER, ranks=True).layers == 5
