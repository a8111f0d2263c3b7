"""``headscope prune``: choose heads, remove them, measure again, keep a model that loads."""

from __future__ import annotations

import dataclasses
import random
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headscope import classify
from headscope.analyses.classify.known_roles import KnownRoles, find_roles, read_classification
from headscope.artefacts.saving import check_saves, trial_folder
from headscope.core.errors import InputError
from headscope.core.processes import alone, current
from headscope.core.progress import part_of
from headscope.core.serialise import SCHEMA
from headscope.data.examples import Examples, sample_texts, without_shared
from headscope.data.labels import read_alike
from headscope.pruning.curves import (
    Outcome,
    areas_of,
    run_curves,
    single_heads,
    swept,
    units_by_hand,
)
from headscope.pruning.keep import choose_version, keep
from headscope.pruning.max_drop import find_most, unseen_examples
from headscope.pruning.measure import Pruner
from headscope.pruning.options import MANUAL, PruneOptions, Repair, needs
from headscope.pruning.ranking import Ranking
from headscope.pruning.result import Area, AreaGap, DataInfo, PruneResult, StackResult
from headscope.pruning.surgeon import can_refit
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.tasks.base import Task
from headscope.tasks.calibration import chosen_stack, open_calibration, pick
from headscope.tasks.making import make_task, read_examples
from headscope.tasks.units import units_of


class Sources(NamedTuple):
    """Examples to choose on and examples to measure on, read but not yet tokenised."""

    data: Examples  # to measure on
    calibration: Examples | None  # to choose on; None where nothing is chosen
    calibration_task: str  # ``fidelity`` where the calibration file is plain text
    warnings: tuple[str, ...] = ()
    dropped: int = 0  # Calibration examples that shared a sentence with the data


