"""Intervals hold the true value as often as they say, known in closed form; Tango's by brute force.

Longer simulations are summed up in docs/definitions/statistics.md.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from headscope.stats.metrics import accuracy
from headscope.stats.paired_change import interval_of
from headscope.stats.statistics import tango, tango_p

#: Least share of intervals that must hold the truth.
LEAST = 0.93


@pytest.mark.parametrize("rate", [0.8, 0.98, 0.99])
def test_of_an_accuracy(rate):
    """Not drawn but added up: how likely each number of right answers is."""
    hits, n = 0.0, 50
    for right in range(n + 1):
        outputs = {"label": np.ones(n), "predicted": (np.arange(n) < right).astype(float)}
        found = interval_of(accuracy, outputs)
        if found.low <= 100 * rate <= found.high:
            hits += float(stats.binom.pmf(right, n, rate))
    assert hits >= LEAST


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


@pytest.mark.parametrize(
    ("gained", "lost", "n"),
    [(0, 0, 10), (1, 0, 50), (30, 0, 30), (4, 9, 44)],
)
def test_tangos_interval_holds_what_the_score_test_does_not_refuse(gained, lost, n):
    low, high = tango(gained, lost, n, 0.99)
    limit = stats.chi2.ppf(0.99, 1)
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
