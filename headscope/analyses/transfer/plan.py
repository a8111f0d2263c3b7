"""Which runs of ``headscope transfer`` there are, in which order, at which learning rates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headscope.analyses.transfer import TRAINED, TransferOptions
from headscope.analyses.transfer.result import TransferCase
from headscope.core.errors import InputError

#: Variants whose spread over seeds and divergence are compared at the smallest size.
SPREAD = ("attention", "layernorm")
FACTORS = (3.0, 10.0)  # Multiples of the best rate at which divergence is counted as well.
#: Variants that are compared with LayerNorm as equally large ones.
EQUAL = ("weights", "biases", "lora")
#: The grid of learning rates that the search for each variant's best one starts from.
RATES: dict[str, tuple[float, ...]] = {
    "head": (3e-3, 1e-2, 3e-2),
    "layernorm": (1e-3, 3e-3, 1e-2),
    "biases": (3e-3, 1e-2, 3e-2),
    "weights": (1e-2, 3e-2, 1e-1),
    "lora": (3e-3, 1e-2, 3e-2),
    "all_biases": (1e-3, 3e-3, 1e-2),
    "attention": (5e-5, 2e-4, 8e-4),
    "all": (3e-5, 1e-4, 4e-4),
}
_LARGEST = (*EQUAL, "all_biases")  # Variants that are run at the largest size only.
#: Cells at the largest size that claims 8 and 9 compare, by variant and start.
_COMPARED = (
    ("layernorm", "pretrained"),
    ("weights", "pretrained"),
    ("biases", "pretrained"),
    ("lora", "pretrained"),
    ("head", "pretrained"),
    ("all", "pretrained"),
    ("layernorm", "random"),
)
SMALL = 64  # The size that is small where the caller names none.


@dataclass(frozen=True)
class Cell(TransferCase):
    """Runs that differ in their seed alone."""

    seeds: int  # How many there are to be


@dataclass(frozen=True)
class Step:
    """A run, or (the first of a cell) the search for its cell's learning rate."""

    cell: Cell
    seed: int  # Added to the first seed; every factor has different ones
    factor: float = 1.0  # Its rate, in units of the cell's best one


@dataclass(frozen=True)
class Plan:
    """All cells, and in :meth:`steps` the order of their runs."""

    cells: tuple[Cell, ...]  # By start, size and variant
    sizes: tuple[int, ...]  # Ascending

    def steps(self) -> Iterator[Step]:
        """Yield what claims need, seed by seed, then the rest: a short budget costs seeds first."""
        at_largest_size = {
            (cell.variant, cell.weights): cell for cell in self.cells if cell.size == self.sizes[-1]
        }
        compared = [at_largest_size[pair] for pair in _COMPARED if pair in at_largest_size]
        spread = [cell for cell in self.cells if self._shows_spread(cell)]
        needed = list(dict.fromkeys([*compared, *spread]))
        # Cells that also run at multiples of their best rate, only if both variants are there.
        stressed: list[Cell] = []
        if len(spread) == len(SPREAD):
            stressed = [cell for cell in needed if cell in spread]
        yield from _rounds(needed, stressed)
        yield from _rounds([cell for cell in self.cells if cell not in needed], [])

    def _shows_spread(self, cell: Cell) -> bool:
        """Whether a cell is one of those whose spread over seeds is compared."""
        smallest = cell.weights == "pretrained" and cell.size == self.sizes[0]
        return smallest and cell.variant in SPREAD


def _rounds(cells: Sequence[Cell], stressed: Sequence[Cell]) -> Iterator[Step]:
    """Yield each cell's first run, then each one's second, and so on.

    After each round come the same runs of the ``stressed`` cells at higher rates.
    """
    most_seeds = max((cell.seeds for cell in cells), default=0)
    for number in range(most_seeds):
        for cell in cells:
            if number < cell.seeds:
                yield Step(cell, number)
        for i, factor in enumerate(FACTORS, start=1):
            for cell in stressed:
                if number < cell.seeds:
                    yield Step(cell, i * cell.seeds + number, factor)


def make_plan(available: int, options: TransferOptions) -> Plan:
    """Lay out all runs, with ``available`` training examples.

    Raises
    ------
    InputError
        If a variant is unknown, or sizes or seeds are out of range.
    """
    _check_names((*options.variants, *options.random))
    if not options.variants:
        raise InputError("No variant is left to train; name one, such as layernorm.")
    if min(options.seeds, options.spread_seeds) < 1:
        raise InputError("Give one seed or more for seeds and spread_seeds.")
    sizes = _sizes(options.sizes, available)
    smallest = sizes[0]
    largest = sizes[-1]
    cells: list[Cell] = []
    for size in sizes:
        for variant in TRAINED:
            if variant not in options.variants or (variant in _LARGEST and size != largest):
                continue
            seeds = options.seeds
            if variant in SPREAD and size == smallest:
                seeds = max(seeds, options.spread_seeds)
            cells.append(Cell(variant, "pretrained", size, seeds))
    random = [variant for variant in TRAINED if variant in options.random]
    cells += [Cell(variant, "random", largest, options.seeds) for variant in random]
    return Plan(tuple(cells), sizes)


def _sizes(sizes: Sequence[int] | None, available: int) -> tuple[int, ...]:
    """Check the numbers of training examples; by default a small one, and all there are."""
    if sizes is None:
        return (SMALL, available) if available > SMALL else (available,)
    if not sizes:
        raise InputError("No size is given; name one or more, or leave sizes out.")
    impossible = [size for size in sizes if not 2 <= size <= available]
    if impossible:
        raise InputError(
            f"A size is {impossible[0]}, but the training part holds {available} examples (a fifth "
            "of what was read, 100 at most, is for validation); give sizes from 2 to that."
        )
    return tuple(sorted(set(sizes)))


def _check_names(variants: Iterable[str]) -> None:
    for name in variants:
        if name not in TRAINED:
            raise InputError(f"There is no variant {name!r}; choose from {', '.join(TRAINED)}.")


def rate_beyond(rates: Iterable[float], best: float) -> float | None:
    """Return the rate that a grid grows by where its best one lies at an edge; else None."""
    ordered = sorted(rates)
    if len(ordered) < 2 or best not in (ordered[0], ordered[-1]):
        return None
    inner = ordered[1] if best == ordered[0] else ordered[-2]
    return float(f"{best * best / inner:.2g}")


def rate_grid(
    rates: Mapping[str, Sequence[float]] | None, search: bool
) -> dict[str, tuple[float, ...]]:
    """Return the rates to try of each variant: the grid, or its middle without a search."""
    grid = dict(RATES)
    for name, values in (rates or {}).items():
        _check_names([name])
        if not values or not all(0 < rate < float("inf") for rate in values):
            raise InputError(f"The learning rates of {name} must be positive numbers, one or more.")
        grid[name] = tuple(sorted(set(values)))
    if search:
        return grid
    return {name: (values[len(values) // 2],) for name, values in grid.items()}
