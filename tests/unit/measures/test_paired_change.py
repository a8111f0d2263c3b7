"""Intervals of a change at any level, against resamples drawn one by one and textbook formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from headscope.measures.metrics import accuracy, mean_of, ratio_of, spearman
from headscope.measures.paired_change import paired_change

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_a_mean_has_the_interval_of_the_normal_distribution(level: float) -> None:
    old, gap = RNG.normal(size=900), RNG.normal(0.3, 1.0, size=900)
    found = paired_change(
        mean_of("x"), {"x": old}, {"x": old + gap}, level=level, resamples=4000, seed=3
    )
    half = stats.norm.ppf((1 + level) / 2) * gap.std(ddof=1) / math.sqrt(900)
    assert found.difference == pytest.approx(gap.mean())
    assert (found.low, found.high) == pytest.approx(
        (gap.mean() - half, gap.mean() + half), abs=0.01
    )
    assert (found.examples, found.level) == (900, level)
    # Of a mean: what is lost is what is not gained; of a loss it is what is added.
    assert found.most_lost(1) == -found.low
    assert found.most_lost(-1) == found.high


def test_both_models_are_resampled_alike() -> None:
    """Examples drawn one by one: what the pairs share does not widen the interval."""
    gold, noise = RNG.normal(size=60), RNG.normal(size=60)
    old = {"similarity": gold + noise, "gold": gold}
    new = {"similarity": gold + noise + 0.1 * RNG.normal(size=60), "gold": gold}
    found = paired_change(spearman, old, new, seed=0, resamples=4000)
    gaps = []
    for _ in range(500):
        drawn = RNG.integers(0, 60, size=60)
        rho = [stats.spearmanr(x["similarity"][drawn], gold[drawn])[0] for x in (old, new)]
        gaps.append(100 * (rho[1] - rho[0]))
    low, high = np.quantile(gaps, (0.025, 0.975))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.4)


def test_an_accuracy_without_any_changed_example_is_not_known_exactly() -> None:
    label = RNG.integers(0, 3, size=400)
    outputs = {"label": label, "predicted": np.where(RNG.random(400) < 0.8, label, 2 - label)}
    found = paired_change(accuracy, outputs, outputs, resamples=4000)
    # Bonett & Price: one changed example more either way.
    half = 100 * stats.norm.ppf(0.975) * math.sqrt(2) / 402
    assert found.difference == 0.0
    assert (found.low, found.high) == pytest.approx((-half, half), abs=0.15)
    assert found.value == found.baseline == accuracy(outputs, np.ones((1, 400)))[0]


def test_an_accuracy_with_many_changes_has_the_interval_of_the_formula() -> None:
    n, worse, better = 500, 40, 15
    label = np.zeros(n, dtype=int)
    old, new = label.copy(), label.copy()
    new[:worse], old[worse : worse + better] = 1, 1
    found = paired_change(
        accuracy,
        {"label": label, "predicted": old},
        {"label": label, "predicted": new},
        resamples=4000,
    )
    a, b = (worse + 1) / (n + 2), (better + 1) / (n + 2)
    half = stats.norm.ppf(0.975) * math.sqrt((a + b - (b - a) ** 2) / (n + 2))
    expected = (100 * (b - a - half), 100 * (b - a + half))
    assert found.difference == pytest.approx(100 * (better - worse) / n)
    assert (found.low, found.high) == pytest.approx(expected, abs=0.25)


def test_a_rate_of_tokens_gets_one_token_either_way() -> None:
    sizes = np.full(50, 20.0)
    outputs = {"correct": sizes - 3, "tokens": sizes}
    found = paired_change(ratio_of("correct", "tokens", 100.0), outputs, outputs, resamples=4000)
    assert found.difference == 0.0
    assert 0.1 < found.high < 0.4  # of 1,000 tokens
    assert -0.4 < found.low < -0.1


def test_what_is_no_rate_may_have_no_width() -> None:
    x = RNG.normal(size=30)
    found = paired_change(mean_of("x"), {"x": x}, {"x": x - 2.0})
    assert (found.low, found.high) == pytest.approx((-2.0, -2.0))
