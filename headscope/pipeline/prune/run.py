"""``headscope prune``: choose heads, remove them, measure again, keep a model that loads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headscope.errors import InputError
from headscope.models.loading import LoadedModel
from headscope.pipeline.opening import open_model
from headscope.pipeline.provenance import provenance
from headscope.pipeline.prune.calibrating import Progress
from headscope.pipeline.prune.curves import Inputs, Outcome, run
from headscope.pipeline.prune.keeping import choose, save_measured, time_kept
from headscope.pipeline.prune.options import DRAWS, STEP, PruneOptions
from headscope.pipeline.prune.roles import find_roles, read_classification
from headscope.pipeline.prune.sources import CALIBRATION_LIMIT, open_sources
from headscope.pipeline.tasks import Task
from headscope.pipeline.validate import require_valid
from headscope.results import SCHEMA
from headscope.results.prune import DataInfo, PruneResult
from headscope.results.validate import ValidationSummary

__all__ = ["prune", "prune_with"]


def prune(
    model: str | Path | LoadedModel | Any,
    *,
    task: str = "fidelity",
    data: str | Path | None = None,
    calibration: str | Path | None = None,
    methods: Sequence[str] | None = None,
    repairs: Sequence[str] | None = None,
    step: float = STEP,
    fractions: Sequence[float] | None = None,
    heads: str | None = None,
    keep_roles: Sequence[str] | None = None,
    draws: int = DRAWS,
    normalise: bool | None = None,
    labels: bool = False,
    ablation: bool | None = None,
    roles: bool | str | Path = True,
    save: str | Path | None = None,
    save_dense: str | Path | None = None,
    benchmark: bool = False,
    limit: int | None = None,
    calibration_limit: int = CALIBRATION_LIMIT,
    validate: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    command: str = "headscope.prune",
    **options: Any,
) -> PruneResult:
    """Choose attention heads to remove, and measure what the model is worth without them.

    Parameters
    ----------
    model : str, path, LoadedModel
        ``demo``, a folder, a hub id, or what :func:`headscope.load` returned (with
        ``task_head="auto"`` for tasks that need the model's head).
    task : str
        ``fidelity``, ``mlm``, ``classification`` or ``similarity``.
    data : path, optional
        What the curves are measured on; half of the built-in sample if missing.
    calibration : path, optional
        What heads are chosen on; the (other half of the) built-in sample if missing.
    methods : sequence of str, optional
        Names of :data:`headscope.pruning.methods.METHODS`; by default fisher-joint and random.
    repairs : sequence of str, optional
        ``none``, ``scale``, ``refit``; by default none and scale, for heads by hand none.
    step : float
        Between the fractions of a curve.
    fractions : sequence of float, optional
        Instead of a whole curve.
    heads : str, optional
        Heads to remove by hand, such as ``L0H1,L3H*``.
    keep_roles : sequence of str, optional
        Remove all heads that have none of these roles.
    draws : int
        Random sets at each fraction, at least 5.
    normalise : bool, optional
        Per-layer l2 normalisation; by default as each method's source has it.
    labels : bool
        Let fisher, gates and topk use the calibration data's labels.
    ablation : bool, optional
        Make the two tables of single heads; by default for the built-in sample only, since they
        take a pass over the data for every head.
    roles : bool or path
        A result of ``headscope classify``; True classifies on the built-in sample.
    save, save_dense : path, optional
        Folders for the pruned model: compact, or in its old shape with zeros. Needs one fraction,
        or heads by hand. Of several methods or repairs the one that is best on the calibration data
        is kept; random heads never are. What was written is loaded again and measured.
    benchmark : bool
        Time the full model against the pruned one, which is the one that would be saved.
    limit : int, optional
        Evaluation examples.
    calibration_limit : int
        Calibration sentences, drawn at random.
    validate : bool
    seed : int
    progress : callable, optional
        Called as ``progress(what, done, total)``.
    command : str
        Recorded in the result.
    **options
        ``dtype``, ``device``, ``revision``, ``allow_pickle``, as :func:`headscope.load` takes them.

    Returns
    -------
    PruneResult

    Raises
    ------
    InputError
        For a model, file or option that cannot be used.
    ValidationFailedError
        If our attention does not equal the model's.
    ArtefactError
        If a saved model, loaded again, is not worth what the curve says; nothing is kept then.

    Examples
    --------
    >>> import headscope
    >>> found = headscope.prune("demo", heads="L0H1,L3H*", calibration_limit=64, ablation=False)
    >>> found.curves[0].method, len(found.curves[0].points[0].heads_removed)
    ('manual', 13)
    """
    choices = PruneOptions(
        task=task,
        data=data,
        calibration=calibration,
        methods=methods,
        repairs=repairs,
        step=step,
        fractions=fractions,
        heads=heads,
        keep_roles=keep_roles,
        draws=draws,
        normalise=normalise,
        labels=labels,
        ablation=ablation,
        roles=roles,
        save=save,
        save_dense=save_dense,
        benchmark=benchmark,
        limit=limit,
        calibration_limit=calibration_limit,
        validate=validate,
        seed=seed,
    )
    return prune_with(model, choices, progress=progress, command=command, **options)


def prune_with(
    model: str | Path | LoadedModel | Any,
    choices: PruneOptions,
    *,
    progress: Progress | None = None,
    command: str = "headscope.prune",
    **options: Any,
) -> PruneResult:
    """Do what :func:`prune` does, with all choices as one value.

    Parameters
    ----------
    model, progress, command, **options
        As :func:`prune` takes them.
    choices : PruneOptions
    """
    inputs, validation = _open(model, choices, options)
    outcome = run(inputs, choices, progress)
    result = _result(inputs, choices, outcome, validation, command)
    return _kept(result, inputs, choices, outcome, progress) if choices.keeps else result


def _open(
    model: str | Path | LoadedModel | Any, choices: PruneOptions, options: dict[str, Any]
) -> tuple[Inputs, ValidationSummary]:
    """Read the data, then open and validate the model, then find out what its heads do."""
    roles = choices.roles
    known = read_classification(roles) if isinstance(roles, str | Path) else None
    sources = open_sources(
        choices.task,
        choices.data,
        choices.calibration,
        needs_calibration=choices.needs_calibration,
        needs_labels=choices.needing("labels"),
        limit=choices.limit,
        calibration_limit=choices.calibration_limit,
        seed=choices.seed,
    )
    loaded = open_model(model, **({"task_head": "auto", **options} if _is_name(model) else options))
    if loaded.tokenizer is None:
        raise InputError("prune needs the model's tokenizer; load it with headscope.load.")
    evaluation, calibration = sources.tasks(loaded, choices.seed)
    validation = require_valid(loaded, choices.validate)
    found = find_roles(loaded, known, seed=choices.seed, wanted=roles is not False)
    return Inputs(loaded, sources, evaluation, calibration, found), validation


def _result(
    inputs: Inputs,
    choices: PruneOptions,
    outcome: Outcome,
    validation: ValidationSummary,
    command: str,
) -> PruneResult:
    loaded, task, chosen = inputs.loaded, inputs.evaluation, inputs.calibration
    return PruneResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=command, seed=choices.seed, data=task.data),
        validation=validation,
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
        warnings=(*inputs.sources.warnings, *inputs.roles.warnings, *_meaningless(outcome)),
    )


def _kept(
    result: PruneResult,
    inputs: Inputs,
    choices: PruneOptions,
    outcome: Outcome,
    progress: Progress | None,
) -> PruneResult:
    """Save and time the one model that is kept; both are of the same."""
    version, kept = choose(outcome.versions, inputs)
    saved = save_measured(version, inputs, choices, result.provenance)
    speed = time_kept(version, inputs, choices.seed, progress) if choices.benchmark else None
    return dataclasses.replace(result, kept=kept, saved=saved, speed=speed)


def _is_name(model: object) -> bool:
    return isinstance(model, str | Path)


def _describe(task: Task, labels: bool | None) -> DataInfo:
    return DataInfo(
        task.data["name"], task.data["sha256"], task.name, task.n_examples, task.skipped, labels
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
