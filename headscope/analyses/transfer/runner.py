"""The runs of a plan, one after the other until the budget is over.

A :class:`~headscope.analyses.transfer.plan.Cell` is one variant (what is trained), from one kind of
weights, with one number of training examples; its runs differ in their seed. The first run of each
cell searches the learning rate: the one with the lowest validation loss, of a grid that grows while
the best rate lies at its edge. :meth:`Runner.run` is the entry point.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from headscope.analyses.transfer import TransferOptions
from headscope.analyses.transfer.embeddings import FrozenEmbeddings
from headscope.analyses.transfer.fine_tuning import CLASSIFIER_RATE, Outcome, OutOfTime, fine_tune
from headscope.analyses.transfer.labelled import Labelled, subset
from headscope.analyses.transfer.plan import Cell, PlannedRun, rate_beyond_edge
from headscope.analyses.transfer.result import TransferMissed, TransferRun, TransferTry
from headscope.analyses.transfer.summary import MeasuredRun, measured_run
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import random_twin
from headscope.stats.statistics import finite

GROWTH = 5  # Rates that are added to a grid at most, while the best one lies at its edge
#: Share of the first validation loss by which two runs may differ and still train the same.
SAME = 0.01


class BestRate(NamedTuple):
    """The learning rate of a cell."""

    rate: float
    optimum: str  # Where it lies among the rates that were tried; Runner._optimum says how


@dataclass
class _RateSearch:
    """The learning rates of one cell that were tried, and the best run."""

    losses: dict[float, float] = field(default_factory=dict)  # Lowest validation loss, by rate
    best_rate: float = math.nan  # The rate with the lowest loss; of equal ones the lowest
    _best: Outcome | None = None

    @property
    def best(self) -> Outcome:
        """The run at the best rate."""
        assert self._best is not None  # the caller has added one
        return self._best

    def add(self, rate: float, outcome: Outcome) -> None:
        """Add the run at another rate."""
        self.losses[rate] = outcome.validation_loss
        self.best_rate = min(self.losses, key=lambda rate: (self.losses[rate], rate))
        if self.best_rate == rate:
            self._best = outcome


@dataclass
class Runner:
    """Does the runs of a plan, and keeps what they came to."""

    loaded: LoadedModel
    data: Labelled
    grid: Mapping[str, Sequence[float]]  # Learning rates to try, by variant
    options: TransferOptions
    deadline: float  # On the monotonic clock, in seconds
    #: Runs of each cell at its best rate
    done: dict[Cell, list[MeasuredRun]] = field(default_factory=dict)
    rates: dict[Cell, BestRate] = field(default_factory=dict)
    #: Runs at multiples of their cell's best rate
    stress: list[TransferRun] = field(default_factory=list)
    searched: list[TransferTry] = field(default_factory=list)  # Every rate of every search
    missed: list[TransferMissed] = field(default_factory=list)  # Runs that time did not allow
    #: Embeddings of texts by the frozen model: one cache for each model, named by ``pretrained``
    #: and 0, or by ``random`` and the seed of the weights
    embedded: dict[tuple[str, int], dict[object, Tensor]] = field(default_factory=dict)
    #: The last model with random weights, and their seed
    twin: tuple[int, LoadedModel] | None = None

    def run(self, planned_runs: Sequence[PlannedRun]) -> None:
        """Do what the budget allows; list the rest."""
        for n_done, planned in enumerate(planned_runs):
            self.options.tell("runs", n_done, len(planned_runs))
            try:
                self._run_one(planned)
            except OutOfTime:
                missed = TransferMissed(
                    variant=planned.cell.variant,
                    weights=planned.cell.weights,
                    size=planned.cell.size,
                    seed=self.options.seed + planned.seed_offset,
                    factor=planned.factor,
                )
                self.missed.append(missed)
        self.options.tell("runs", len(planned_runs), len(planned_runs))

    def _run_one(self, planned: PlannedRun) -> None:
        """Do one run; the first of a cell searches its rate.

        Raises
        ------
        OutOfTime
            If the budget is over, or was over before the cell's rate was found.
        """
        self._check_time()
        cell = planned.cell
        seed = self.options.seed + planned.seed_offset
        if planned.seed_offset == 0:
            outcome = self._search(cell, seed)
        elif cell in self.rates:
            outcome = self._outcome(cell, seed, self.rates[cell].rate * planned.factor)
        else:
            raise OutOfTime
        measured = measured_run(
            cell,
            seed=seed,
            factor=planned.factor,
            rate=self.rates[cell].rate * planned.factor,
            outcome=outcome,
            data=self.data,
        )
        if planned.factor == 1:
            self.done.setdefault(cell, []).append(measured)
        else:
            self.stress.append(measured.row)

    def _check_time(self) -> None:
        if time.monotonic() >= self.deadline:
            raise OutOfTime

    def _search(self, cell: Cell, seed: int) -> Outcome:
        """Find the rate with the lowest validation loss, and keep it; return its run.

        The grid grows while the best rate lies at its edge, by :data:`GROWTH` rates at most.
        """
        # the grid, and what it grows by
        search = _RateSearch()
        for rate in self.grid[cell.variant]:
            search.add(rate, self._outcome(cell, seed, rate))
        optimum = self._optimum(cell, seed, search)
        for _ in range(GROWTH):
            further = rate_beyond_edge(search.losses, search.best_rate)
            if optimum != "edge" or further is None:
                break
            search.add(further, self._outcome(cell, seed, further))
            optimum = self._optimum(cell, seed, search)

        # what was found
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
        """Say where the best rate lies among the rates that were tried.

        - ``not searched``: it is the only one.
        - ``inside``: lower and higher ones were tried, and are worse.
        - ``lowest``: it is the lowest, and trains no more than a rate of 0 would. No rate below it
          can be better.
        - ``edge``: it is the lowest or the highest, and a rate beyond it may be better.
        """
        if len(search.losses) < 2:
            return "not searched"
        if rate_beyond_edge(search.losses, search.best_rate) is None:
            return "inside"
        is_lowest = search.best_rate == min(search.losses)
        if is_lowest and self._trains_as_rate_0(cell, seed, search.best):
            return "lowest"
        return "edge"

    def _trains_as_rate_0(self, cell: Cell, seed: int, outcome: Outcome) -> bool:
        """Whether the validation losses of a run are those of a rate of 0, step by step.

        With a rate of 0 only the classifier is trained, whose own rate is fixed. In the variant
        ``head`` the rate is the classifier's: then nothing is trained, and the first loss stays.
        """
        losses = [point.validation_loss for point in outcome.curve]
        if cell.variant == "head":
            losses_at_0 = [losses[0]] * len(losses)
        else:
            head = dataclasses.replace(cell, variant="head")
            classifier_alone = self._outcome(head, seed, CLASSIFIER_RATE)
            losses_at_0 = [point.validation_loss for point in classifier_alone.curve]
        gaps = [
            abs(loss - loss_at_0)
            for loss, loss_at_0 in zip(losses, losses_at_0, strict=False)
            if loss is not None and loss_at_0 is not None
        ]
        if len(gaps) < 2:  # one point alone says nothing: both start from the same model
            return False
        first_loss = losses[0]
        if first_loss is None or first_loss == 0:  # without one there is no scale for gaps
            return True
        return max(gaps) <= SAME * first_loss

    def _outcome(self, cell: Cell, seed: int, rate: float) -> Outcome:
        """Fine-tune once."""
        model = self.loaded
        cache_key = (cell.weights, 0)
        if cell.weights == "random":  # each seed has different random weights
            model = self._random_twin(seed)
            cache_key = (cell.weights, seed)
        cache = self.embedded.setdefault(cache_key, {})
        train = subset(self.data.train, cell.size, seed)
        return fine_tune(
            model,
            cell.variant,
            FrozenEmbeddings(model, train, cache),
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
