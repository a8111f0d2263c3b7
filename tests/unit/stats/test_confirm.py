"""How often a fixed sequence names a number that costs too much, and how far it gets.

Planted populations: without k of 48 heads each example loses ``mean(k)`` on average, with a noise
that grows as heads go. The worst case lies at the bound: from some number on the loss is just above
it, so that every confirmation from there on is false. :func:`split` is what earlier versions did,
written for this comparison: bisection on one half, one look at the other, then a list of smaller
numbers at a higher level. ``HEADSCOPE_SLOW=1`` takes more repetitions and prints the table of
docs/definitions/pruning.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from headscope.stats.confirm import (
    ALPHA,
    LEVEL,
    ascending,
    examples_needed,
    judged,
    last_confirmed,
)
from headscope.stats.metrics import accuracy, mean_of
from headscope.stats.paired_change import paired_change

HEADS, BOUND, N = 48, 0.5, 240
SLOW = bool(os.environ.get("HEADSCOPE_SLOW"))
RUNS = 2000 if SLOW else 200
#: The mean loss without k heads.
Loss = Callable[[int], float]


@cache
def resamples(n: int, rows: int) -> np.ndarray:
    """How often each example is drawn, (rows, n); the same for every draw of examples."""
    return np.random.default_rng(n).multinomial(n, np.full(n, 1 / n), size=rows).astype(float)


class Drawn:
    """One draw of examples, and what each of them loses without k heads."""

    def __init__(self, loss: Loss, rng: np.random.Generator, *, rate: bool, spread: float = 0.4):
        self._loss, self._rate = loss, rate
        walk = rng.normal(size=(HEADS, N)).cumsum(axis=0)  # heads that go stay gone
        self._noise = spread * walk
        #: For a rate: what decides whether an example changes, and in which direction.
        self._change = rng.random(N)

    def allowed(self, k: int, examples: np.ndarray | None = None, level: float = LEVEL) -> bool:
        here = np.arange(N) if examples is None else examples
        if self._rate:  # in points: of 100 examples the loss is lost, half as many changes more
            p, noise = self._loss(k) / 100, 0.01
            change = self._change[here]
            lost, gained = change < p + noise, change > 1 - noise
            right = ~lost  # of the pruned model; the whole one has wrong what was gained
            old = {"label": np.ones(len(here)), "predicted": (~gained).astype(float)}
            new = {"label": np.ones(len(here)), "predicted": right.astype(float)}
            return judged(paired_change(accuracy, old, new, level=level), 1, self.bound).allowed
        x = -self._loss(k) + self._noise[k - 1][here] if k else np.zeros(len(here))
        counts = resamples(len(here), 260 if level == LEVEL else 1500)
        old, new = {"x": np.zeros(len(here))}, {"x": x}
        metric = mean_of("x")
        drawn, values = np.zeros(len(counts)), metric(new, counts)
        change = paired_change(
            metric, old, new, level=level, drawn=drawn, values=values, resamples=len(counts)
        )
        return judged(change, 1, self.bound).allowed

    @property
    def bound(self) -> float:
        return 3.0 if self._rate else BOUND


def sequence(drawn: Drawn, parts: int = 16) -> int:
    return last_confirmed(ascending(HEADS, parts), drawn.allowed).confirmed or 0


def split(drawn: Drawn) -> int:
    """Choose on one half, confirm on the other; 0 where nothing is confirmed."""
    first, second = np.arange(N // 2), np.arange(N // 2, N)
    low, high = 0, HEADS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if drawn.allowed(middle, first) else (low, middle)
    while low + 1 < HEADS and drawn.allowed(low + 1, first):
        low += 1
    if not low or drawn.allowed(low, second):
        return low
    rungs = [low - 2**i for i in range(low.bit_length()) if low - 2**i > 0]
    level = 1 - (1 - LEVEL) / max(1, len(rungs))
    return next((k for k in rungs if drawn.allowed(k, second, level)), 0)


def from_on(start: int, below: float, above: float) -> Loss:
    return lambda k: above if k >= start else below


#: Loss by number, and the first number that costs more than the bound.
WORST = {
    "from the first number on": (from_on(1, 0.0, BOUND + 1e-9), 1, False),
    "after many that cost nothing": (from_on(24, 0.0, BOUND + 1e-9), 24, False),
    "accuracy, from the first number on": (from_on(1, 0.0, 3.0 + 1e-9), 1, True),
    "too much in between only": (
        lambda k: BOUND + 1e-9 if 12 <= k <= 24 else 0.0,
        12,
        False,
    ),
}


@pytest.mark.parametrize("name", WORST)
def test_a_number_that_costs_too_much_is_named_as_seldom_as_promised(name):
    """At most ALPHA of the runs, up to what as many draws vary by (three standard deviations)."""
    loss, _, rate = WORST[name]
    rng, bound = np.random.default_rng(len(name)), 3.0 if rate else BOUND
    false = 0
    for _ in range(RUNS):
        found = sequence(Drawn(loss, rng, rate=rate, spread=0.4))
        false += bool(found) and loss(found) > bound
    limit = ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / RUNS)
    if SLOW:
        print(f"{name}: {false / RUNS:.4f}")
    assert false / RUNS <= limit


def test_the_simulation_finds_a_test_that_is_too_lax():
    """The same worst case, judged by the value alone, is false far more often."""
    loss, rng = WORST["from the first number on"][0], np.random.default_rng(0)
    false = 0
    for _ in range(200):
        drawn = Drawn(loss, rng, rate=False)
        false += -loss(3) + drawn._noise[2].mean() >= -BOUND
    assert false / 200 > 0.3


def test_more_goes_than_by_two_halves():
    """Losses that rise slowly: all examples say more than half of them."""
    rng, runs = np.random.default_rng(5), 400 if SLOW else 30

    def rising(k: int) -> float:
        return 0.6 * max(0.0, k / HEADS - 0.5) ** 2

    found: dict[str, list[int]] = {"halves": [], "8": [], "16": [], "48": []}
    for _ in range(runs):
        drawn = Drawn(rising, rng, rate=False, spread=0.6)
        found["halves"].append(split(drawn))
        for parts in (8, 16, 48):
            found[str(parts)].append(sequence(drawn, parts))
    means = {name: float(np.mean(numbers)) for name, numbers in found.items()}
    if SLOW:
        print(means, {name: float(np.mean(np.array(x) == 0)) for name, x in found.items()})
    assert means["16"] > means["halves"]


@pytest.mark.parametrize("n", [1, 2, 5, 16, 17, 72, 384])
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
    found = judged(change, -1, change.difference + (change.high - change.difference) / 2)
    assert examples_needed(found, found.lost + (found.most_lost - found.lost) / 2) == 1600
    assert examples_needed(found, found.lost - 0.1) is None
