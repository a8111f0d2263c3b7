"""``headscope transfer``: what fine-tuning only some of a model's parameters achieves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from headscope.analyses.transfer.fine_tuning import (
    CLASSIFIER_RATE,
    Outcome,
    OutOfTime,
    Recipe,
    fine_tune,
)
from headscope.analyses.transfer.labelled import Frozen, Labelled, label, read, subset
from headscope.analyses.transfer.options import TransferOptions
from headscope.analyses.transfer.plan import (
    GROWTH,
    Cell,
    Plan,
    Step,
    Stopwatch,
    beyond,
    make_plan,
    rate_grid,
)
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
from headscope.core.progress import Progress
from headscope.core.serialise import SCHEMA
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import cast, random_twin
from headscope.models.surgery.trainable import choose, count
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.stats.statistics import finite

VALIDATIONS = 5  # How often a run validates, if it is not stopped early.
#: Share of the first validation loss by which two runs may differ and still train the same.
SAME = 0.01


def run(model: Model, options: TransferOptions) -> TransferResult:
    """Fine-tune a classifier on the encoder, training only some of its parameters."""
    seed, seeds = options.seed, options.seeds
    grid = rate_grid(options.rates, options.search)
    source = read(
        options.train,
        options.test,
        train_limit=options.train_limit,
        test_limit=options.test_limit,
        seed=seed,
    )
    loaded = open_model(model, **options.loading)
    need_tokenizer(loaded, "transfer")
    loaded.pooling.check()
    validation = require_valid(loaded, options.validate)
    data = label(source, loaded, seed)
    plan = make_plan(
        len(data.train),
        sizes=options.sizes,
        variants=options.variants,
        random=options.random,
        seeds=seeds,
        spread_seeds=options.spread_seeds,
    )
    every = -(-options.steps // VALIDATIONS)
    recipe = Recipe(0.0, options.steps, options.batch, every, options.patience)
    # Half precision has too few digits for small steps.
    half = loaded.dtype in ("float16", "bfloat16")
    wide = cast(loaded, "float32") if half else loaded
    runs = _Runs(wide, data, plan, grid, recipe, seed, Stopwatch(options.budget))
    runs.run(options.tell)
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
            cell_row(c, d, runs.parameters[c.variant], runs.rates[c][1]) for c, d in done.items()
        ),
        baselines=known,
        differences=tuple(differences(done)),
        spreads=tuple(spreads(done, counts, majority, plan.sizes[0])),
        runs=every_run,
        searched=tuple(runs.searched),
        missed=tuple(runs.missed),
        not_possible=runs.not_possible,
        divergence=counts,
    )


@dataclass
class _Runs:
    """All runs of a plan, done one after the other."""

    loaded: LoadedModel
    data: Labelled
    plan: Plan
    grid: Mapping[str, Sequence[float]]
    recipe: Recipe
    seed: int
    watch: Stopwatch
    done: dict[Cell, list[Done]] = field(default_factory=dict)
    #: The best rate of each cell, and where in its grid it lies.
    rates: dict[Cell, tuple[float, str]] = field(default_factory=dict)
    stress: list[TransferRun] = field(default_factory=list)  # At multiples of the best rates.
    searched: list[TransferTry] = field(default_factory=list)
    missed: list[TransferMissed] = field(default_factory=list)
    not_possible: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    #: Embeddings by what is frozen: pretrained weights, or random ones of a seed.
    embedded: dict[tuple[str, int], dict[object, Tensor]] = field(default_factory=dict)
    twin: tuple[int, LoadedModel] | None = None  # The last random weights, and their seed.

    def run(self, progress: Progress) -> None:
        """Do what the budget allows, what claims need first; list the rest."""
        # What each variant trains; one that the model does not have is left out.
        for variant in dict.fromkeys(cell.variant for cell in self.plan.cells):
            try:
                self.parameters[variant] = count(choose(self.loaded, variant, self.seed))
            except UnsupportedModelError as error:
                if variant == "layernorm":
                    raise
                self.not_possible[variant] = str(error)
        steps = [s for s in self.plan.steps() if s.cell.variant not in self.not_possible]
        self._progress, self._ran = progress, 0
        # Runs of a search count one by one, so that the time that remains can be told from them.
        self._all = len(steps) + sum(len(self.grid[s.cell.variant]) - 1 for s in steps if s.first)
        for step in steps:
            try:
                self.watch.check()
                self._one(step)
            except OutOfTime:
                where = step.cell.variant, step.cell.weights, step.cell.size, self.seed + step.seed
                self.missed.append(TransferMissed(*where, step.factor))
        progress("runs", self._all, self._all)

    def _one(self, step: Step) -> None:
        cell, seed = step.cell, self.seed + step.seed
        if step.first:
            outcome = self._search(cell, seed)
        elif cell in self.rates:
            outcome = self._outcome(cell, seed, self.rates[cell][0] * step.factor)
        else:
            raise OutOfTime  # its rate was never searched
        rate = self.rates[cell][0] * step.factor
        done = run_of(cell, seed, step.factor, rate, outcome, self.data)
        if step.factor == 1:
            self.done.setdefault(cell, []).append(done)
        else:
            self.stress.append(done.row)

    def _search(self, cell: Cell, seed: int) -> Outcome:
        """Find the rate with the lowest validation loss; return its run.

        The grid grows while the best rate lies at its edge, :data:`GROWTH` times at most.
        """
        losses: dict[float, float] = {}
        best: Outcome | None = None
        waiting = list(self.grid[cell.variant])
        most = len(waiting) + GROWTH
        while waiting:
            rate = waiting.pop(0)
            outcome = self._outcome(cell, seed, rate)
            losses[rate] = outcome.validation_loss
            chosen = min(losses, key=lambda r: (losses[r], r))
            best = outcome if best is None or chosen == rate else best
            new = beyond(losses, chosen) if not waiting and len(losses) < most else None
            if new is not None and not self._nothing_below(cell, seed, losses, chosen, best):
                waiting.append(new)
                self._all += 1
        if best is None:
            raise OutOfTime
        optimum = "not searched" if len(losses) < 2 else "inside"
        if beyond(losses, chosen) is not None:
            nothing = self._nothing_below(cell, seed, losses, chosen, best)
            optimum = "lowest" if nothing else "edge"
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
            outcome = self._outcome(alone, seed, CLASSIFIER_RATE, counts=False)
            none = [point.validation_loss for point in outcome.curve]
        pairs = [(a, b) for a, b in zip(own, none, strict=False) if a is not None and b is not None]
        start = own[0] or math.inf
        return len(pairs) > 1 and all(abs(a - b) <= SAME * start for a, b in pairs)

    def _outcome(self, cell: Cell, seed: int, rate: float, *, counts: bool = True) -> Outcome:
        model, key = self.loaded, (cell.weights, 0)
        if cell.weights == "random":  # each seed has random weights of its own
            if self.twin is None or self.twin[0] != seed:
                self.twin = seed, random_twin(self.loaded, seed)
            model, key = self.twin[1], (cell.weights, seed)
        train = subset(self.data.train, cell.size, seed)
        outcome = fine_tune(
            model,
            cell.variant,
            (train, self.data.validation),
            Frozen(model, train, self.embedded.setdefault(key, {})),
            dataclasses.replace(self.recipe, rate=rate),
            n_classes=len(self.data.classes),
            seed=seed,
            check_time=self.watch.check,
        )
        self._ran += counts
        self._progress("runs", self._ran, self._all)
        return outcome
