"""``headscope transfer``: what fine-tuning only some of a model's parameters achieves."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from headscope.analyses.transfer import TRAINED, TransferOptions
from headscope.analyses.transfer.fine_tuning import (
    CLASSIFIER_RATE,
    Frozen,
    Outcome,
    OutOfTime,
    fine_tune,
)
from headscope.analyses.transfer.labelled import Labelled, label, read, subset
from headscope.analyses.transfer.result import (
    TransferMissed,
    TransferResult,
    TransferRun,
    TransferTry,
)
from headscope.analyses.transfer.summary import (
    EQUAL,
    FACTORS,
    SPREAD,
    Cell,
    Done,
    baselines,
    cell_row,
    differences,
    divergence,
    run_of,
    spreads,
)
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.core.serialise import SCHEMA
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import cast, random_twin
from headscope.models.surgery.trainable import choose, count
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.stats.statistics import finite

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
GROWTH = 5  # Rates that are added to a grid at most, while the best one lies at its edge.
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
#: Share of the first validation loss by which two runs may differ and still train the same.
SAME = 0.01


def run(model: Model, options: TransferOptions) -> TransferResult:
    """Fine-tune a classifier on the encoder, training only some of its parameters."""
    seed = options.seed
    seeds = options.seeds
    grid = rate_grid(options.rates, options.search)
    source = read(options)
    loaded = open_model(model, **options.loading)
    need_tokenizer(loaded, "transfer")
    loaded.pooling.check()
    validation = require_valid(loaded, options.validate)
    data = label(source, loaded, seed)
    plan = make_plan(len(data.train), options)
    deadline = time.monotonic() + options.budget
    # Half precision has too few digits for small steps.
    half = loaded.dtype in ("float16", "bfloat16")
    trained = cast(loaded, "float32") if half else loaded
    # What each variant trains; one that the model does not have is left out.
    parameters: dict[str, int] = {}
    not_possible: dict[str, str] = {}
    for variant in dict.fromkeys(cell.variant for cell in plan.cells):
        try:
            parameters[variant] = count(choose(trained, variant, seed))
        except UnsupportedModelError as error:
            if variant == "layernorm":
                raise
            not_possible[variant] = str(error)
    runs = _Runs(trained, data, grid, options, deadline)
    runs.run([step for step in plan.steps() if step.cell.variant in parameters])
    done = {cell: runs.done[cell] for cell in plan.cells if cell in runs.done}
    every_run = (*(d.row for of_cell in done.values() for d in of_cell), *runs.stress)
    counts = tuple(divergence(every_run, plan.sizes[0]))
    known = tuple(baselines(data, plan.sizes, range(seed, seed + seeds)))
    majority = known[0].accuracy.value or 0.0  # at the smallest size
    return TransferResult(
        schema=SCHEMA,
        provenance=provenance(
            loaded, command=options.command, seed=seed, data=source, warnings=source.notes
        ),
        validation=validation,
        task=source.task,
        classes=data.classes,
        sizes=plan.sizes,
        validation_examples=len(data.validation),
        test_examples=len(data.test),
        dropped=data.dropped,
        seeds=seeds,
        spread_seeds=options.spread_seeds,
        steps=options.steps,
        batch=options.batch,
        budget=options.budget,
        cells=tuple(
            cell_row(c, d, parameters[c.variant], runs.rates[c][1]) for c, d in done.items()
        ),
        baselines=known,
        differences=tuple(differences(done)),
        spreads=tuple(spreads(done, counts, majority, plan.sizes[0])),
        runs=every_run,
        searched=tuple(runs.searched),
        missed=tuple(runs.missed),
        not_possible=not_possible,
        divergence=counts,
    )


@dataclass
class _Runs:
    """All runs of a plan, done one after the other."""

    loaded: LoadedModel
    data: Labelled
    grid: Mapping[str, Sequence[float]]
    options: TransferOptions
    deadline: float  # on the monotonic clock, in seconds
    done: dict[Cell, list[Done]] = field(default_factory=dict)
    #: The best rate of each cell, and where in its grid it lies.
    rates: dict[Cell, tuple[float, str]] = field(default_factory=dict)
    stress: list[TransferRun] = field(default_factory=list)  # At multiples of the best rates.
    searched: list[TransferTry] = field(default_factory=list)
    missed: list[TransferMissed] = field(default_factory=list)
    #: Embeddings by what is frozen: pretrained weights, or random ones of a seed.
    embedded: dict[tuple[str, int], dict[object, Tensor]] = field(default_factory=dict)
    twin: tuple[int, LoadedModel] | None = None  # The last random weights, and their seed.

    def run(self, steps: Sequence[Step]) -> None:
        """Do what the budget allows; list the rest."""
        for done, step in enumerate(steps):
            self.options.tell("runs", done, len(steps))
            cell = step.cell
            seed = self.options.seed + step.seed
            try:
                self._check_time()
                if step.seed == 0:
                    outcome = self._search(cell, seed)
                elif cell not in self.rates:
                    raise OutOfTime  # its rate was never searched
                else:
                    outcome = self._outcome(cell, seed, self.rates[cell][0] * step.factor)
            except OutOfTime:
                where = cell.variant, cell.weights, cell.size, seed
                self.missed.append(TransferMissed(*where, step.factor))
                continue
            rate = self.rates[cell][0] * step.factor
            tested = run_of(cell, seed, step.factor, rate, outcome, self.data)
            if step.factor == 1:
                self.done.setdefault(cell, []).append(tested)
            else:
                self.stress.append(tested.row)
        self.options.tell("runs", len(steps), len(steps))

    def _check_time(self) -> None:
        if time.monotonic() >= self.deadline:
            raise OutOfTime

    def _search(self, cell: Cell, seed: int) -> Outcome:
        """Find the rate with the lowest validation loss; return its run.

        The grid grows while the best rate lies at its edge, :data:`GROWTH` times at most.
        """
        losses: dict[float, float] = {}
        waiting = list(self.grid[cell.variant])
        most = len(waiting) + GROWTH
        while waiting:
            rate = waiting.pop(0)
            outcome = self._outcome(cell, seed, rate)
            losses[rate] = outcome.validation_loss
            chosen = min(losses, key=lambda r: (losses[r], r))
            if chosen == rate:
                best = outcome
            optimum = "not searched" if len(losses) < 2 else "inside"
            if not waiting and (new := beyond(losses, chosen)) is not None:
                nothing = self._nothing_below(cell, seed, losses, chosen, best)
                optimum = "lowest" if nothing else "edge"
                if not nothing and len(losses) < most:
                    waiting.append(new)
        self.rates[cell] = chosen, optimum
        where = cell.variant, cell.weights, cell.size
        for rate, loss in sorted(losses.items()):
            self.searched.append(TransferTry(*where, rate, finite(loss), rate == chosen))
        return best

    def _nothing_below(
        self, cell: Cell, seed: int, rates: Iterable[float], chosen: float, best: Outcome
    ) -> bool:
        """Whether the best rate is the lowest, and trains as a rate of 0 would at every step.

        A rate of 0 trains only the classifier; where nothing else is trained, it trains nothing.
        """
        if chosen > min(rates):
            return False
        loss = [point.validation_loss for point in best.curve]
        if cell.variant == "head":
            base = loss[:1] * len(loss)
        else:
            alone = dataclasses.replace(cell, variant="head")
            outcome = self._outcome(alone, seed, CLASSIFIER_RATE)
            base = [point.validation_loss for point in outcome.curve]
        both = [(a, b) for a, b in zip(loss, base, strict=False) if a is not None and b is not None]
        start = loss[0] or math.inf
        return len(both) > 1 and all(abs(a - b) <= SAME * start for a, b in both)

    def _outcome(self, cell: Cell, seed: int, rate: float) -> Outcome:
        model = self.loaded
        key = (cell.weights, 0)
        if cell.weights == "random":  # each seed has different random weights
            if self.twin is None or self.twin[0] != seed:
                self.twin = seed, random_twin(self.loaded, seed)
            model = self.twin[1]
            key = (cell.weights, seed)
        train = subset(self.data.train, cell.size, seed)
        return fine_tune(
            model,
            cell.variant,
            (train, self.data.validation),
            Frozen(model, train, self.embedded.setdefault(key, {})),
            self.options,
            rate=rate,
            n_classes=len(self.data.classes),
            seed=seed,
            check_time=self._check_time,
        )


# Which runs there are, and in which order.


@dataclass(frozen=True)
class Step:
    """A run, or (the first of a cell) the search for its cell's learning rate."""

    cell: Cell
    seed: int  # how far it lies from the first one; every factor has different seeds
    factor: float = 1.0  # times the cell's best rate


