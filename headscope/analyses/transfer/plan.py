"""Which runs of ``headscope transfer`` there are, in which order, at which learning rates.

A *variant* says what is trained beside the classifier: ``layernorm``, ``attention``, ``all``, or
nothing (``head``). A :class:`Cell` is one variant, from pretrained or random weights, with one
number of training examples (its *size*); the runs of a cell differ in their seed.

:func:`make_plan` lays out the cells, :meth:`Plan.runs` puts their runs in order, and
:func:`rate_grid` gives the learning rates to try.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headscope.analyses.transfer import TRAINED, TransferOptions
from headscope.analyses.transfer.result import TransferCase
from headscope.core.errors import InputError

#: Variants of which it is compared, at the smallest size, how much the accuracy varies over seeds
#: and how often runs diverge.
STABILITY = ("attention", "layernorm")
FACTORS = (3.0, 10.0)  # Multiples of the best rate at which diverged runs are counted as well
#: Variants that train as many numbers as LayerNorm has.
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
_LARGEST = (*EQUAL, "all_biases")  # Variants that are run at the largest size only
#: Cells at the largest size that the command's claims compare: what is trained, and from which
#: weights. Their runs come first.
_COMPARED = (
    ("layernorm", "pretrained"),
    ("weights", "pretrained"),
    ("biases", "pretrained"),
    ("lora", "pretrained"),
    ("head", "pretrained"),
    ("all", "pretrained"),
    ("layernorm", "random"),
)
SMALL = 64  # The smaller one of the two sizes that are used where the caller names none


@dataclass(frozen=True)
class Cell(TransferCase):
    """One variant, from one kind of weights, with one number of training examples."""

    seeds: int  # How many runs there are to be, which differ in their seed alone


@dataclass(frozen=True)
class PlannedRun:
    """A run of a cell; the first one also searches the cell's learning rate."""

    cell: Cell
    seed_offset: int  # Added to the command's seed
    factor: float = 1.0  # Its rate, in units of the cell's best one


@dataclass(frozen=True)
class Plan:
    """All cells, and in :meth:`runs` the order of their runs."""

    cells: tuple[Cell, ...]  # By kind of weights, size and variant
    sizes: tuple[int, ...]  # Ascending

    def runs(self) -> Iterator[PlannedRun]:
        """Yield the runs that claims need, seed by seed, then the others.

        So a budget that is too short costs seeds before it costs comparisons.
        """
        at_largest_size = {
            (cell.variant, cell.weights): cell for cell in self.cells if cell.size == self.sizes[-1]
        }
        compared = [at_largest_size[key] for key in _COMPARED if key in at_largest_size]
        stability = [cell for cell in self.cells if self._shows_stability(cell)]
        needed = list(dict.fromkeys([*compared, *stability]))  # each once
        # Both variants also run at multiples of their best rates, or neither does.
        stressed: list[Cell] = []
        if len(stability) == len(STABILITY):
            stressed = [cell for cell in needed if cell in stability]
        yield from _rounds(needed, stressed)
        yield from _rounds([cell for cell in self.cells if cell not in needed], [])

    def _shows_stability(self, cell: Cell) -> bool:
        """Whether a cell is one of those whose stability is compared."""
        smallest = cell.weights == "pretrained" and cell.size == self.sizes[0]
        return smallest and cell.variant in STABILITY


def _rounds(cells: Sequence[Cell], stressed: Sequence[Cell]) -> Iterator[PlannedRun]:
    """Yield each cell's first run, then each one's second, and so on.

    After each round come runs of the ``stressed`` cells at 3 and 10 times their best rates, with
    other seeds: of a cell with 5 seeds, offsets 0 to 4 are at the best rate, 5 to 9 at 3 times the
    rate, 10 to 14 at 10 times.
    """
    most_seeds = max((cell.seeds for cell in cells), default=0)
    for number in range(most_seeds):
        for cell in cells:
            if number < cell.seeds:
                yield PlannedRun(cell, number)
        for i, factor in enumerate(FACTORS, start=1):
            for cell in stressed:
                if number < cell.seeds:
                    yield PlannedRun(cell, i * cell.seeds + number, factor)


def make_plan(available: int, options: TransferOptions) -> Plan:
    """Lay out the cells, with ``available`` training examples.

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

    # from pretrained weights every variant and size, from random ones the largest size
    sizes = _sizes(options.sizes, available)
    smallest = sizes[0]
    largest = sizes[-1]
    cells: list[Cell] = []
    for size in sizes:
        for variant in TRAINED:
            if variant not in options.variants or (variant in _LARGEST and size != largest):
                continue
            seeds = options.seeds
            if variant in STABILITY and size == smallest:
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


def rate_beyond_edge(rates: Iterable[float], best: float) -> float | None:
    """Return the next rate to try where the best one so far is the lowest or the highest.

    As far from it as its neighbour on the other side: rates 0.1, 0.3, 1 and best 1 -> 3.3. None
    where rates on both sides of the best one were tried, or only one rate.
    """
    ordered = sorted(rates)
    if len(ordered) < 2 or best not in (ordered[0], ordered[-1]):
        return None
    neighbour = ordered[1] if best == ordered[0] else ordered[-2]
    return float(f"{best * best / neighbour:.2g}")


def rate_grid(
    rates: Mapping[str, Sequence[float]] | None, search: bool
) -> dict[str, tuple[float, ...]]:
    """Return the learning rates to try of each variant; without a search the middle one only.

    ``rates`` are the caller's, by variant; :data:`RATES` are those of the others.
    """
    grid = dict(RATES)
    for name, values in (rates or {}).items():
        _check_names([name])
        if not values or not all(0 < rate < float("inf") for rate in values):
            raise InputError(f"The learning rates of {name} must be positive numbers, one or more.")
        grid[name] = tuple(sorted(set(values)))
    if search:
        return grid
    return {name: (values[len(values) // 2],) for name, values in grid.items()}
