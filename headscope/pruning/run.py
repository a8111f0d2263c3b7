"""``headscope prune``: choose heads, remove them, measure again, keep a model that loads."""

from __future__ import annotations

import dataclasses
import time
from functools import partial

from headscope import classify
from headscope.analyses.classify.known_roles import KnownRoles, find_roles, read_classification
from headscope.artefacts.onnx_graph import check_exportable, need_packages
from headscope.artefacts.saving import check_saves, check_target
from headscope.core.errors import ArtefactError
from headscope.core.processes import alone, current
from headscope.core.serialise import SCHEMA
from headscope.pruning.curves import (
    Outcome,
    StacksApart,
    run_curves,
    run_stacks_apart,
)
from headscope.pruning.keep import choose_version, keep, rehearse
from headscope.pruning.max_drop import check_enough, find_most
from headscope.pruning.measure import compact_model
from headscope.pruning.options import PruneOptions, needs
from headscope.pruning.result import DataInfo, PruneResult
from headscope.pruning.resume import SavedWork
from headscope.pruning.setup import Inputs, open_sources
from headscope.pruning.steps import Steps, costs_of, planned_steps, time_a_pass
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.resume import check_resume
from headscope.session.validate import require_valid
from headscope.tasks.base import Task
from headscope.tasks.calibration import chosen_stack
from headscope.tasks.units import units_of


def run(model: Model, options: PruneOptions) -> PruneResult:
    """Choose attention heads to remove, and measure what the model is worth without them."""
    steps = Steps(options.tell)
    inputs = _open(model, options, steps)
    steps.begin()
    measure = run_curves if options.max_drop is None else find_most
    outcome = measure(inputs, options, steps)
    apart = run_stacks_apart(inputs, options, steps)
    result = _result(inputs, options, outcome, apart)
    if options.keeps and current().rank == 0:
        steps.begin()
        with alone():  # what is kept is written, opened again and timed by the first process
            version, kept = choose_version(outcome.versions, inputs, partial(steps.did, "compared"))
            units = units_of(inputs.loaded)
            assert version.made is not None
            small = compact_model(inputs.loaded, units, version.made)
            result = dataclasses.replace(result, kept=kept)
            result = keep(version, small, result, inputs, options, steps)
    return _finished(result, steps)


def _finished(result: PruneResult, steps: Steps) -> PruneResult:
    """Return the result, or raise with it where something could not be made."""
    steps.finish()
    if result.failed:
        raise ArtefactError(
            f"{' and '.join(failed.option for failed in result.failed)} could not be made, and "
            "everything else that was found is kept: "
            f"{' '.join(failed.reason for failed in result.failed)}",
            result=result,
        )
    return result


def _open(model: Model, options: PruneOptions, steps: Steps) -> Inputs:
    """Read the data, open and validate the model, try what is to be kept, classify the heads."""
    check_resume(options.state, options.resume)
    if options.export is not None:
        need_packages()
    for _, folder in options.folders:
        check_target(folder)
    classified = None if isinstance(options.roles, bool) else read_classification(options.roles)
    sources = open_sources(options)
    loaded = open_for_tasks(model, task=options.task, **options.loading)
    need_tokenizer(loaded, "prune")
    loaded = chosen_stack(loaded, options.stack, options.task)
    start = time.monotonic()
    if options.export is not None:
        check_exportable(loaded)
    traced = time.monotonic() - start
    if options.save or options.save_dense:
        check_saves(loaded, standalone=options.standalone)
    evaluation = sources.evaluation_for(loaded)
    calibration = sources.calibration_for(loaded)
    if options.max_drop is not None:
        check_enough(evaluation, calibration)
    fidelity = sources.fidelity_for(loaded)
    validation = require_valid(loaded, options.validate)
    # The built-in sample says nothing of a model that reads another language, as translators do.
    wanted = classified is None and bool(options.roles) and options.task != "seq2seq"
    classify_now = wanted and loaded.stacks == ("encoder",)
    one_pass = time_a_pass(loaded, evaluation)
    steps.plan(
        costs_of(options, loaded, evaluation, calibration, one_pass, traced, fidelity),
        planned_steps(options, loaded, classify_now=classify_now),
        one_pass,
    )
    if options.keeps and current().rank == 0:
        with alone():
            rehearse(loaded, sources, evaluation, options, steps)
    if classify_now:
        steps.doing("roles")
        classified = classify(loaded, validate=False, seed=options.seed)
        steps.did("roles")
    roles = KnownRoles({}) if classified is None else find_roles(loaded, classified)
    files = (sources.data, sources.calibration, *([sources.fidelity] if fidelity else ()))
    hashes = [part.sha256 if part else None for part in files]
    work = SavedWork.open(options, loaded, hashes)
    return Inputs(loaded, sources, evaluation, calibration, roles, validation, work, fidelity)


def _result(
    inputs: Inputs, options: PruneOptions, outcome: Outcome, apart: StacksApart
) -> PruneResult:
    loaded, task, calibration = inputs.loaded, inputs.evaluation, inputs.calibration
    warnings = [*inputs.sources.warnings, *task.notes, *inputs.roles.warnings]
    if outcome.degenerate is not None:
        warnings.append(
            f"The unpruned model {outcome.degenerate}: what it loses with its heads says nothing "
            "about them, and no value here means anything."
        )

    def describe(task: Task, labels: bool | None, dropped: int = 0) -> DataInfo:
        data, counts = task.data, (task.n_examples, task.skipped)
        return DataInfo(data.name, data.sha256, task.name, *counts, labels, data.drawn, dropped)

    labels = bool(needs(options.method_names, "labels")) or options.labels
    return PruneResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=options.seed, data=task.data),
        validation=inputs.validation,
        task=task.name,
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        baseline=outcome.baseline,
        data=describe(task, None),
        calibration=describe(calibration, labels and calibration.has_labels, inputs.sources.dropped)
        if calibration
        else None,
        n_heads=sum(site.n_heads for site in loaded.sites),
        shared_layers=units_of(loaded).shared,
        curves=outcome.curves,
        scores=outcome.scores,
        ablation=outcome.ablation,
        kept_alone=outcome.kept_alone,
        roles=inputs.roles.heads,
        roles_from=inputs.roles.corpus,
        warnings=tuple(warnings),
        stack=loaded.stacks[0] if len(loaded.stacks) == 1 else "all",
        stacks=apart.stacks,
        areas=apart.areas,
        gaps=apart.gaps,
        max_drop=outcome.max_drop,
        even=outcome.even,
    )