@dataclass(frozen=True)
class Plan:
    """All cells."""

    cells: tuple[Cell, ...]  # by start, size and variant
    sizes: tuple[int, ...]  # ascending

    def steps(self) -> Iterator[Step]:
        """Yield what claims need, seed by seed, then the rest: a short budget costs seeds first."""
        compared = [c for c in self.cells if (c.variant, c.weights) in _COMPARED]
        compared = [c for c in compared if c.size == self.sizes[-1]]
        compared.sort(key=lambda c: _COMPARED.index((c.variant, c.weights)))
        smallest = [c for c in self.cells if (c.weights, c.size) == ("pretrained", self.sizes[0])]
        spread = [c for c in smallest if c.variant in SPREAD]
        needed = list(dict.fromkeys([*compared, *spread]))
        # Cells that also run at multiples of their best rate, only if both variants are there.
        stressed = [c for c in needed if c in spread] if len(spread) == len(SPREAD) else []
        yield from _rounds(needed, stressed)
        yield from _rounds([cell for cell in self.cells if cell not in needed], [])


def _rounds(cells: Sequence[Cell], stressed: Sequence[Cell]) -> Iterator[Step]:
    """Yield each cell's first run, then each one's second, ...; then those at higher rates."""
    for number in range(max((cell.seeds for cell in cells), default=0)):
        for i, factor in enumerate((1.0, *FACTORS)):
            for cell in stressed if i else cells:
                if number < cell.seeds:
                    yield Step(cell, i * cell.seeds + number, factor)


