"""Intervals over seeds and examples, against simulation and against scipy's own tests."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from headscope.measures.bag_of_words import naive_bayes
from headscope.measures.seeds import crossed, share_difference, spread_ratio


@pytest.mark.parametrize(("seed_sd", "example_sd"), [(0.0, 1.0), (1.0, 0.0), (0.7, 1.5)])
def test_the_interval_covers_the_truth(seed_sd: float, example_sd: float) -> None:
    """New seeds and new examples every time: 95% of the intervals hold the mean that made them."""
    rng = np.random.default_rng(3)
    hit, n = 0, 400
    for _ in range(n):
        seeds, examples = rng.normal(0, seed_sd, (4, 1)), rng.normal(0, example_sd, (1, 40))
        _, low, high = crossed(5 + seeds + examples + rng.normal(0, 1, (4, 40)), floor=0.0)
        hit += low <= 5 <= high
    assert 0.92 * n <= hit


def test_examples_alone_would_be_too_sure() -> None:
    """Seeds that differ by far more than examples do make the interval wide."""
    rng = np.random.default_rng(0)
    values = rng.normal(0, 10, (3, 1)) + rng.normal(0, 1, (3, 500))
    _, low, high = crossed(values)
    alone = stats.ttest_1samp(values.mean(axis=0), 0).confidence_interval()
    by_seed = stats.ttest_1samp(values.mean(axis=1), 0).confidence_interval()
    assert high - low > 10 * (alone.high - alone.low)
    assert high - low == pytest.approx(by_seed.high - by_seed.low, rel=0.05)


def test_no_interval_from_one_seed_and_none_of_zero_width() -> None:
    assert crossed(np.array([[1.0, 0.0, 1.0, 1.0]])) == (0.75, None, None)
    mean, low, high = crossed(np.zeros((3, 50)))
    assert mean == 0
    assert low <= -1 / 50 and high >= 1 / 50  # noqa: PT018


def test_the_ratio_of_spreads_is_that_of_an_f_test() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 3, 8), rng.normal(0, 1, 6)
    ratio, low, high = spread_ratio(a, b)
    assert ratio == pytest.approx(np.std(a, ddof=1) / np.std(b, ddof=1))
    for end, side in ((low, stats.f.sf), (high, stats.f.cdf)):
        assert side((ratio / end) ** 2, 7, 5) == pytest.approx(0.025)
    assert low < ratio < high
    assert spread_ratio([1.0], [1.0, 2.0]) is None
    assert spread_ratio([1.0, 1.0], [1.0, 2.0]) is None


def test_the_difference_of_shares_has_newcombes_interval() -> None:
    """His table II, method 10: 56 of 70 against 48 of 80, and 9 of 10 against 3 of 10."""
    for counts, ends in (((56, 70, 48, 80), (0.0524, 0.3339)), ((9, 10, 3, 10), (0.1705, 0.8090))):
        difference, low, high = share_difference(*counts)
        assert difference == pytest.approx(counts[0] / counts[1] - counts[2] / counts[3])
        assert (low, high) == pytest.approx(ends, abs=1e-4)


def test_naive_bayes_by_hand() -> None:
    """Manning, Raghavan & Schuetze, example 13.1: the test document is of class China."""
    train = [
        "chinese beijing chinese",
        "chinese chinese shanghai",
        "chinese macao",
        "tokyo japan chinese",
    ]
    test = ["chinese chinese chinese tokyo japan", "tokyo japan", "unseen"]
    split = [[text.split() for text in part] for part in (train, test)]
    assert naive_bayes(split[0], [0, 0, 0, 1], split[1]).tolist() == [0, 1, 0]
