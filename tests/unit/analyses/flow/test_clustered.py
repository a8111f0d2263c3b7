"""Rates over sentences, and how much each sentence pulls at them."""

import numpy as np
import pytest

from headscope.analyses.flow.clustered import Clustered


@pytest.fixture
def counts():
    """Hits of two kinds, and trials, in 50 sentences."""
    random = np.random.default_rng(0)
    trials = random.integers(1, 9, (50, 1)).astype(float)
    hits = random.binomial(trials.astype(int), [0.2, 0.7], (50, 2)).astype(float)
    return hits, trials, random


def test_rates_over_sentences_are_ratio_estimates(counts):
    """Intervals are as wide as a bootstrap over sentences says, those of differences too."""
    hits, trials, random = counts
    rates = Clustered.ratio(hits, trials)
    np.testing.assert_allclose(rates.value, hits.sum(0) / trials.sum())
    first = Clustered(rates.value[:1], rates.influence[:, :1], rates.units[:1])
    gap = first - rates.mean()
    drawn = random.integers(0, 50, (4000, 50))
    resampled = hits[drawn].sum(1) / trials[drawn].sum(1)
    gaps = resampled[:, 0] - resampled.mean(1)
    assert rates.half_width() == pytest.approx(2.01 * resampled.std(0), rel=0.1)
    assert gap.half_width()[0] == pytest.approx(2.01 * gaps.std(), rel=0.1)
    assert gap.value[0] == pytest.approx((rates.value[0] - rates.value[1]) / 2)


def test_fewer_than_eight_sentences_have_no_interval(counts):
    hits, trials, _ = counts
    assert np.isinf(Clustered.ratio(hits[:7], trials[:7]).half_width()).all()
    assert np.isfinite(Clustered.ratio(hits[:8], trials[:8]).half_width()).all()


def test_numbers_that_are_not_known_are_left_out_of_a_mean():
    hits = np.array([[1.0, 0.0], [2.0, 0.0]])
    trials = np.array([[2.0, 0.0], [2.0, 0.0]])
    rates = Clustered.ratio(hits, trials)
    assert np.isnan(rates.value[1])
    assert rates.mean().value[0] == 0.75
