"""``headscope transfer``: what fine-tuning only some of a model's parameters achieves."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from torch import Tensor

from headscope.analyses.transfer import TransferOptions
from headscope.analyses.transfer.embeddings import FrozenEmbeddings
from headscope.analyses.transfer.fine_tuning import (
    CLASSIFIER_RATE,
    Outcome,
    OutOfTime,
    fine_tune,
)
from headscope.analyses.transfer.labelled import Labelled, Source, read, subset, tokenised_splits
from headscope.analyses.transfer.plan import Cell, Plan, Step, beyond, make_plan, rate_grid
from headscope.analyses.transfer.result import (
    TransferMissed,
    TransferResult,
    TransferRun,
    TransferTry,
)
from headscope.analyses.transfer.summary import (
    MeasuredRun,
    baselines,
    cell_row,
    differences,
    divergence,
    measured_run,
    spreads,
)
from headscope.core.errors import UnsupportedModelError
from headscope.core.serialise import SCHEMA
from headscope.models.certificate.validation import ValidationSummary
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import cast, random_twin
from headscope.models.surgery.trainable import choose, count
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.stats.statistics import finite

GROWTH = 5  # Rates that are added to a grid at most, while the best one lies at its edge.
#: Share of the first validation loss by which two runs may differ and still train the same.
SAME = 0.01


def run(model: Model, options: TransferOptions) -> TransferResult:
    """Fine-tune a classifier on the encoder, training only some of its parameters."""
    # open
    grid = rate_grid(options.rates, options.search)
    source = read(options)
    loaded = open_model(model, **options.loading)
    need_tokenizer(loaded, "transfer")
    loaded.pooling.check()

    # prove
    validation = require_valid(loaded, options.validate)

    # measure
    data = tokenised_splits(source, loaded, options.seed)
    plan = make_plan(len(data.train), options)
    deadline = time.monotonic() + options.budget
    # Half precision has too few digits for small steps.
    half = loaded.dtype in ("float16", "bfloat16")
    trained = cast(loaded, "float32") if half else loaded
    counts = _count_parameters(trained, plan, options.seed)
    runs = _Runner(trained, data, grid, options, deadline)
    runs.run([step for step in plan.steps() if step.cell.variant in counts.parameters])
    return _result(loaded, options, source, validation, plan=plan, counts=counts, runs=runs)


class _Counts(NamedTuple):
    """How many numbers each variant trains, and why a model lacks the others."""

    parameters: dict[str, int]
    not_possible: dict[str, str]


def _count_parameters(loaded: LoadedModel, plan: Plan, seed: int) -> _Counts:
    """Count what each variant of a plan trains; only LayerNorm has to be there."""
    parameters: dict[str, int] = {}
    not_possible: dict[str, str] = {}
    for variant in dict.fromkeys(cell.variant for cell in plan.cells):
        try:
            parameters[variant] = count(choose(loaded, variant, seed))
        except UnsupportedModelError as error:
            if variant == "layernorm":
                raise
            not_possible[variant] = str(error)
    return _Counts(parameters, not_possible)


def _result(
    loaded: LoadedModel,
    options: TransferOptions,
    source: Source,
    validation: ValidationSummary,
    *,
    plan: Plan,
    counts: _Counts,
    runs: _Runner,
) -> TransferResult:
    """Sum up all runs, cell by cell in the order of the plan."""
    data = runs.data
    done = {cell: runs.done[cell] for cell in plan.cells if cell in runs.done}
    rows = [run.row for run in chain.from_iterable(done.values())]
    every_run = (*rows, *runs.stress)
    n_diverged = tuple(divergence(every_run, plan.sizes[0]))
    seeds = range(options.seed, options.seed + options.seeds)
    known = tuple(baselines(data, plan.sizes, seeds))
    majority = known[0].accuracy.value or 0.0  # at the smallest size
    return TransferResult(
        schema=SCHEMA,
        provenance=provenance(
            loaded,
            command=options.command,
            seed=options.seed,
            data=source,
            warnings=source.notes,
        ),
        validation=validation,
        task=source.task,
        classes=data.classes,
        sizes=plan.sizes,
        validation_examples=len(data.validation),
        test_examples=len(data.test),
        dropped=data.dropped,
        seeds=options.seeds,
        spread_seeds=options.spread_seeds,
        steps=options.steps,
        batch=options.batch,
        budget=options.budget,
        cells=tuple(
            cell_row(cell, of_cell, counts.parameters[cell.variant], runs.rates[cell].optimum)
            for cell, of_cell in done.items()
        ),
        baselines=known,
        differences=tuple(differences(done)),
        spreads=tuple(spreads(done, n_diverged, majority, plan.sizes[0])),
        runs=every_run,
        searched=tuple(runs.searched),
        missed=tuple(runs.missed),
        not_possible=counts.not_possible,
        divergence=n_diverged,
    )


class BestRate(NamedTuple):
    """The learning rate of a cell."""

    rate: float
    optimum: str  # Where in the grid it lies, as :class:`TransferCell` says


@dataclass
class _RateSearch:
    """The learning rates of one cell that were tried."""

    losses: dict[float, float] = field(default_factory=dict)  # Lowest validation loss, by rate
    best_rate: float = math.nan  # That of the lowest loss; of equal ones the lowest
    _best: Outcome | None = None

    @property
    def best(self) -> Outcome:
        """The run at the best rate."""
        assert self._best is not None
        return self._best

    def add(self, rate: float, outcome: Outcome) -> None:
        """Add the run at another rate."""
        self.losses[rate] = outcome.validation_loss
        self.best_rate = min(self.losses, key=lambda rate: (self.losses[rate], rate))
        if self.best_rate == rate:
            self._best = outcome


@dataclass
class _Runner:
    """All runs of a plan, done one after the other."""

    loaded: LoadedModel
    data: Labelled
    grid: Mapping[str, Sequence[float]]
    options: TransferOptions
    deadline: float  # On the monotonic clock, in seconds
    #: Runs of each cell at its best rate
    done: dict[Cell, list[MeasuredRun]] = field(default_factory=dict)
    rates: dict[Cell, BestRate] = field(default_factory=dict)  # Of each cell
    stress: list[TransferRun] = field(default_factory=list)  # At multiples of the best rates.
    searched: list[TransferTry] = field(default_factory=list)
    missed: list[TransferMissed] = field(default_factory=list)
    #: Embeddings by what is frozen: pretrained weights, or random ones of a seed.
    embedded: dict[tuple[str, int], dict[object, Tensor]] = field(default_factory=dict)
    twin: tuple[int, LoadedModel] | None = None  # The last random weights, and their seed.

    def run(self, steps: Sequence[Step]) -> None:
        """Do what the budget allows; list the rest."""
        for n_done, step in enumerate(steps):
            self.options.tell("runs", n_done, len(steps))
            try:
                self._run_step(step)
            except OutOfTime:
                missed = TransferMissed(
                    variant=step.cell.variant,
                    weights=step.cell.weights,
                    size=step.cell.size,
                    seed=self.options.seed + step.seed,
                    factor=step.factor,
                )
                self.missed.append(missed)
        self.options.tell("runs", len(steps), len(steps))

    def _run_step(self, step: Step) -> None:
        """Do one run, the search for its cell's rate if it is the first; may raise OutOfTime."""
        self._check_time()
        cell = step.cell
        seed = self.options.seed + step.seed
        if step.seed == 0:
            outcome = self._search(cell, seed)
        elif cell in self.rates:
            outcome = self._outcome(cell, seed, self.rates[cell].rate * step.factor)
        else:
            raise OutOfTime  # its rate was never searched
        measured = measured_run(
            cell,
            seed=seed,
            factor=step.factor,
            rate=self.rates[cell].rate * step.factor,
            outcome=outcome,
            data=self.data,
        )
        if step.factor == 1:
            self.done.setdefault(cell, []).append(measured)
        else:
            self.stress.append(measured.row)

    def _check_time(self) -> None:
        if time.monotonic() >= self.deadline:
            raise OutOfTime

    def _search(self, cell: Cell, seed: int) -> Outcome:
        """Find the rate with the lowest validation loss; return its run.

        The grid grows while the best rate lies at its edge, by :data:`GROWTH` rates at most.
        """
        search = _RateSearch()
        for rate in self.grid[cell.variant]:
            search.add(rate, self._outcome(cell, seed, rate))
        optimum = self._optimum(cell, seed, search)
        for _ in range(GROWTH):
            further = beyond(search.losses, search.best_rate)
            if optimum != "edge" or further is None:
                break
            search.add(further, self._outcome(cell, seed, further))
            optimum = self._optimum(cell, seed, search)
        self.rates[cell] = BestRate(search.best_rate, optimum)
        for rate, loss in sorted(search.losses.items()):
            tried = TransferTry(
                variant=cell.variant,
                weights=cell.weights,
                size=cell.size,
                rate=rate,
                validation_loss=finite(loss),
                chosen=rate == search.best_rate,
            )
            self.searched.append(tried)
        return search.best

    def _optimum(self, cell: Cell, seed: int, search: _RateSearch) -> str:
        """Say where the best rate lies among those that were tried; ``edge`` asks for more."""
        if len(search.losses) < 2:
            return "not searched"
        if beyond(search.losses, search.best_rate) is None:
            return "inside"
        is_lowest = search.best_rate == min(search.losses)
        if is_lowest and self._is_as_good_as_nothing(cell, seed, search.best):
            return "lowest"
        return "edge"

    def _is_as_good_as_nothing(self, cell: Cell, seed: int, best: Outcome) -> bool:
        """Whether a run trains as a rate of 0 would, at every step.

        A rate of 0 trains only the classifier; where nothing else is trained, it trains nothing.
        """
        losses = [point.validation_loss for point in best.curve]
        if cell.variant == "head":
            losses_of_nothing = losses[:1] * len(losses)
        else:
            alone = dataclasses.replace(cell, variant="head")
            outcome = self._outcome(alone, seed, CLASSIFIER_RATE)
            losses_of_nothing = [point.validation_loss for point in outcome.curve]
        largest_gap = SAME * (losses[0] or math.inf)
        gaps = [
            abs(loss - loss_of_nothing)
            for loss, loss_of_nothing in zip(losses, losses_of_nothing, strict=False)
            if loss is not None and loss_of_nothing is not None
        ]
        return len(gaps) > 1 and max(gaps) <= largest_gap

    def _outcome(self, cell: Cell, seed: int, rate: float) -> Outcome:
        """Fine-tune once."""
        model = self.loaded
        weights = (cell.weights, 0)
        if cell.weights == "random":  # each seed has different random weights
            model = self._random_twin(seed)
            weights = (cell.weights, seed)
        train = subset(self.data.train, cell.size, seed)
        return fine_tune(
            model,
            cell.variant,
            FrozenEmbeddings(model, train, self.embedded.setdefault(weights, {})),
            self.options,
            train=train,
            validation=self.data.validation,
            rate=rate,
            n_classes=len(self.data.classes),
            seed=seed,
            check_time=self._check_time,
        )

    def _random_twin(self, seed: int) -> LoadedModel:
        """Return the model with the random weights of a seed; only the last one is kept."""
        if self.twin is None or self.twin[0] != seed:
            self.twin = (seed, random_twin(self.loaded, seed))
        return self.twin[1]
