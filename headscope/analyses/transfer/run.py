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
    # Half precision has too few digits for small steps.
    half = loaded.dtype in ("float16", "bfloat16")
    trained = cast(loaded, "float32") if half else loaded
    counts = _count_parameters(trained, plan, options.seed)
    runs = Runner(trained, data, grid, options, deadline)
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
    runs: Runner,
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
