"""Which runs there are, in which order, and how long all of them may take."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headscope.errors import InputError
from headscope.models.trainable import TRAINED
from headscope.pipeline.transfer.fine_tuning import OutOfTime

__all__ = ["RATES", "Cell", "Plan", "Stopwatch", "make_plan", "rate_grid"]

#: The grid of learning rates of each variant, which validation chooses from.
RATES: dict[str, tuple[float, ...]] = {
    "head": (1e-3, 3e-3, 1e-2),
    "layernorm": (1e-3, 3e-3, 1e-2),
    "biases": (1e-3, 3e-3, 1e-2),
    "weights": (1e-3, 3e-3, 1e-2),
    "attention": (5e-5, 2e-4, 8e-4),
    "all": (3e-5, 1e-4, 4e-4),
}
#: Variants whose spread over seeds is compared at the smallest size.
SPREAD = ("attention", "layernorm")
#: Variants that are compared with LayerNorm as equally large ones, at the largest size only.
EQUAL = ("biases", "weights")
#: The size that is small where the caller names none.
SMALL = 64


@dataclass(frozen=True)
class Cell:
    """Runs that differ in their seed alone.

    Attributes
    ----------
    variant, weights : str
        What is trained, and what it starts from.
    size : int
        Training examples.
    seeds : int
        Wanted runs.
    """

    variant: str
    weights: str
    size: int
    seeds: int


@dataclass(frozen=True)
class Plan:
    """All cells, in the order in which each round runs them.

    Attributes
    ----------
    cells : tuple of Cell
        What claims need most comes first.
    sizes : tuple of int
        Ascending.
    """

    cells: tuple[Cell, ...]
    sizes: tuple[int, ...]

    def rounds(self) -> Iterator[tuple[int, Cell]]:
        """Yield (0, cell) of every cell, then (1, cell), ...: a budget that ends takes seeds."""
        for number in range(max((cell.seeds for cell in self.cells), default=0)):
            yield from ((number, cell) for cell in self.cells if number < cell.seeds)


class Stopwatch:
    """Tells when a budget of seconds is spent.

    Parameters
    ----------
    seconds : float
        From now on.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def spent(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._end

    def check(self) -> None:
        """Raise :class:`OutOfTime` when it is."""
        if self.spent:
            raise OutOfTime


def make_plan(
    available: int,
    *,
    sizes: Sequence[int] | None,
    variants: Sequence[str],
    random: Sequence[str],
    seeds: int,
    spread_seeds: int,
) -> Plan:
    """Lay out all runs.

    Parameters
    ----------
    available : int
        Training examples that there are.
    sizes : sequence of int or None
        How many to train on; 64 and all of them by default.
    variants, random : sequence of str
        What to train from pretrained weights, and (at the largest size) from random ones.
    seeds, spread_seeds : int
        Runs of a cell, and of the two at the smallest size whose spread is compared.

    Raises
    ------
    InputError
        For a size, variant or number that cannot be used.
    """
    for name in (*variants, *random):
        if name not in TRAINED:
            raise InputError(f"There is no variant {name!r}; choose from {', '.join(TRAINED)}.")
    if not variants:
        raise InputError("No variant is left to train; name one, such as layernorm.")
    if min(seeds, spread_seeds) < 1:
        raise InputError("Give one seed or more for seeds and spread_seeds.")
    ordered = _sizes(available, sizes)
    cells = [
        Cell(variant, "pretrained", size, _seeds(variant, size == ordered[0], seeds, spread_seeds))
        for size in ordered
        for variant in TRAINED
        if variant in variants and (size == ordered[-1] or variant not in EQUAL)
    ]
    cells += [Cell(name, "random", ordered[-1], seeds) for name in TRAINED if name in random]
    return Plan(tuple(cells), ordered)


def _sizes(available: int, sizes: Sequence[int] | None) -> tuple[int, ...]:
    if sizes is None:
        return (SMALL, available) if available > SMALL else (available,)
    if not sizes:
        raise InputError("No size is given; name one or more, or leave sizes out.")
    for size in sizes:
        if not 2 <= size <= available:
            raise InputError(
                f"A size is {size}, but the training part holds {available} examples (a fifth of "
                "what was read, 100 at most, is for validation); give sizes from 2 to that."
            )
    return tuple(sorted(set(sizes)))


def _seeds(variant: str, smallest: bool, seeds: int, spread_seeds: int) -> int:
    return max(seeds, spread_seeds) if smallest and variant in SPREAD else seeds


def rate_grid(
    rates: Mapping[str, Sequence[float]] | None, search: bool
) -> dict[str, tuple[float, ...]]:
    """Return the rates to try of each variant: the grid, or its middle without a search.

    Raises
    ------
    InputError
        For an unknown variant, or a rate that is no positive number.
    """
    for name, found in (rates or {}).items():
        if name not in TRAINED:
            raise InputError(f"There is no variant {name!r}; choose from {', '.join(TRAINED)}.")
        if not found or not all(0 < rate < float("inf") for rate in found):
            raise InputError(f"The learning rates of {name} must be positive numbers, one or more.")
    grid = {**RATES, **{name: tuple(found) for name, found in (rates or {}).items()}}
    return grid if search else {name: (found[len(found) // 2],) for name, found in grid.items()}
