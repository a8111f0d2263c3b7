"""How often intervals hold the true value: simulations whose truth is known in closed form.

Longer ones (400 to 4,000 repetitions a case, also with few changed sentences, heavy tails and rare
classes) are summed up in docs/definitions.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from headscope.measures.accumulator import Array
from headscope.measures.metrics import Outputs, accuracy, spearman
from headscope.measures.paired_change import interval_of, paired_change

#: Least share of intervals that must hold the truth.
LEAST = 0.93
#: An interval of a change on two models' outputs.
Interval = Callable[[Outputs, Outputs, int], tuple[float, float]]


def tango(old: Outputs, new: Outputs, seed: int) -> tuple[float, float]:
    found = paired_change(accuracy, old, new, seed=seed)
    return found.low, found.high


def plain_bootstrap(old: Outputs, new: Outputs, seed: int) -> tuple[float, float]:
    """What a percentile bootstrap of the accuracies' difference gives."""
    gap = accuracy.right(new) - accuracy.right(old)
    shares = [float((gap == way).mean()) for way in (-1, 0, 1)]
    drawn = np.random.default_rng(seed).multinomial(len(gap), shares, size=400)
    low, high = np.quantile(100 * (drawn[:, 2] - drawn[:, 0]) / len(gap), (0.025, 0.975))
    return float(low), float(high)


def classified(rng: np.random.Generator, n: int, kept: float, lost: float, gained: float) -> Array:
    """Whether each example is right before and after, (2, n)."""
    kind = rng.choice(4, size=n, p=(kept, lost, gained, 1 - kept - lost - gained))
    return np.stack([(kind == 0) | (kind == 1), (kind == 0) | (kind == 2)])


def outputs_of(right: Array) -> Outputs:
    return {"label": np.ones(len(right)), "predicted": right.astype(float)}


def covered(
    interval: Interval, n: int, shares: tuple[float, float, float], repetitions: int = 400
) -> float:
    """Share of intervals that hold the true change of the accuracy."""
    rng, truth, hits = np.random.default_rng(n), 100 * (shares[2] - shares[1]), 0
    for seed in range(repetitions):
        old, new = map(outputs_of, classified(rng, n, *shares))
        low, high = interval(old, new, seed)
        hits += low <= truth <= high
    return hits / repetitions


#: Shares of examples that stay right, are lost and are gained.
SHARES = {
    "few changes": (0.97, 0.01, 0.005),
    "only losses": (0.77, 0.03, 0.0),
    "many changes": (0.6, 0.1, 0.05),
}


@pytest.mark.parametrize("n", [50, 100, 400])
@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
def test_of_a_change_of_accuracy(shares: tuple[float, float, float], n: int) -> None:
    assert covered(tango, n, shares) >= LEAST


def test_the_plain_bootstrap_would_fail() -> None:
    """So the simulation can tell an interval that is too narrow."""
    assert covered(plain_bootstrap, 50, SHARES["few changes"]) < 0.5
    assert covered(plain_bootstrap, 100, SHARES["few changes"]) < 0.8


@pytest.mark.parametrize("n", [50, 100, 400])
@pytest.mark.parametrize("rate", [0.8, 0.98, 0.99])
def test_of_an_accuracy(rate: float, n: int) -> None:
    """Not drawn but added up: how likely each number of right answers is."""
    hits = 0.0
    for right in range(n + 1):
        found = interval_of(accuracy, outputs_of(np.arange(n) < right))
        if found.low <= 100 * rate <= found.high:
            hits += float(stats.binom.pmf(right, n, rate))
    assert hits >= LEAST


@pytest.mark.parametrize(("n", "noise"), [(50, 0.1), (50, 0.5), (100, 0.5), (400, 0.5)])
def test_of_spearmans_correlation_and_of_its_change(n: int, noise: float) -> None:
    """Normal values: a correlation r has the rank correlation 6 / pi asin(r / 2)."""
    rng = np.random.default_rng(n)
    before, after = (600 / math.pi * math.asin(r / 2) for r in (0.8, 0.8 / math.sqrt(1 + noise**2)))
    counts = rng.multinomial(n, np.full(n, 1 / n), size=260).astype(float)
    repetitions, alone, changes = 300, 0, 0
    for _ in range(repetitions):
        gold = rng.normal(size=n)
        first = 0.8 * gold + 0.6 * rng.normal(size=n)
        second = first + noise * rng.normal(size=n)
        old, new = ({"gold": gold, "similarity": x} for x in (first, second))
        drawn, values = spearman(old, counts), spearman(new, counts)
        found = interval_of(spearman, old, values=drawn, resamples=260)
        alone += found.low <= before <= found.high
        change = paired_change(spearman, old, new, drawn=drawn, values=values, resamples=260)
        changes += change.low <= after - before <= change.high
    assert alone >= LEAST * repetitions
    assert changes >= LEAST * repetitions