def open_sources(
    task: str,
    data: str | Path | Examples | None,
    calibration: str | Path | Examples | None,
    *,
    limit: int | None,
    calibration_limit: int,
    seed: int,
    needs_calibration: bool = True,
    needs_labels: tuple[str, ...] = (),
    tested_unseen: bool = False,
) -> Sources:
    """Read both files and check that they can serve; without any, each is half of the sample.

    ``needs_labels`` names the methods that need labels to choose heads; ``tested_unseen`` says that
    what is measured leaves out every example with a sentence that heads were chosen on.
    """
    if data is None and calibration is None and task in ("fidelity", "mlm"):
        sample = sample_texts()
        texts = list(dict.fromkeys(sample.first))
        order = random.Random(seed).sample(range(len(texts)), len(texts))
        evaluation, other = (
            dataclasses.replace(
                sample, name=f"{sample.name}, {which}", first=tuple(texts[i] for i in sorted(lines))
            )
            for which, lines in (
                ("one half", order[: len(texts) // 2]),
                ("the other half", order[len(texts) // 2 :]),
            )
        )
        evaluation = read_examples(task, evaluation, limit, seed)
        chosen = pick(other, calibration_limit, task, seed) if needs_calibration else None
        return Sources(evaluation, chosen, task)
    evaluation = read_examples(task, data, limit, seed)
    if not needs_calibration:
        return Sources(evaluation, None, task)
    other, other_task = open_calibration(task, calibration, needs_labels)
    if other_task == task:
        evaluation, other = read_alike(evaluation, other)
    unshared = without_shared(other, evaluation)
    warnings: tuple[str, ...] = ()
    shared = (
        f"{unshared.shared:,} of the {unshared.sentences:,} different sentences that the values "
        f"are measured on are in {other.name} too"
    )
    if unshared.same:
        extent = "so heads are chosen on what they are measured on, and the values are too good"
        if tested_unseen:
            extent = "the tests leave out every example with a sentence that heads were chosen on"
        warnings = (
            f"{shared}, and without them less than two examples are left to choose on: {extent}; "
            "better give calibration data with other sentences.",
        )
    elif unshared.shared:
        warnings = (
            f"{shared}; its {unshared.dropped:,} examples with such a sentence are left out, and "
            f"heads are chosen among the other {len(unshared.examples):,}.",
        )
    chosen = pick(unshared.examples, calibration_limit, other_task, seed)
    return Sources(evaluation, chosen, other_task, warnings, unshared.dropped)


def run(model: Model, options: PruneOptions) -> PruneResult:
    """Choose attention heads to remove, and measure what the model is worth without them."""
    task = options.task
    seed = options.seed
    tell = options.tell
    save = options.save
    methods = options.scored
    repairs = options.repair_kinds
    normalise = options.normalise
    by_hand = options.manual
    max_drop = options.max_drop
    shares = options.shares
    random = "random" in options.method_names
    labels = options.labels
    keep_roles = options.keep_roles or ()

    # What can be refused is refused before anything is measured.
    if save is not None:
        with trial_folder(save):
            pass  # it can be made, so a long run will not end without it
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
    if not (by_hand or (options.methods and options.repairs) or can_refit(loaded)):
        methods = methods if options.methods else ("fisher",)
        if not options.repairs:
            repairs = (*repairs[:-1], Repair.scale)
        warnings.append(
            f"surgeon cannot refit the output maps of {loaded.family}, which read more than heads; "
            "fisher takes its place as method, scale as repair."
        )
    if options.heads is not None:
        units_by_hand(loaded, units_of(loaded), options.heads, {}, ())  # refuses slips
    if save is not None:
        check_saves(loaded)
        if not by_hand and max_drop is None:
            n = len(units_of(loaded))
            count = int(shares[-1] * n + 0.5)
            if count in (0, n):
                what = "large that no head is left; give a smaller"
                what = what if count else "small that no head is removed; give a larger"
                raise InputError(f"The fraction is so {what} one.")
    evaluation_of = partial(make_task, task, sources.data, seed=seed, limit=options.limit)
    evaluation = evaluation_of(loaded)
    calibration = None
    if sources.calibration is not None:  # with other masks: both may hold the same text
        limit = max(2, options.calibration_limit // 2)
        kind = sources.calibration_task
        calibration = make_task(kind, sources.calibration, loaded, seed=seed + 1, limit=limit)
    examples = None if max_drop is None else unseen_examples(evaluation, calibration)
    validation = require_valid(loaded, options.validate)
    # The built-in sample says nothing of a model that reads another language, as translators do.
    if classified is None and options.roles and task != "seq2seq":
        tell("finding the roles of heads", 0, 1)
        classified = classify(loaded, validate=False, seed=seed)
    roles = KnownRoles({}) if classified is None else find_roles(loaded, classified)
    of_calibration = () if calibration is None else calibration.data.notes
    warnings += dict.fromkeys((*evaluation.notes, *of_calibration, *roles.warnings))

    # Remove and measure.
    prepare = partial(Pruner, shares=shares, draws=options.draws, labels=labels, seed=seed)
    pruner = prepare(loaded, evaluation, calibration, roles.by_place, tell=tell)

    def whole_curves(pruner: Pruner) -> Outcome:
        rankings = pruner.rankings(methods, normalise)
        return run_curves(pruner, rankings, repairs, pruner.counts, random=random)

    if max_drop is not None and examples is not None:
        outcome = find_most(
            pruner, methods, repairs, max_drop, examples, normalise=normalise, random=random
        )
    elif by_hand:
        removed = units_by_hand(loaded, pruner.units, options.heads, roles.by_place, keep_roles)
        named = Ranking(pruner.units.gates(removed))  # what is named goes first
        beside = bool(keep_roles)
        outcome = run_curves(pruner, {MANUAL: named}, repairs, [len(removed)], random=beside)
    else:
        outcome = whole_curves(pruner)
    pruner = outcome.pruner
    ablation, kept_alone = single_heads(pruner) if options.tables else ((), ())
    if (why := evaluation.degenerate(pruner.full)) is not None:
        warnings.append(
            f"The unpruned model {why}: what it loses with its heads says nothing about them, and "
            "no value here means anything."
        )
    warnings += evaluation.doubts(pruner.full)
    stacks = list[StackResult]()
    areas = tuple[Area, ...]()
    gaps = tuple[AreaGap, ...]()
    if len(loaded.stacks) > 1 and not by_hand and max_drop is None:
        of_stacks = {}
        for stack in loaded.stacks:
            view = loaded.only(stack)
            row_of = {(site.stack, site.layer): site.row for site in view.sites}
            of_stack = {
                (row_of[site.stack, site.layer], head): known
                for (row, head), known in roles.by_place.items()
                if (site := loaded.sites[row]).stack == stack
            }
            of_one = prepare(view, evaluation, calibration, of_stack, tell=part_of(stack, tell))
            one = whole_curves(of_one)
            stacks.append(StackResult(stack, one.pruner.n_heads, one.curves, one.scores))
            of_stacks[stack] = swept(one.pruner, one.curves)
        areas, gaps = areas_of(of_stacks)

    def describe(data: Task, labels: bool | None, dropped: int = 0) -> DataInfo:
        read = data.data
        counts = (data.n_examples, data.skipped)
        return DataInfo(read.name, read.sha256, data.name, *counts, labels, read.drawn, dropped)

    by_labels = {"ablation", *needs(methods, "labels"), *(("fisher", "gates") if labels else ())}
    use_labels = not by_labels.isdisjoint(methods)
    result = PruneResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=seed, data=evaluation.data),
        validation=validation,
        task=evaluation.name,
        metric=evaluation.metric,
        higher_is_better=evaluation.higher_is_better,
        baseline=pruner.baseline(),
        data=describe(evaluation, None),
        calibration=describe(calibration, use_labels and calibration.has_labels, sources.dropped)
        if calibration
        else None,
        n_heads=pruner.n_heads,
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
            version, chosen = choose_version(outcome.versions, loaded, calibration or evaluation)
            result = keep(version, chosen, result, pruner, evaluation_of, Path(save))
    return result
