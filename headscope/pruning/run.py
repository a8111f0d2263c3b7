"""``headscope prune``: choose heads, remove them, measure again, keep a model that loads.

:func:`run` is the whole run; its steps follow in order. A ``Task`` is examples with a metric; a
``Pruner`` ranks heads, removes and repairs them, and measures what is left; an ``Outcome`` has the
measured curves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headscope import classify
from headscope.analyses.classify.known_roles import KnownRoles, find_roles, read_classification
from headscope.analyses.classify.result import ClassifyResult, HeadResult
from headscope.artefacts.saving import check_saves, need_room_for, reserved
from headscope.core.accumulator import Array
from headscope.core.errors import InputError
from headscope.core.processes import alone, current
from headscope.core.progress import Progress, progress_of_part
from headscope.core.serialise import SCHEMA
from headscope.data.examples import WINDOWED
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import has_all_weights
from headscope.pruning.curves import Outcome, run_curves, units_by_name, units_without_roles
from headscope.pruning.keep import choose_version, keep
from headscope.pruning.max_drop import prune_within_loss, unseen_examples
from headscope.pruning.measure import Pruner
from headscope.pruning.options import MANUAL, PruneOptions, Repair, methods_with_labels
from headscope.pruning.ranking import Ranking
from headscope.pruning.result import DataInfo, PruneResult
from headscope.pruning.sources import Sources, open_sources
from headscope.pruning.stacks import StacksApart, prune_each_stack
from headscope.pruning.surgeon import can_refit
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.tasks.base import Task
from headscope.tasks.calibration import chosen_stack
from headscope.tasks.making import make_task
from headscope.tasks.units import Head, units_of


class Ways(NamedTuple):
    """How heads are chosen, and what is done to those that stay."""

    methods: Sequence[str]  # Without the control; empty where heads are named by hand
    repairs: Sequence[Repair]
    warning: str | None = (
        None  # Why these are not the defaults, where the model does not allow them
    )


class Opened(NamedTuple):
    """A model and the examples of a run, before anything is measured."""

    loaded: LoadedModel  # A view of the stacks that heads are removed from
    sources: Sources  # The data as they were read; below they are tokenised
    ways: Ways
    classified: ClassifyResult | None  # What the user says that the heads do
    evaluation: Task  # What models are measured on
    calibration: Task | None  # What heads are chosen on; None where nothing is chosen
    #: With max_drop, indices of the examples to test on: none that heads were chosen on.
    unseen: Array | None


def run(model: Model, options: PruneOptions) -> PruneResult:
    """Choose attention heads to remove, and measure what the model is worth without them."""
    saves = options.save is not None and current().rank == 0  # of several processes the first
    with reserved(options.save if saves else None, by="prune"):
        return _run(model, options)


def _run(model: Model, options: PruneOptions) -> PruneResult:
    """Open, prove, measure, and save where that was asked for."""
    # Read the data and open the model, and prove that our attention is the model's.
    classified = None if options.roles is None else read_classification(options.roles)
    sources = _open_sources(options)
    loaded = open_for_tasks(model, task=options.task, **options.loading)
    need_tokenizer(loaded, "prune")
    validation = require_valid(loaded, options.validate)

    # Refuse what could not be pruned, measured or saved, before anything is measured.
    opened = _open(loaded, sources, classified, options)
    loaded = opened.loaded
    evaluation = opened.evaluation

    # Choose heads, remove them and measure.
    roles = _roles(opened, options)
    outcome = _prune(_pruner(opened, loaded, roles.by_place, options), opened, options)
    # With ``max_drop`` it measures on the unseen examples alone, as the curves were.
    pruner = outcome.pruner
    stacks = StacksApart()
    if len(loaded.stacks) > 1 and not options.manual and options.max_drop is None:
        stacks = _stacks_apart(opened, roles, options)

    result = PruneResult(
        schema=SCHEMA,
        provenance=provenance(
            loaded, command=options.command, seed=options.seed, data=evaluation.data
        ),
        validation=validation,
        task=evaluation.name,
        metric=evaluation.metric,
        higher_is_better=evaluation.higher_is_better,
        baseline=pruner.baseline(),
        data=_data_info(evaluation),
        calibration=_calibration_info(opened),
        n_heads=pruner.n_heads,
        shared_layers=pruner.units.shared,
        curves=outcome.curves,
        scores=outcome.scores,
        roles=roles.heads,
        roles_from=roles.corpus,
        warnings=_warnings(opened, roles, pruner),
        stack=loaded.stacks[0] if len(loaded.stacks) == 1 else "all",
        stacks=stacks.stacks,
        areas=stacks.areas,
        gaps=stacks.gaps,
        max_drop=outcome.max_drop,
    )
    # Save the best model: of several processes the first writes it, opens it again and times it.
    if options.save is not None and current().rank == 0:
        options.tell("saving", 0, 1)
        with alone():
            result = _saved(result, outcome, opened, options, Path(options.save))
    return result


# --- what can be refused is refused before anything is measured -----------------------------------


def _open_sources(options: PruneOptions) -> Sources:
    """Read the data."""
    return open_sources(
        options.task,
        options.data,
        options.calibration,
        limit=options.limit,
        calibration_limit=options.calibration_limit,
        seed=options.seed,
        needs_calibration=options.needs_calibration,
        needs_labels=methods_with_labels(options.scored),  # without the control, ``random``
        tested_unseen=options.max_drop is not None and options.task not in WINDOWED,
    )


def _open(
    loaded: LoadedModel,
    sources: Sources,
    classified: ClassifyResult | None,
    options: PruneOptions,
) -> Opened:
    """Choose the stack and tokenise the data; refuse heads and methods that the model lacks.

    It reads the model's heads and their maps, so the model is proven before.
    """
    loaded = chosen_stack(loaded, options.stack, options.task)
    ways = _ways(loaded, options)
    _check_choice(loaded, options)
    is_repaired = any(repair != Repair.none for repair in ways.repairs)
    need_room_for(loaded, options.save, changes_weights=is_repaired)
    evaluation = _evaluation(sources, options, loaded)
    calibration = _calibration(sources, options, loaded)
    return Opened(
        loaded=loaded,
        sources=sources,
        ways=ways,
        classified=classified,
        evaluation=evaluation,
        calibration=calibration,
        unseen=None if options.max_drop is None else unseen_examples(evaluation, calibration),
    )


def _ways(loaded: LoadedModel, options: PruneOptions) -> Ways:
    """Return the methods and repairs; where surgeon cannot refit the model, other defaults.

    ``surgeon``, the default method and repair, refits every layer's output map to the heads that
    stay. It needs maps that read heads and nothing else.
    """
    methods = options.scored  # names of the methods without the control, ``random``
    repairs = options.repair_kinds
    user_chose_both = bool(options.methods and options.repairs)
    if options.manual or user_chose_both or can_refit(loaded):
        return Ways(methods, repairs)
    if not options.methods:
        methods = ("fisher",)
    if not options.repairs:
        # By default the last repair is surgeon, the refit of output maps: scale takes its place.
        repairs = (*repairs[:-1], Repair.scale)
    why = "which read more than heads"
    if not has_all_weights(loaded):
        why = "which headscope does not know"
    return Ways(
        methods,
        repairs,
        f"surgeon cannot refit the output maps of {loaded.family}, {why}; fisher takes its place "
        "as method, scale as repair.",
    )


def _check_choice(loaded: LoadedModel, options: PruneOptions) -> None:
    """Refuse heads that the model does not have, and a model that could not be saved."""
    if options.heads is not None:
        units_by_name(loaded, options.heads)
    if options.save is None:
        return
    check_saves(loaded)
    if options.manual or options.max_drop is not None:
        return
    n_units = len(units_of(loaded))
    count = int(options.shares[-1] * n_units + 0.5)
    if count == 0:
        raise InputError("The fraction is so small that no head is removed; give a larger one.")
    if count == n_units:
        raise InputError("The fraction is so large that no head is left; give a smaller one.")


def _evaluation(sources: Sources, options: PruneOptions, loaded: LoadedModel) -> Task:
    """Tokenise what models are measured on."""
    return make_task(options.task, sources.data, loaded, seed=options.seed, limit=options.limit)


def _calibration(sources: Sources, options: PruneOptions, loaded: LoadedModel) -> Task | None:
    """Tokenise what heads are chosen on."""
    if sources.calibration is None:
        return None
    return make_task(
        sources.calibration_task,
        sources.calibration,
        loaded,
        seed=options.seed + 1,  # with other masks: both sets may hold the same text
        # The option counts sentences, the task windows: WINDOWED says how many sentences make one
        # (mlm 2, lm 4). Other tasks have none: their examples were drawn before.
        limit=max(2, options.calibration_limit // WINDOWED.get(sources.calibration_task, 2)),
    )


# --- choose heads, remove them and measure --------------------------------------------------------


def _roles(opened: Opened, options: PruneOptions) -> KnownRoles:
    """Return what the heads do: from a file, or classified now where a method has to know.

    Empty where neither is so.
    """
    classified = opened.classified
    if classified is None and options.what_needs_roles:
        options.tell("finding the roles of heads", 0, 1)
        classified = classify(opened.loaded, validate=False, seed=options.seed)
    return KnownRoles({}) if classified is None else find_roles(opened.loaded, classified)


def _pruner(
    opened: Opened,
    view: LoadedModel,
    roles: Mapping[Head, HeadResult],
    options: PruneOptions,
    tell: Progress | None = None,
) -> Pruner:
    """Make the pruner of a model, or of a view of one of its stacks.

    ``roles`` go by the positions of heads in ``view``: row of the attention module, and index.
    """
    return Pruner(
        view,
        evaluation=opened.evaluation,
        calibration=opened.calibration,
        roles=roles,
        shares=options.shares,
        draws=options.draws,
        seed=options.seed,
        tell=tell or options.tell,
    )


def _prune(pruner: Pruner, opened: Opened, options: PruneOptions) -> Outcome:
    """Remove what was asked for: as many as a bounded loss allows, named heads, or every share."""
    random = "random" in options.method_names  # all names, with the control
    if options.max_drop is not None:
        assert opened.unseen is not None  # it was made for max_drop
        return prune_within_loss(
            pruner,
            methods=opened.ways.methods,
            repairs=opened.ways.repairs,
            allowed_loss=options.max_drop,
            examples=opened.unseen,
            random=random,
        )
    if options.manual:
        return _prune_by_hand(pruner, opened.ways.repairs, options)
    return run_curves(
        pruner,
        rankings=pruner.rankings(opened.ways.methods),
        repairs=opened.ways.repairs,
        counts=pruner.counts,
        random=random,
    )


def _prune_by_hand(pruner: Pruner, repairs: Sequence[Repair], options: PruneOptions) -> Outcome:
    """Remove the heads that were named, or those without the roles to keep."""
    if options.heads is not None:
        removed = units_by_name(pruner.loaded, options.heads)
    else:
        roles = pruner.context.roles
        removed = units_without_roles(pruner.loaded, roles, options.keep_roles or ())
    named_go_first = Ranking(pruner.units.gates(removed))  # a value of 0 if named, else 1
    return run_curves(
        pruner,
        rankings={MANUAL: named_go_first},
        repairs=repairs,
        counts=[len(removed)],
        random=True,
    )


def _stacks_apart(opened: Opened, roles: KnownRoles, options: PruneOptions) -> StacksApart:
    """Prune each stack of an encoder-decoder model while the others keep their heads."""

    def prune_one(
        stack: str, view: LoadedModel, roles_in_view: Mapping[Head, HeadResult]
    ) -> Outcome:
        tell = progress_of_part(stack, options.tell)
        return _prune(_pruner(opened, view, roles_in_view, options, tell), opened, options)

    return prune_each_stack(opened.loaded, roles.by_place, prune_one)


def _saved(
    result: PruneResult, outcome: Outcome, opened: Opened, options: PruneOptions, folder: Path
) -> PruneResult:
    """Save the best of the pruned models, and add to the result what the folder is worth."""
    task = opened.calibration or opened.evaluation
    version, kept_model = choose_version(outcome.versions, opened.loaded, task)
    return keep(
        version,
        kept_model,
        result=result,
        pruner=outcome.pruner,
        evaluation_of=partial(_evaluation, opened.sources, options),
        folder=folder,
    )


# --- the result -----------------------------------------------------------------------------------


def _data_info(task: Task) -> DataInfo:
    """Describe the examples of a task."""
    return DataInfo(
        name=task.data.name,
        sha256=task.data.sha256,
        task=task.name,
        examples=task.n_examples,
        skipped=task.skipped,
        drawn=task.data.drawn,
    )


def _calibration_info(opened: Opened) -> DataInfo | None:
    """Describe what heads were chosen on, and whether the methods used its labels."""
    calibration = opened.calibration
    if calibration is None:
        return None
    methods = opened.ways.methods
    # Ablation needs no labels, but its metric uses them where there are some.
    use_labels = "ablation" in methods or bool(methods_with_labels(methods))
    return dataclasses.replace(
        _data_info(calibration),
        labels=use_labels and calibration.has_labels,
        dropped=opened.sources.dropped,
    )


def _warnings(opened: Opened, roles: KnownRoles, pruner: Pruner) -> tuple[str, ...]:
    """Say what a reader should not conclude."""
    evaluation = opened.evaluation
    warnings = list(opened.sources.warnings)
    if opened.ways.warning is not None:
        warnings.append(opened.ways.warning)
    calibration_notes = () if opened.calibration is None else opened.calibration.data.notes
    warnings += dict.fromkeys((*evaluation.notes, *calibration_notes, *roles.warnings))
    if (why := evaluation.degenerate(pruner.full)) is not None:
        warnings.append(
            f"The unpruned model {why}: what it loses with its heads says nothing about them, and "
            "no value here means anything."
        )
    warnings += evaluation.doubts(pruner.full)
    return tuple(warnings)
