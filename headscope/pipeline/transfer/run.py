"""``headscope transfer``: what fine-tuning some of a model's parameters gives, and others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from headscope.errors import InputError, UnsupportedModelError
from headscope.measures.statistics import finite
from headscope.models.casting import cast
from headscope.models.control import random_twin
from headscope.models.loaded import LoadedModel
from headscope.models.trainable import TRAINED, choose, count
from headscope.pipeline.opening import Model, need_tokenizer, open_model, public_function
from headscope.pipeline.parameters import check_seed
from headscope.pipeline.progress import Progress, silent
from headscope.pipeline.provenance import provenance
from headscope.pipeline.transfer.embedding import Frozen
from headscope.pipeline.transfer.fine_tuning import (
    Outcome,
    OutOfTime,
    Recipe,
    fine_tune,
)
from headscope.pipeline.transfer.labelled import Labelled, label, read, subset
from headscope.pipeline.transfer.plan import Cell, Plan, Stopwatch, make_plan, rate_grid
from headscope.pipeline.transfer.summary import (
    Done,
    baselines,
    cell_row,
    differences,
    run_row,
    spreads,
)
from headscope.pipeline.validate import require_valid
from headscope.results import SCHEMA, TransferMissed, TransferResult, TransferTry

__all__ = ["report_defaults", "transfer"]

#: Seconds for all runs: with what comes before them it is ten minutes on two cores.
BUDGET = 540.0
#: How often a run validates, if it is not stopped early.
VALIDATIONS = 5
#: What is trained from random weights: those that claims or the papers compare.
RANDOM = ("head", "layernorm", "attention", "all")


def report_defaults() -> dict[str, Any]:
    """Return what a report and the scoreboard do in place of the defaults: a minute's worth."""
    return {
        "budget": 240.0,
        "search": False,
        "sizes": (128,),
        "random": ("head", "layernorm"),
        "spread_seeds": 3,
        "steps": 25,
        "test_limit": 128,
    }


@public_function
def transfer(
    model: Model,
    train: str | Path | None = None,
    test: str | Path | None = None,
    *,
    sizes: Sequence[int] | None = None,
    seeds: int = 3,
    spread_seeds: int = 5,
    variants: Sequence[str] = TRAINED,
    random: Sequence[str] = RANDOM,
    steps: int = 64,
    batch: int = 16,
    patience: int = 3,
    rates: Mapping[str, Sequence[float]] | None = None,
    search: bool = True,
    budget: float = BUDGET,
    train_limit: int = 512,
    test_limit: int = 400,
    validate: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    command: str = "headscope.transfer",
    **options: Any,
) -> TransferResult:
    """Fine-tune a classifier on the encoder, training only some of its parameters.

    LayerNorm alone, as many other parameters, attention alone, everything, or only the classifier;
    from pretrained and from random weights, with several seeds. The model itself is not changed.

    Parameters
    ----------
    model : str, path, LoadedModel
        ``demo``, a folder, a hub id, or what :func:`headscope.load` returned.
    train, test : path, optional
        Labelled sentences or pairs, as ``prune --task classification`` reads them; a task made
        from the built-in sample's trees without them.
    sizes : sequence of int, optional
        Training examples; 64 and all that there are by default.
    seeds, spread_seeds : int
        Runs of each cell; and of attention and LayerNorm at the smallest size, where their spread
        is compared.
    variants, random : sequence of str
        What to train (``head``, ``layernorm``, ``biases``, ``weights``, ``attention``, ``all``)
        from pretrained weights; and from random ones, at the largest size.
    steps, batch, patience : int
        Most steps of a run, examples of a step, and validations that may bring nothing.
    rates : mapping of str to sequence of float, optional
        Learning rates to try of a variant, in place of the documented ones.
    search : bool
        Choose each cell's rate on the validation part; else the middle one of its grid is taken.
    budget : float
        Seconds for all runs. What it does not reach is listed in the result.
    train_limit, test_limit : int
        Examples drawn of each file at random; 0 for all of them.
    seed : int
        The first one; the others follow it.
    validate, progress, command, **options
        As :func:`headscope.classify` takes them.

    Returns
    -------
    TransferResult
        Frozen raw values; ``.to_frame()`` gives pandas.

    Raises
    ------
    InputError
        For a model, file or option that cannot be used.
    CorpusError
        If the files hold too few examples, or classes that differ.
    UnsupportedModelError
        If the model has no norms to train.

    Examples
    --------
    >>> import headscope
    >>> found = headscope.transfer("demo", variants=["head"], random=[], sizes=[64], seeds=2)
    >>> found.cells[0].variant, found.cells[0].parameters, found.cells[0].seeds
    ('head', 0, 2)
    """
    _check_numbers(steps=steps, batch=batch, patience=patience)
    check_seed(seed)
    if not budget > 0:
        raise InputError(f"The budget is {budget:g} seconds; give more than 0.")
    grid = rate_grid(rates, search)
    source = read(train, test, train_limit=train_limit, test_limit=test_limit, seed=seed)
    loaded = open_model(model, **options)
    need_tokenizer(loaded, "transfer")
    loaded.pooling.check()
    validation = require_valid(loaded, validate)
    data = label(source, loaded, seed)
    plan = make_plan(
        len(data.train),
        sizes=sizes,
        variants=variants,
        random=random,
        seeds=seeds,
        spread_seeds=spread_seeds,
    )
    every = -(-steps // VALIDATIONS)
    runs = _Runs(
        _wide(loaded), data, plan, grid, Recipe(0.0, steps, batch, every, patience), seed, budget
    )
    runs.run(progress or silent)
    done = {cell: runs.done[cell] for cell in plan.cells if cell in runs.done}
    return TransferResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=command, seed=seed, data=source),
        validation=validation,
        task=source.task,
        classes=data.classes,
        sizes=plan.sizes,
        validation_examples=len(data.validation),
        test_examples=len(data.test),
        dropped=data.dropped,
        seeds=seeds,
        spread_seeds=spread_seeds,
        steps=steps,
        batch=batch,
        budget=budget,
        cells=tuple(cell_row(c, d, runs.parameters[c.variant]) for c, d in done.items()),
        baselines=tuple(baselines(data, plan.sizes, range(seed, seed + seeds))),
        differences=tuple(differences(done)),
        spreads=tuple(spreads(done, plan.sizes[0])),
        runs=tuple(d.row for found in done.values() for d in found),
        searched=tuple(runs.searched),
        missed=tuple(runs.missed),
        not_possible=runs.not_possible,
    )