def make_plan(available: int, options: TransferOptions) -> Plan:
    """Lay out all runs, with ``available`` training examples."""
    sizes = options.sizes
    seeds = options.seeds
    spread_seeds = options.spread_seeds
    _check_names((*options.variants, *options.random))
    if not options.variants:
        raise InputError("No variant is left to train; name one, such as layernorm.")
    if min(seeds, spread_seeds) < 1:
        raise InputError("Give one seed or more for seeds and spread_seeds.")
    if sizes is None:
        sizes = (SMALL, available) if available > SMALL else (available,)
    elif not sizes:
        raise InputError("No size is given; name one or more, or leave sizes out.")
    elif wrong := [size for size in sizes if not 2 <= size <= available]:
        raise InputError(
            f"A size is {wrong[0]}, but the training part holds {available} examples (a fifth of "
            "what was read, 100 at most, is for validation); give sizes from 2 to that."
        )
    ordered = tuple(sorted(set(sizes)))
    cells = []
    for size in ordered:
        for variant in TRAINED:
            if variant in options.variants and (size == ordered[-1] or variant not in _LARGEST):
                more = size == ordered[0] and variant in SPREAD
                runs = max(seeds, spread_seeds) if more else seeds
                cells.append(Cell(variant, "pretrained", size, runs))
    random = (name for name in TRAINED if name in options.random)
    cells += [Cell(name, "random", ordered[-1], seeds) for name in random]
    return Plan(tuple(cells), ordered)


def _check_names(variants: Iterable[str]) -> None:
    for name in variants:
        if name not in TRAINED:
            raise InputError(f"There is no variant {name!r}; choose from {', '.join(TRAINED)}.")


def beyond(rates: Iterable[float], best: float) -> float | None:
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
    return grid if search else {name: (values[len(values) // 2],) for name, values in grid.items()}
