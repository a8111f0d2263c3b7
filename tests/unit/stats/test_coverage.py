"""Intervals hold the true value as often as they say, known in closed form; Tango's by brute force.

Longer simulations (400 to 4,000 repetitions a case, also with few changed sentences, heavy tails
and rare classes) are summed up in docs/definitions/statistics.md.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from headscope.stats.metrics import Outputs, accuracy, spearman
from headscope.stats.paired_change import interval_of, paired_change
from headscope.stats.statistics import tango, tango_p

#: Least share of intervals that must hold the truth.
LEAST = 0.93


def outputs_of(right: np.ndarray) -> Outputs:
    return {"label": np.ones(len(right)), "predicted": right.astype(float)}


@pytest.mark.parametrize("n", [50, 100, 400])
@pytest.mark.parametrize(
    ("kept", "lost", "gained"),
    [(0.97, 0.01, 0.005), (0.77, 0.03, 0.0), (0.6, 0.1, 0.05)],
    ids=["few changes", "only losses", "many changes"],
)
def test_of_a_change_of_accuracy(kept, lost, gained, n):
    """The arguments are shares of the examples: that stay right, are lost and are gained."""
    rng, truth, hits = np.random.default_rng(n), 100 * (gained - lost), 0
    for seed in range(400):
        kind = rng.choice(4, size=n, p=(kept, lost, gained, 1 - kept - lost - gained))
        old, new = (outputs_of((kind == 0) | (kind == now)) for now in (1, 2))
        found = paired_change(accuracy, old, new, seed=seed)
        hits += found.low <= truth <= found.high
    assert hits / 400 >= LEAST


@pytest.mark.parametrize("n", [50, 100, 400])
@pytest.mark.parametrize("rate", [0.8, 0.98, 0.99])
def test_of_an_accuracy(rate, n):
    """Not drawn but added up: how likely each number of right answers is."""
    hits = 0.0
    for right in range(n + 1):
        found = interval_of(accuracy, outputs_of(np.arange(n) < right))
        if found.low <= 100 * rate <= found.high:
            hits += float(stats.binom.pmf(right, n, rate))
    assert hits >= LEAST


@pytest.mark.parametrize(("n", "noise"), [(50, 0.1), (50, 0.5), (400, 0.5)])
def test_of_spearmans_correlation_and_of_its_change(n, noise):
    """Normal values: a correlation r has the rank correlation 6 / pi asin(r / 2)."""
    rng = np.random.default_rng(n)
    before, after = (600 / math.pi * math.asin(r / 2) for r in (0.8, 0.8 / math.sqrt(1 + noise**2)))
    counts = rng.multinomial(n, np.full(n, 1 / n), size=260).astype(float)
    repetitions, alone, changes = 300 if n < 100 else 150, 0, 0
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


def score(difference: float, gained: int, lost: int, n: int) -> float:
    """Squared score statistic: the likeliest q of all with p - q = difference, by trying many."""
    q = np.linspace(max(0.0, -difference), (1 - difference) / 2, 4000)
    cells = ((gained, q + difference), (lost, q), (n - gained - lost, 1 - difference - 2 * q))
    likelihood = sum(count * np.log(np.maximum(share, 1e-300)) for count, share in cells if count)
    q = q[np.argmax(likelihood)]
    variance = n * (2 * q + difference - difference**2)
    gap = gained - lost - n * difference
    if variance <= 0:
        return 0.0 if gap == 0 else math.inf
    return float(gap * gap / variance)


@pytest.mark.parametrize("level", [0.95, 0.99])
@pytest.mark.parametrize(
    ("gained", "lost", "n"),
    [(0, 0, 10), (0, 0, 400), (1, 0, 50), (0, 10, 30), (30, 0, 30), (12, 2, 50), (4, 9, 44)],
)
def test_tangos_interval_holds_what_the_score_test_does_not_refuse(gained, lost, n, level):
    low, high = tango(gained, lost, n, level)
    limit = stats.chi2.ppf(level, 1)
    step = 0.02 / math.sqrt(n)
    for end, outwards in ((low, -step), (high, step)):
        inside, outside = end - outwards, end + outwards
        assert score(inside, gained, lost, n) < limit
        assert abs(outside) > 1 or score(outside, gained, lost, n) > limit


def test_published_values_mirrored_ends_and_p():
    """Fagerland, Lydersen & Laake 2014: 1 and 7 changes of 21; and no change at all of n."""
    assert tango(1, 7, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)
    z2 = stats.norm.ppf(0.975) ** 2
    for n in (1, 59, 400):
        assert tango(0, 0, n) == pytest.approx((-z2 / (n + z2), z2 / (n + z2)), abs=1e-6)
    for n, gained, lost in itertools.product((1, 7, 40), range(0, 41, 3), range(0, 41, 5)):
        if gained + lost > n:
            continue
        low, high = tango(gained, lost, n)
        assert -1 <= low <= (gained - lost) / n <= high <= 1
        assert low < high
        assert tango(lost, gained, n) == pytest.approx((-high, -low))
        assert (tango_p(gained, lost) < 0.05) == (not low <= 0 <= high)
