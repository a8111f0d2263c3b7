"""``headscope prune``: choose heads, remove them, measure again, keep a model that loads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from headscope import classify
from headscope.analyses.classify.known_roles import KnownRoles, find_roles, read_classification
from headscope.artefacts.saving import check_saves, trial_folder
from headscope.core.errors import InputError
from headscope.core.processes import alone, current
from headscope.core.progress import part_of
from headscope.core.serialise import SCHEMA
from headscope.pruning.curves import (
    areas_of,
    remove_by_hand,
    roles_of_stack,
    run_curves,
    single_heads,
    swept,
    units_by_hand,
)
from headscope.pruning.keep import choose_version, keep
from headscope.pruning.max_drop import check_enough, find_most, only_head
from headscope.pruning.measure import Pruner
from headscope.pruning.options import PruneOptions, Repair, needs
from headscope.pruning.result import Area, AreaGap, DataInfo, PruneResult, StackResult
from headscope.pruning.sources import open_sources
from headscope.pruning.sublayers import can_refit
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.tasks.base import Task
from headscope.tasks.calibration import chosen_stack
from headscope.tasks.units import units_of


def run(model: Model, options: PruneOptions) -> PruneResult:
    """Choose attention heads to remove, and measure what the model is worth without them."""
    task, seed, tell, save = options.task, options.seed, options.tell, options.save
    methods, repairs, normalise = options.scored, options.repair_kinds, options.normalise
    by_hand, max_drop, shares = options.manual, options.max_drop, options.shares
    random, labels = "random" in options.method_names, options.labels
    keep_roles = options.keep_roles or ()

    # What can be refused is refused before anything is measured.
    if save is not None:
        with trial_folder(save):
            pass  # it can be made, so a long run will not end without it
    wants_roles = bool(options.roles)
    classified = None if isinstance(options.roles, bool) else read_classification(options.roles)
    sources = open_sources(
        task,
        options.data,
        options.calibration,
        limit=options.limit,
        calibration_limit=options.calibration_limit,
        seed=seed,
        needs_calibration=options.needs_calibration,
        needs_labels=needs(methods, "labels"),
        tested_unseen=max_drop is not None and task != "mlm",
    )
    warnings = [*sources.warnings]
    loaded = open_for_tasks(model, task=task, **options.loading)
    need_tokenizer(loaded, "prune")
    loaded = chosen_stack(loaded, options.stack, task)
    if not by_hand and not options.methods and not can_refit(loaded):
        methods, repairs = ("fisher",), repairs if options.repairs else (Repair.scale,)
        warnings.append(
            f"surgeon cannot refit the output maps of {loaded.family}, which read more than heads; "
            "fisher chose the heads instead."
        )
    n_heads = sum(site.n_heads for site in loaded.sites)
    if save is not None:
        check_saves(loaded)
        if not by_hand and max_drop is None:
            n = len(units_of(loaded))
            count = int(shares[-1] * n + 0.5)
            if count == n == 1:
                raise only_head(loaded)
            if count == 0:
                raise InputError(
                    "The fraction is so small that no head is removed; give a larger one."
                )
            if count == n:
                raise InputError(
                    "The fraction is so large that no head is left; give a smaller one."
                )
    evaluation, calibration = sources.evaluation_for(loaded), sources.calibration_for(loaded)
    examples = None if max_drop is None else check_enough(evaluation, calibration)
    validation = require_valid(loaded, options.validate)
    # The built-in sample says nothing of a model that reads another language, as translators do.
    if classified is None and wants_roles and task != "seq2seq" and loaded.stacks == ("encoder",):
        tell("finding the roles of heads", 0, 1)
        classified = classify(loaded, validate=False, seed=seed)
    roles = KnownRoles({}) if classified is None else find_roles(loaded, classified)
    warnings += [*evaluation.notes, *roles.warnings]

    # Remove and measure.
    prepare = partial(Pruner.of, shares=shares, draws=options.draws, labels=labels, seed=seed)
    pruner = prepare(loaded, evaluation, calibration, roles.by_place, tell=tell)
    if max_drop is not None and examples is not None:
        outcome = find_most(
            *(pruner, methods, repairs, max_drop, examples), normalise=normalise, random=random
        )
    elif by_hand:
        removed = units_by_hand(loaded, pruner.units, options.heads, roles.by_place, keep_roles)
        outcome = remove_by_hand(pruner, removed, repairs, random=bool(keep_roles))
    else:
        outcome = run_curves(pruner, methods, repairs, normalise=normalise, random=random)
    measure = outcome.measure or pruner.measure  # on the examples that were tested on
    judging = replace(pruner, measure=measure)
    ablation, kept_alone = single_heads(judging) if options.tables else ((), ())
    if (why := measure.degenerate()) is not None:
        warnings.append(
            f"The unpruned model {why}: what it loses with its heads says nothing about them, and "
            "no value here means anything."
        )
    stacks = list[StackResult]()
    areas, gaps = tuple[Area, ...](), tuple[AreaGap, ...]()
    if len(loaded.stacks) > 1 and not by_hand and max_drop is None:
        whole_curves = {}
        for stack in loaded.stacks:
            view = loaded.only(stack)
            of_stack = roles_of_stack(loaded, view, roles.by_place)
            one = prepare(view, evaluation, calibration, of_stack, tell=part_of(stack, tell))
            of_one = run_curves(one, methods, repairs, normalise=normalise, random=random)
            heads = sum(site.n_heads for site in view.sites)
            stacks.append(StackResult(stack, heads, of_one.curves, of_one.scores))
            whole_curves[stack] = swept(one, of_one.curves)
        areas, gaps = areas_of(whole_curves)

    def describe(data: Task, labels: bool | None, dropped: int = 0) -> DataInfo:
        read, counts = data.data, (data.n_examples, data.skipped)
        return DataInfo(read.name, read.sha256, data.name, *counts, labels, read.drawn, dropped)

    use_labels = bool(needs(methods, "labels")) or labels
    result = PruneResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=seed, data=evaluation.data),
        validation=validation,
        task=evaluation.name,
        metric=evaluation.metric,
        higher_is_better=evaluation.higher_is_better,
        baseline=measure.baseline(),
        data=describe(evaluation, None),
        calibration=describe(calibration, use_labels and calibration.has_labels, sources.dropped)
        if calibration
        else None,
        n_heads=n_heads,
        shared_layers=pruner.units.shared,
        curves=outcome.curves,
        scores=outcome.scores,
        ablation=ablation,
        kept_alone=kept_alone,
        roles=roles.heads,
        roles_from=roles.corpus,
        warnings=tuple(warnings),
        stack=loaded.stacks[0] if len(loaded.stacks) == 1 else "all",
        stacks=tuple(stacks),
        areas=areas,
        gaps=gaps,
        max_drop=outcome.max_drop,
    )
    if save is not None and current().rank == 0:
        tell("saving", 0, 1)
        with alone():  # what is kept is written, opened again and timed by the first process
            version, kept = choose_version(outcome.versions, loaded, calibration or evaluation)
            result = keep(version, kept, result, loaded, evaluation, sources, save, seed)
    return result