def _check_numbers(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise InputError(f"{name} is {value}; give 1 or more.")


def _wide(loaded: LoadedModel) -> LoadedModel:
    """Return a model whose numbers have enough digits for small steps; halves become float32."""
    half = loaded.dtype in ("float16", "bfloat16")
    return cast(loaded, "float32") if half else loaded


@dataclass
class _Runs:
    """All runs of a plan, done one after the other."""

    loaded: LoadedModel
    data: Labelled
    plan: Plan
    grid: Mapping[str, Sequence[float]]
    recipe: Recipe
    seed: int
    budget: float
    done: dict[Cell, list[Done]] = field(default_factory=dict)
    searched: list[TransferTry] = field(default_factory=list)
    missed: list[TransferMissed] = field(default_factory=list)
    not_possible: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)

    def run(self, progress: Progress) -> None:
        """Do what the budget allows, seed by seed; list the rest."""
        self._watch = Stopwatch(self.budget)
        self._known: dict[tuple[str, int], dict[object, Tensor]] = {}
        self._count()
        rates: dict[Cell, float] = {}
        wanted = [pair for pair in self.plan.rounds() if pair[1].variant not in self.not_possible]
        for i, (number, cell) in enumerate(wanted):
            try:
                self._watch.check()
                self._one(number, cell, rates)
            except OutOfTime:
                row = TransferMissed(cell.variant, cell.weights, cell.size, self.seed + number)
                self.missed.append(row)
            progress("runs", i + 1, len(wanted))

    def _count(self) -> None:
        """Count what each variant trains; one that the model does not have is left out."""
        for variant in dict.fromkeys(cell.variant for cell in self.plan.cells):
            try:
                self.parameters[variant] = count(choose(self.loaded, variant, self.seed))
            except UnsupportedModelError as error:
                if variant == "layernorm":
                    raise
                self.not_possible[variant] = str(error)

    def _one(self, number: int, cell: Cell, rates: dict[Cell, float]) -> None:
        seed = self.seed + number
        if number == 0:
            rate, outcome = self._searched(cell, seed)
            rates[cell] = rate
        elif cell in rates:
            rate = rates[cell]
            outcome = self._outcome(cell, seed, rate)
        else:
            raise OutOfTime  # its rate was never found
        found = run_row(cell, seed, rate, outcome, self.data)
        self.done.setdefault(cell, []).append(found)

    def _searched(self, cell: Cell, seed: int) -> tuple[float, Outcome]:
        """Try every rate of the grid; return the one with the lowest validation loss."""
        tried: list[tuple[float, float]] = []
        best: tuple[float, Outcome] | None = None
        for rate in self.grid[cell.variant]:
            outcome = self._outcome(cell, seed, rate)
            tried.append((rate, outcome.validation_loss))
            if best is None or outcome.validation_loss < best[1].validation_loss:
                best = rate, outcome
        if best is None:
            raise OutOfTime
        for rate, loss in tried:
            self.searched.append(
                TransferTry(
                    cell.variant, cell.weights, cell.size, rate, finite(loss), rate == best[0]
                )
            )
        return best

    def _outcome(self, cell: Cell, seed: int, rate: float) -> Outcome:
        model = self._model(cell.weights, seed)
        train = subset(self.data.train, cell.size, seed)
        known = self._known.setdefault((cell.weights, seed if cell.weights == "random" else 0), {})
        recipe = dataclasses.replace(self.recipe, rate=rate)
        return fine_tune(
            model,
            cell.variant,
            (train, self.data.validation),
            Frozen(model, train, known),
            recipe,
            n_classes=len(self.data.classes),
            seed=seed,
            budget=self._watch,
        )

    def _model(self, weights: str, seed: int) -> LoadedModel:
        """Return what a run starts from; random weights are those of its seed."""
        if weights == "pretrained":
            return self.loaded
        if getattr(self, "_twin_seed", None) != seed:
            self._twin, self._twin_seed = random_twin(self.loaded, seed), seed
        return self._twin
