"""``headscope transfer``: what fine-tuning only some of a model's parameters achieves."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from headscope.analyses.transfer import TransferOptions
from headscope.analyses.transfer.fine_tuning import (
    CLASSIFIER_RATE,
    Frozen,
    Outcome,
    OutOfTime,
    fine_tune,
)
from headscope.analyses.transfer.labelled import Labelled, label, read, subset
from headscope.analyses.transfer.plan import GROWTH, Cell, Step, beyond, make_plan, rate_grid
from headscope.analyses.transfer.result import (
    TransferMissed,
    TransferResult,
    TransferRun,
    TransferTry,
)
from headscope.analyses.transfer.summary import (
    Done,
    baselines,
    cell_row,
    differences,
    divergence,
    run_of,
    spreads,
)
from headscope.core.errors import UnsupportedModelError
from headscope.core.serialise import SCHEMA
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import cast, random_twin
from headscope.models.surgery.trainable import choose, count
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.stats.statistics import finite

#: Share of the first validation loss by which two runs may differ and still train the same.
SAME = 0.01


def run(model: Model, options: TransferOptions) -> TransferResult:
    """Fine-tune a classifier on the encoder, training only some of its parameters."""
    seed, seeds = options.seed, options.seeds
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
    parameters, not_possible = dict[str, int](), dict[str, str]()
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
        provenance=provenance(loaded, command=options.command, seed=seed, data=source),
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
            cell, seed = step.cell, self.options.seed + step.seed
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
        own = [point.validation_loss for point in best.curve]
        if cell.variant == "head":
            none = own[:1] * len(own)
        else:
            alone = dataclasses.replace(cell, variant="head")
            outcome = self._outcome(alone, seed, CLASSIFIER_RATE)
            none = [point.validation_loss for point in outcome.curve]
        pairs = [(a, b) for a, b in zip(own, none, strict=False) if a is not None and b is not None]
        start = own[0] or math.inf
        return len(pairs) > 1 and all(abs(a - b) <= SAME * start for a, b in pairs)

    def _outcome(self, cell: Cell, seed: int, rate: float) -> Outcome:
        model, key = self.loaded, (cell.weights, 0)
        if cell.weights == "random":  # each seed has random weights of its own
            if self.twin is None or self.twin[0] != seed:
                self.twin = seed, random_twin(self.loaded, seed)
            model, key = self.twin[1], (cell.weights, seed)
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
