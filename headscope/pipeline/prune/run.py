"""``headscope prune``: choose heads, remove them, measure again, keep a model that loads."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import Any

from headscope.analyses import prune_options
from headscope.api import classify
from headscope.models.onnx.graph import check_exportable
from headscope.models.saving import check_saves
from headscope.pipeline.known_roles import (
    KnownRoles,
    find_roles,
    read_classification,
)
from headscope.pipeline.opening import Model, need_tokenizer, open_for_tasks
from headscope.pipeline.provenance import provenance
from headscope.pipeline.prune.curves import Outcome, run
from headscope.pipeline.prune.findings import open_findings
from headscope.pipeline.prune.keeping import choose, failure, keep, rehearse
from headscope.pipeline.prune.max_drop import find_most
from headscope.pipeline.prune.options import PruneOptions
from headscope.pipeline.prune.setting_up import Inputs
from headscope.pipeline.prune.sources import open_sources
from headscope.pipeline.prune.stacks import Apart, chosen_stack, run_apart, runs_of
from headscope.pipeline.prune.steps import (
    Steps,
    costs_of,
    keeping_steps,
    opening_steps,
    time_a_pass,
)
from headscope.pipeline.prune.tries import check_enough
from headscope.pipeline.tasks import Task
from headscope.pipeline.validate import require_valid
from headscope.processes.sharing import alone, current
from headscope.results import SCHEMA
from headscope.results.prune import DataInfo, PruneResult


def prune(model: Model, options: prune_options.PruneOptions) -> PruneResult:
    """Choose attention heads to remove, and measure what the model is worth without them."""
    fields = dataclasses.fields(PruneOptions)
    choices = PruneOptions(**{field.name: getattr(options, field.name) for field in fields})
    loading = {name: value for name, value in options.loading.items() if name != "pooling"}
    steps = Steps(options.tell)
    inputs = _open(model, choices, loading, steps)
    steps.begin()
    measured = run if choices.max_drop is None else find_most
    outcome = measured(inputs, choices, steps)
    apart = run_apart(inputs, choices, steps)
    result = _result(inputs, choices, outcome, apart, options.command)
    if not choices.keeps or current().rank > 0:
        steps.finish()
        return result
    steps.begin()
    with alone():  # what is kept is written, opened again and timed by the first process
        result = _kept(result, inputs, choices, outcome, steps)
    steps.finish()
    if (error := failure(result)) is not None:
        raise error
    return result


def _open(model: Model, choices: PruneOptions, options: dict[str, Any], steps: Steps) -> Inputs:
    """Read the data, then open and validate the model, then find out what its heads do."""
    known = None if isinstance(choices.roles, bool) else read_classification(choices.roles)
    sources = open_sources(choices)
    loaded = open_for_tasks(model, pooling=choices.pooling, **options)
    need_tokenizer(loaded, "prune")
    loaded = chosen_stack(loaded, choices.stack, choices.task)
    start = time.monotonic()
    if choices.export is not None:
        check_exportable(loaded)
    traced = time.monotonic() - start
    if choices.save or choices.save_dense:
        check_saves(loaded, standalone=choices.standalone)
    evaluation = sources.evaluation_for(loaded)
    if choices.max_drop is not None:
        check_enough(evaluation)
    calibration = sources.calibration_for(loaded)
    validation = require_valid(loaded, choices.validate)
    # The built-in sample says nothing of a model that reads another language, as translators do.
    wanted = choices.roles and choices.task != "seq2seq"
    classified = known is None and bool(wanted) and loaded.stacks == ("encoder",)
    one_pass = time_a_pass(loaded, evaluation)
    steps.plan(
        costs_of(choices, loaded, evaluation, calibration, one_pass, traced),
        [
            ("", opening_steps(choices, classified=classified)),
            *runs_of(loaded, choices),
            ("", keeping_steps(choices, loaded)),
        ],
        one_pass,
    )
    if choices.keeps and current().rank == 0:
        with alone():
            rehearse(loaded, sources, evaluation, choices, steps)
    if classified:
        known = classify(loaded, validate=False, seed=choices.seed)
        steps.did("roles")
    roles = KnownRoles({}) if known is None else find_roles(loaded, known)
    data = (sources.data, sources.calibration)
    hashes = [None if examples is None else examples.sha256 for examples in data]
    findings = open_findings(choices, loaded, hashes)
    return Inputs(loaded, sources, evaluation, calibration, roles, validation, findings)


def _result(
    inputs: Inputs, choices: PruneOptions, outcome: Outcome, apart: Apart, command: str
) -> PruneResult:
    loaded, task, chosen = inputs.loaded, inputs.evaluation, inputs.calibration
    return PruneResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=command, seed=choices.seed, data=task.data),
        validation=inputs.validation,
        task=task.name,
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        baseline=outcome.baseline,
        data=_describe(task, None),
        calibration=None if chosen is None else _describe(chosen, _labels_used(choices, chosen)),
        n_heads=sum(site.n_heads for site in loaded.sites),
        shared_layers=inputs.units.shared,
        curves=outcome.curves,
        scores=outcome.scores,
        ablation=outcome.ablation,
        kept_alone=outcome.kept_alone,
        roles=inputs.roles.heads,
        roles_from=inputs.roles.corpus,
        warnings=(
            *inputs.sources.warnings,
            *task.notes,
            *inputs.roles.warnings,
            *_meaningless(outcome),
        ),
        stack=loaded.stacks[0] if len(loaded.stacks) == 1 else "all",
        stacks=apart.stacks,
        areas=apart.areas,
        gaps=apart.gaps,
        max_drop=outcome.max_drop,
        even=outcome.even,
    )


def _kept(
    result: PruneResult, inputs: Inputs, choices: PruneOptions, outcome: Outcome, steps: Steps
) -> PruneResult:
    """Save, export and time the one model that is kept; all are of the same."""
    version, kept = choose(outcome.versions, inputs, partial(steps.did, "compared"))
    return keep(version, dataclasses.replace(result, kept=kept), inputs, choices, steps)


def _describe(task: Task, labels: bool | None) -> DataInfo:
    return DataInfo(
        task.data.name, task.data.sha256, task.name, task.n_examples, task.skipped, labels
    )


def _labels_used(choices: PruneOptions, calibration: Task) -> bool:
    return bool(choices.needing("labels")) or (choices.labels and calibration.has_labels)


def _meaningless(outcome: Outcome) -> tuple[str, ...]:
    if outcome.degenerate is None:
        return ()
    return (
        f"The unpruned model {outcome.degenerate}: what it loses with its heads says nothing about "
        "them, and no value here means anything.",
    )
