"""``headscope transfer``: what fine-tuning only some of a model's parameters achieves."""

from __future__ import annotations

import time
from itertools import chain
from typing import NamedTuple

from headscope.analyses.transfer import TransferOptions
from headscope.analyses.transfer.labelled import Source, read, tokenised_splits
from headscope.analyses.transfer.plan import Plan, make_plan, rate_grid
from headscope.analyses.transfer.result import TransferResult
from headscope.analyses.transfer.runner import Runner
from headscope.analyses.transfer.summary import (
    baselines,
    cell_row,
    differences,
    divergence,
    spreads,
)
from headscope.core.errors import UnsupportedModelError
from headscope.core.serialise import SCHEMA
from headscope.models.certificate.validation import ValidationSummary
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import cast
from headscope.models.surgery.trainable import choose, count
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid


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
    trained = loaded
    if loaded.dtype in ("float16", "bfloat16"):  # too few digits for small steps
        trained = cast(loaded, "float32")
    counts = _count_parameters(trained, plan, options.seed)
    runner = Runner(trained, data, grid, options, deadline)
    possible = [run for run in plan.runs() if run.cell.variant in counts.parameters]
    runner.run(possible)
    return _result(loaded, options, source, validation, plan=plan, counts=counts, runner=runner)


class _Counts(NamedTuple):
    """What each variant of a plan would train in a model."""

    parameters: dict[str, int]  # How many numbers it trains, by variant
    not_possible: dict[str, str]  # Why the model lacks what is to be trained, by variant


def _count_parameters(loaded: LoadedModel, plan: Plan, seed: int) -> _Counts:
    """Count the numbers that each variant of a plan trains.

    Raises
    ------
    UnsupportedModelError
        If the model has no norms to train; any other variant may be missing.
    """
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
    runner: Runner,
) -> TransferResult:
    """Sum up all runs, cell by cell in the order of the plan."""
    data = runner.data
    done = {cell: runner.done[cell] for cell in plan.cells if cell in runner.done}
    at_best_rates = [run.row for run in chain.from_iterable(done.values())]
    all_runs = (*at_best_rates, *runner.stress)
    n_diverged = tuple(divergence(all_runs, plan.sizes[0]))
    seeds = range(options.seed, options.seed + options.seeds)
    without_model = tuple(baselines(data, plan.sizes, seeds))
    majority = without_model[0].accuracy.value or 0.0  # of the majority class, at the smallest size
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
            cell_row(
                cell,
                cell_runs,
                parameters=counts.parameters[cell.variant],
                optimum=runner.rates[cell].optimum,
            )
            for cell, cell_runs in done.items()
        ),
        baselines=without_model,
        differences=tuple(differences(done)),
        spreads=tuple(spreads(done, n_diverged, majority, plan.sizes[0])),
        runs=all_runs,
        searched=tuple(runner.searched),
        missed=tuple(runner.missed),
        not_possible=counts.not_possible,
        divergence=n_diverged,
    )
