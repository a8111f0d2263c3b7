"""How often a fixed sequence names a number that costs too much, and how far it gets."""

from __future__ import annotations

import numpy as np
import pytest

from headscope.stats.confirm import (
    ALPHA,
    ascending,
    examples_needed,
    judged,
    last_confirmed,
)
from headscope.stats.metrics import accuracy, mean_of
from headscope.stats.paired_change import paired_change

# The bound is in points of accuracy.
N = 240
HEADS = 48
BOUND = 3.0
RUNS = 200


def draw(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Outputs of both models on examples of which BOUND in 100 are lost, and some more change."""
    change = rng.random(N)
    noise = 0.01
    lost = change < (BOUND + 1e-9) / 100 + noise
    gained = change > 1 - noise
    old = {"label": np.ones(N), "predicted": (~gained).astype(float)}
    new = {"label": np.ones(N), "predicted": (~lost).astype(float)}
    return old, new


@pytest.mark.parametrize("first", [1, 24])
def test_a_number_that_costs_too_much_is_named_as_seldom_as_promised(first):
    """At most ALPHA of the runs, up to what as many draws vary by (three standard deviations).

    Less than ``first`` heads cost nothing; from there on it is just more than the bound. Judged by
    the value alone the same numbers would be named far more often.
    """
    rng = np.random.default_rng(first)
    false = 0
    lax = 0
    for _ in range(RUNS):
        old, new = draw(rng)
        costs = judged(paired_change(accuracy, old, new), 1, BOUND)
        outcome = last_confirmed(ascending(HEADS), lambda k, ok=costs.allowed: k < first or ok)
        false += (outcome.confirmed or 0) >= first
        lax += costs.lost <= BOUND
    assert false / RUNS <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / RUNS)
    assert lax / RUNS > 0.3


@pytest.mark.parametrize("n", [1, 5, 16, 17, 72])
def test_the_numbers_are_sixteenths(n):
    numbers = ascending(n)
    assert list(numbers) == sorted(set(numbers))
    assert all(0 < k < n for k in numbers)
    if n <= 16:
        assert numbers == tuple(range(1, n))
    else:
        assert len(numbers) == 15
        assert all(abs(k - i * n / 16) <= 0.5 for i, k in enumerate(numbers, 1))


def test_nothing_is_looked_at_after_a_refusal():
    seen: list[int] = []

    def test(number: int) -> bool:
        seen.append(number)
        return number not in (3, 5)

    assert last_confirmed((1, 2, 3, 4), test) == (2, 3)
    assert seen == [1, 2, 3]
    assert last_confirmed((3, 1), test) == (None, 3)
    assert last_confirmed((1, 2), test) == (2, None)


def test_the_bad_end_of_the_right_side_counts():
    x = np.random.default_rng(0).normal(0.0, 1.0, 400)
    change = paired_change(mean_of("x"), {"x": np.zeros(400)}, {"x": x})
    assert judged(change, 1, -change.low).allowed
    assert not judged(change, 1, -change.low - 0.01).allowed
    assert judged(change, -1, change.high).allowed
    assert not judged(change, -1, change.high - 0.01).allowed
    assert judged(change, -1, 1.0).lost == pytest.approx(change.difference)
    # Four times as many examples halve the interval.
    verdict = judged(change, -1, change.difference + (change.high - change.difference) / 2)
    assert examples_needed(verdict, verdict.lost + (verdict.most_lost - verdict.lost) / 2) == 1600
    assert examples_needed(verdict, verdict.lost - 0.1) is None
