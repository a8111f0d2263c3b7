"""``headscope prune``: choose heads, remove them, measure again, keep a model that loads."""

from __future__ import annotations

import dataclasses

from headscope import classify
from headscope.analyses.classify.known_roles import KnownRoles, find_roles, read_classification
from headscope.artefacts.saving import check_saves, trial_folder
from headscope.core.processes import alone, current
from headscope.core.serialise import SCHEMA
from headscope.models.run.loaded import LoadedModel
from headscope.pruning.curves import (
    Outcome,
    StacksApart,
    run_curves,
    run_stacks_apart,
)
from headscope.pruning.keep import choose_version, keep
from headscope.pruning.max_drop import check_enough, find_most
from headscope.pruning.options import PruneOptions, needs
from headscope.pruning.result import DataInfo, PruneResult
from headscope.pruning.setup import Inputs, open_sources
from headscope.pruning.sublayers import can_refit
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.tasks.base import Task
from headscope.tasks.calibration import chosen_stack
from headscope.tasks.units import units_of


def run(model: Model, options: PruneOptions) -> PruneResult:
    """Choose attention heads to remove, and measure what the model is worth without them."""
    inputs, options = _open(model, options)
    outcome = (run_curves if options.max_drop is None else find_most)(inputs, options)
    apart = run_stacks_apart(inputs, options)
    result = _result(inputs, options, outcome, apart)
    if options.save is not None and current().rank == 0:
        options.tell("saving", 0, 1)
        with alone():  # what is kept is written, opened again and timed by the first process
            version, kept = choose_version(outcome.versions, inputs)
            result = keep(version, kept, result, inputs, options)
    return result


def _open(model: Model, options: PruneOptions) -> tuple[Inputs, PruneOptions]:
    """Read the data, open and validate the model, classify the heads; name what is left open."""
    if options.save is not None:
        with trial_folder(options.save):
            pass  # it can be made, so a long run will not end without it
    classified = None if isinstance(options.roles, bool) else read_classification(options.roles)
    sources = open_sources(options)
    loaded = open_for_tasks(model, task=options.task, **options.loading)
    need_tokenizer(loaded, "prune")
    loaded = chosen_stack(loaded, options.stack, options.task)
    options, note = _named_method(loaded, options)
    if options.save is not None:
        check_saves(loaded)
    evaluation = sources.evaluation_for(loaded)
    calibration = sources.calibration_for(loaded)
    if options.max_drop is not None:
        check_enough(evaluation, calibration)
    validation = require_valid(loaded, options.validate)
    # The built-in sample says nothing of a model that reads another language, as translators do.
    wanted = classified is None and bool(options.roles) and options.task != "seq2seq"
    if wanted and loaded.stacks == ("encoder",):
        options.tell("finding the roles of heads", 0, 1)
        classified = classify(loaded, validate=False, seed=options.seed)
    roles = KnownRoles({}) if classified is None else find_roles(loaded, classified)
    sources = dataclasses.replace(sources, warnings=(*sources.warnings, *note))
    return Inputs(loaded, sources, evaluation, calibration, roles, validation), options


def _named_method(
    loaded: LoadedModel, options: PruneOptions
) -> tuple[PruneOptions, tuple[str, ...]]:
    """Name another method than ``surgeon``, unless one was asked for, where it cannot refit W_O."""
    if options.manual or options.methods or can_refit(loaded):
        return options, ()
    repairs = options.repairs or ("scale",)
    named = dataclasses.replace(options, methods=("fisher", "random"), repairs=repairs)
    return named, (
        f"surgeon cannot refit the output maps of {loaded.family}, which read more than heads; "
        "fisher chose the heads instead.",
    )


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
    )
