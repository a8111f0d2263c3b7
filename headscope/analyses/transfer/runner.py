"""The runs of a plan, one after the other until the budget is over.

The first run of each cell is the search for its learning rate: the one with the lowest validation
loss, of a grid that grows while that rate lies at its edge.
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
from headscope.analyses.transfer.plan import Cell, Step, rate_beyond
from headscope.analyses.transfer.result import TransferMissed, TransferRun, TransferTry
from headscope.analyses.transfer.summary import MeasuredRun, measured_run
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import random_twin
from headscope.stats.statistics import finite

GROWTH = 5  # Rates that are added to a grid at most, while the best one lies at its edge.
#: Share of the first validation loss by which two runs may differ and still train the same.
SAME = 0.01


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
class Runner:
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
            further = rate_beyond(search.losses, search.best_rate)
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
        """Say where the best rate lies among those that were tried; ``edge`` asks for more.

        At the lowest rate the search may end: where it trains as a rate of 0 would, a rate below it
        cannot be better.
        """
        if len(search.losses) < 2:
            return "not searched"
        if rate_beyond(search.losses, search.best_rate) is None:  # rates on both sides were tried
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
        if cell.variant == "head":  # nothing is trained: the first loss stays
            losses_of_nothing = losses[:1] * len(losses)
        else:
            alone = dataclasses.replace(cell, variant="head")
            outcome = self._outcome(alone, seed, CLASSIFIER_RATE)
            losses_of_nothing = [point.validation_loss for point in outcome.curve]
        first_loss = losses[0]
        largest_gap = SAME * first_loss if first_loss else math.inf  # no loss, nothing to go by
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
