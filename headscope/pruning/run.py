"""``headscope prune``: choose heads, remove them, measure again, keep a model that loads."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import fields
from functools import partial
from typing import Any

from headscope import classify
from headscope.analyses import prune_options
from headscope.analyses.classify.known_roles import (
    KnownRoles,
    find_roles,
    read_classification,
)
from headscope.artefacts.onnx_graph import check_exportable, need_packages
from headscope.artefacts.saving import check_saves, check_target
from headscope.core.processes import alone, current
from headscope.core.serialise import SCHEMA
from headscope.models.pooling import chosen as chosen_pooling
from headscope.pruning.curves import Apart, Outcome, run_apart, run_curves, steps_of_runs
from headscope.pruning.keep import choose_version, failure, keep, rehearse
from headscope.pruning.max_drop import check_enough, find_most
from headscope.pruning.options import PruneOptions, needs
from headscope.pruning.result import DataInfo, PruneResult
from headscope.pruning.resume import Findings
from headscope.pruning.setup import Inputs, open_sources
from headscope.pruning.steps import Steps, costs_of, keeping_steps, opening_steps, time_a_pass
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.progress import Progress
from headscope.session.provenance import provenance
from headscope.session.resume import check_resume
from headscope.session.validate import require_valid
from headscope.tasks.base import Task
from headscope.tasks.calibration import chosen_stack
from headscope.tasks.units import units_of


def run(model: Model, options: prune_options.PruneOptions) -> PruneResult:
    """Choose attention heads to remove, and measure what the model is worth without them."""
    names = [field.name for field in fields(PruneOptions)]
    choices = PruneOptions(**{name: getattr(options, name) for name in names})
    loading = {name: value for name, value in options.loading.items() if name != "pooling"}
    return _run(model, choices, loading, options.tell, options.command)


def _run(
    model: Model, options: PruneOptions, loading: dict[str, Any], tell: Progress, command: str
) -> PruneResult:
    steps = Steps(tell)
    inputs = _open(model, options, loading, steps)
    steps.begin()
    measure = run_curves if options.max_drop is None else find_most
    outcome = measure(inputs, options, steps)
    apart = run_apart(inputs, options, steps)
    result = _result(inputs, options, outcome, apart, command)
    if options.keeps and current().rank == 0:
        steps.begin()
        with alone():  # what is kept is written, opened again and timed by the first process
            version, kept = choose_version(outcome.versions, inputs, partial(steps.did, "compared"))
            result = keep(version, dataclasses.replace(result, kept=kept), inputs, options, steps)
    steps.finish()
    if (error := failure(result)) is not None:
        raise error
    return result


def _open(model: Model, options: PruneOptions, loading: dict[str, Any], steps: Steps) -> Inputs:
    """Read the data, then open and validate the model, then classify its heads if need be."""
    check_resume(options.state, options.resume)
    if options.pooling is not None:
        chosen_pooling(options.pooling)
    if options.export is not None:
        need_packages()
    for _, folder in options.folders:
        check_target(folder)
    known = None if isinstance(options.roles, bool) else read_classification(options.roles)
    sources = open_sources(options)
    loaded = open_for_tasks(model, pooling=options.pooling, **loading)
    need_tokenizer(loaded, "prune")
    loaded = chosen_stack(loaded, options.stack, options.task)
    start = time.monotonic()
    if options.export is not None:
        check_exportable(loaded)
    traced = time.monotonic() - start
    if options.save or options.save_dense:
        check_saves(loaded, standalone=options.standalone)
    evaluation = sources.evaluation_for(loaded)
    if options.max_drop is not None:
        check_enough(evaluation)
    calibration = sources.calibration_for(loaded)
    validation = require_valid(loaded, options.validate)
    # The built-in sample says nothing of a model that reads another language, as translators do.
    wanted = known is None and bool(options.roles) and options.task != "seq2seq"
    classified = wanted and loaded.stacks == ("encoder",)
    one_pass = time_a_pass(loaded, evaluation)
    steps.plan(
        costs_of(options, loaded, evaluation, calibration, one_pass, traced),
        [
            ("", opening_steps(options, classified=classified)),
            *steps_of_runs(loaded, options),
            ("", keeping_steps(options, loaded)),
        ],
        one_pass,
    )
    if options.keeps and current().rank == 0:
        with alone():
            rehearse(loaded, sources, evaluation, options, steps)
    if classified:
        known = classify(loaded, validate=False, seed=options.seed)
        steps.did("roles")
    roles = KnownRoles({}) if known is None else find_roles(loaded, known)
    data = (sources.data, sources.calibration)
    hashes = [None if examples is None else examples.sha256 for examples in data]
    findings = Findings.open(options, loaded, hashes)
    return Inputs(loaded, sources, evaluation, calibration, roles, validation, findings)


def _result(
    inputs: Inputs, options: PruneOptions, outcome: Outcome, apart: Apart, command: str
) -> PruneResult:
    loaded, task, chosen = inputs.loaded, inputs.evaluation, inputs.calibration
    warnings = [*inputs.sources.warnings, *task.notes, *inputs.roles.warnings]
    if outcome.degenerate is not None:
        warnings.append(
            f"The unpruned model {outcome.degenerate}: what it loses with its heads says nothing "
            "about them, and no value here means anything."
        )

    def describe(task: Task, labels: bool | None) -> DataInfo:
        data = task.data
        return DataInfo(data.name, data.sha256, task.name, task.n_examples, task.skipped, labels)

    labels = bool(needs(options.method_names, "labels"))
    return PruneResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=command, seed=options.seed, data=task.data),
        validation=inputs.validation,
        task=task.name,
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        baseline=outcome.baseline,
        data=describe(task, None),
        calibration=None
        if chosen is None
        else describe(chosen, labels or (options.labels and chosen.has_labels)),
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
