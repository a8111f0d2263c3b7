"""The interval of a ratio of times: it covers what is true, however the machine drifts."""

from typing import Any

import numpy as np
import pytest

from headscope.removal.confirm_speed import autocorrelation_time, median_interval, ratio_interval


def noise(rng: Any, n: int, kept: float) -> Any:
    """Return log times that resemble the ones before, (n,), with a variance of one."""
    values = rng.normal(size=n)
    for i in range(1, n):
        values[i] = kept * values[i - 1] + np.sqrt(1 - kept**2) * values[i]
    return values


@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_the_interval_covers_the_true_ratio(kept):
    """A machine that drifts, pairs that resemble each other, and one run in ten interrupted."""
    rng, hits, widths = np.random.default_rng(3), 0, []
    for seed in range(200):
        drift = 0.3 * np.repeat(noise(rng, 40, 0.95), 2).reshape(40, 2)
        logs = drift + 0.05 * np.stack([noise(rng, 40, kept), noise(rng, 40, kept)], axis=1)
        times = np.exp(logs) * np.where(rng.random((40, 2)) < 0.1, 1.8, 1.0)
        _, low, high = ratio_interval(2.0 * times[:, 0], times[:, 1], seed=seed)
        if low is None or high is None:  # too few independent pairs to say anything
            continue
        hits += low <= 2.0 <= high
        widths.append(high - low)
    assert len(widths) >= 170
    assert 0.91 <= hits / len(widths) <= 0.995
    assert np.mean(widths) < 0.25  # of times that drift by 30%


def two_paces(rng: Any, n: int) -> Any:
    """Return times of about one, (n,): two paces, 4% apart, each for about twenty runs."""
    changes = rng.random(n) < 0.05
    pace = (np.cumsum(changes) + rng.integers(2)) % 2 - 0.5
    return np.exp(0.04 * pace + 0.02 * rng.normal(size=n))


def test_a_slow_pace_gets_long_blocks():
    """Blocks of five pairs missed 16% on either side in place of 2.5."""
    rng, missed, known = np.random.default_rng(1), 0, 0
    for seed in range(60):
        found, low, high = median_interval(two_paces(rng, 240), seed=seed)
        if low is None or high is None:
            continue
        assert low < found < high
        known += 1
        missed += (low > 1.0) + (high < 1.0)
    assert known >= 50
    assert missed / known < 2 * 0.05


def test_the_autocorrelation_time_of_known_series():
    """A series without memory spans 1; each value twice spans 2; of signs of noise by theory."""
    rng = np.random.default_rng(2)
    assert np.mean([autocorrelation_time(rng.normal(size=400)) for _ in range(20)]) < 1.5
    twice = [autocorrelation_time(np.repeat(rng.normal(size=200), 2)) for _ in range(20)]
    assert np.mean(twice) == pytest.approx(2, abs=0.5)
    # Signs of a Gaussian series have the autocorrelation 2 / pi arcsin(0.9^k).
    theory = 1 + 4 / np.pi * np.arcsin(0.9 ** np.arange(1, 200)).sum()
    slow = [autocorrelation_time(noise(rng, 2000, 0.9)) for _ in range(20)]
    assert np.mean(slow) == pytest.approx(theory, rel=0.15)
    assert autocorrelation_time(np.ones(50)) == 1.0


def test_where_few_blocks_fit_nothing_is_known():
    """Forty pairs at one pace and forty at another are two observations."""
    rng = np.random.default_rng(3)
    times = np.exp(np.repeat([0.0, 0.2], 40) + 0.01 * rng.normal(size=80))
    assert median_interval(times)[1:] == (None, None)


def test_what_has_no_spread_has_no_interval():
    assert ratio_interval(np.full(40, 2.0), np.ones(40)) == (2.0, None, None)
