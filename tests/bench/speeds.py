"""How often the interval of a speed misses the true ratio, on machines of several kinds.

``python tests/bench/speeds.py`` draws times of runs, hands them to the very function that makes the
interval (:func:`headscope.removal.times.median_interval`) and prints the table of
docs/measurements.md: for each kind of machine the share of runs whose lower end lies above
the truth, the share whose upper end lies below it, and half of the interval's width. All are shares
of the runs that have an interval. Every kind has noise of 2% beside what is named, and a true ratio
of 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from timing import options, print_head, print_row

from headscope.removal.times import FEWEST, median_interval

NOISE = 0.02


class Machine(NamedTuple):
    """One kind of machine: log ratios of a run, (pairs,), about their true median."""

    name: str
    draw: Callable[[np.random.Generator, int], np.ndarray]


def quiet(rng, pairs):
    """Nothing but noise."""
    return NOISE * rng.normal(size=pairs)


def heavy_tails(rng, pairs):
    """Student's t with two degrees of freedom, which has no variance."""
    return NOISE * rng.standard_t(2, size=pairs)


def interrupted(rng, pairs):
    """One run in ten of either model takes 1.8 times as long."""
    longer = np.where(rng.random((2, pairs)) < 0.1, np.log(1.8), 0.0)
    return quiet(rng, pairs) + longer[0] - longer[1]


def remembers(share):
    """Make a machine whose pairs resemble the ones before: a first-order autoregression."""

    def draw(rng, pairs):
        steps = rng.normal(size=pairs)
        values = steps.copy()
        for i in range(1, pairs):
            values[i] = share * values[i - 1] + np.sqrt(1 - share**2) * steps[i]
        return NOISE * values

    return draw


def two_paces(stay, apart=0.04):
    """Make a machine of two paces, each for ``stay`` pairs on average, that far apart."""

    def draw(rng, pairs):
        changes = rng.random(pairs) < 1 / stay
        pace = (np.cumsum(changes) + rng.integers(2)) % 2 - 0.5
        return apart * pace + quiet(rng, pairs)

    return draw


def drifts(rng, pairs):
    """The ratio moves by 6% from the first to the last pair, about the truth."""
    return rng.choice([-1, 1]) * np.linspace(-0.03, 0.03, pairs) + quiet(rng, pairs)


def competitor(rng, pairs):
    """Another program changes the ratio by 8% during 30% of the run; the truth is without it."""
    first, last = 0.7 * rng.random() * pairs + np.array([0, 0.3 * pairs])
    position = np.arange(pairs)
    return 0.08 * rng.choice([-1, 1]) * ((first <= position) & (position < last)) + quiet(
        rng, pairs
    )


MACHINES = (
    Machine("noise alone", quiet),
    Machine("heavy tails", heavy_tails),
    Machine("one run in ten interrupted", interrupted),
    Machine("pairs that resemble the one before by 0.5", remembers(0.5)),
    Machine("pairs that resemble the one before by 0.9", remembers(0.9)),
    Machine("two paces, each for 10 pairs", two_paces(10)),
    Machine("two paces, each for 20 pairs", two_paces(20)),
    Machine("two paces, each for 20 pairs, 10% apart", two_paces(20, 0.10)),
    Machine("two paces, each for 40 pairs", two_paces(40)),
    Machine("a drift of 6%", drifts),
    Machine("another program for 30% of the run", competitor),
)


class Errors(NamedTuple):
    """How often intervals missed the truth."""

    above: float  # Share of runs whose lower end lies above it
    below: float  # Share of runs whose upper end lies below it
    half_width: float  # Median
    known: float  # Share of runs that have an interval


def errors(machine: Machine, pairs: int, runs: int, seed: int = 0) -> Errors:
    """Draw runs of one machine, and count."""
    rng = np.random.default_rng(seed)
    estimates = [median_interval(np.exp(machine.draw(rng, pairs))) for _ in range(runs)]
    known = [estimate.interval for estimate in estimates if estimate.interval is not None]
    low, high = np.array(known).reshape(-1, 2).T
    if not len(known):
        return Errors(0.0, 0.0, np.inf, 0.0)
    half_width = float(np.median(high - low)) / 2
    return Errors((low > 1).mean(), (high < 1).mean(), half_width, len(known) / runs)


def main():
    """Print the table."""
    arguments = options(__doc__, pairs=[FEWEST, 2 * FEWEST, 4 * FEWEST], runs=10_000)
    pairs = arguments.pairs
    print_head(["machine", *(f"{n} pairs: above, below, half of the width" for n in pairs)])
    for machine in MACHINES:
        cells = [errors(machine, n, arguments.runs) for n in pairs]
        shown = [f"{e.above:.1%}, {e.below:.1%}, {e.half_width:.1%}" for e in cells]
        print_row([machine.name, *shown])


if __name__ == "__main__":
    main()
