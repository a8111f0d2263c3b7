"""``headscope prune``: choose heads, remove them, measure again, keep a model that loads."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headscope.api import classify
from headscope.data.examples import Examples
from headscope.models.onnx.graph import check_exportable
from headscope.models.saving import check_saves
from headscope.pipeline.known_roles import (
    Classification,
    KnownRoles,
    find_roles,
    read_classification,
)
from headscope.pipeline.opening import Model, need_tokenizer, open_for_tasks, public_function
from headscope.pipeline.progress import Progress, silent
from headscope.pipeline.provenance import provenance
from headscope.pipeline.prune.curves import Outcome, run
from headscope.pipeline.prune.findings import open_findings
from headscope.pipeline.prune.keeping import choose, failure, keep, rehearse
from headscope.pipeline.prune.max_drop import find_most
from headscope.pipeline.prune.options import CALIBRATION_LIMIT, DRAWS, STEP, PruneOptions
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


@public_function
def prune(
    model: Model,
    *,
    task: str = "fidelity",
    data: str | Path | Examples | None = None,
    calibration: str | Path | Examples | None = None,
    stack: str | None = None,
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
    roles: bool | Classification = True,
    save: str | Path | None = None,
    save_dense: str | Path | None = None,
    benchmark: bool = False,
    max_drop: float | None = None,
    even: bool = False,
    standalone: bool = False,
    export: tuple[str, str | Path] | None = None,
    quantize: str | None = None,
    pooling: str | None = None,
    limit: int | None = None,
    calibration_limit: int = CALIBRATION_LIMIT,
    validate: bool = True,
    seed: int = 0,
    state: str | Path | None = None,
    resume: bool = False,
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
        ``fidelity``, ``mlm``, ``classification``, ``similarity`` or ``seq2seq``.
    data : path or Examples, optional
        What the curves are measured on; half of the built-in sample if missing.
    calibration : path or Examples, optional
        What heads are chosen on; the (other half of the) built-in sample if missing.
    stack : str, optional
        ``encoder``, ``decoder``, ``cross`` or ``all``: where heads may be removed. With ``all`` an
        encoder-decoder model is pruned as a whole, and each stack alone besides. By default every
        stack that the task runs.
    methods : sequence of str, optional
        Names of :data:`headscope.pruning.methods.METHODS`; by default fisher-joint and random.
    repairs : sequence of str, optional
        ``none``, ``scale``, ``mean``, ``refit``; by default none and scale, with
        ``max_drop`` also mean; for heads by hand none.
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
        Make the two tables of single heads; by default for the built-in sample only (and not with
        ``max_drop``), since they take a pass over the data for every head.
    roles : bool, path or ClassifyResult
        A result of ``headscope classify``; True classifies on the built-in sample.
    save, save_dense : path, optional
        Folders for the pruned model: compact, or in its old shape with zeros. Needs one fraction,
        or heads by hand. Of several methods or repairs the one that is best on the calibration data
        is kept; random heads never are. What was written is loaded again and measured.
    benchmark : bool
        Time the full model against the pruned one, which is the one that would be saved; with
        ``export`` also both as ONNX.
    max_drop : float, optional
        Instead of fractions: find a number of heads that is confirmed to cost at most this much of
        the metric, in its own unit, the bad end of the paired 95% interval included. It is chosen
        on one half of the evaluation data and confirmed on the other, which all values then speak
        of; there must be 60 examples or more.
    even : bool
        Remove the same number of heads in every layer, and say what that costs.
    standalone : bool
        Write a modelling file beside the weights of ``save``, so that transformers opens the folder
        with ``trust_remote_code=True`` where headscope is not installed.
    export : (str, path), optional
        ``("onnx", folder)``: the pruned model as one ONNX graph, compared with the model itself.
    quantize : str, optional
        ``int8``: weights of the exported graph as 8-bit integers, measured again.
    pooling : str, optional
        ``mean``, ``cls``, ``max`` or ``weighted``: how a text's states become one embedding; by
        default what the model's folder says, else the mean.
    limit : int, optional
        Evaluation examples.
    calibration_limit : int
        Calibration sentences, drawn at random.
    seed : int
        Of what is drawn at random: examples, masks, random heads and the bootstrap.
    state : path, optional
        File that the run saves what it has measured in, from time to time.
    resume : bool
        Go on from that file: repairs and passes over the evaluation data that it holds are not
        made again.
    validate, progress, command, **options
        As :func:`headscope.classify` takes them.

    Returns
    -------
    PruneResult
        Frozen raw values; ``.to_frame()`` gives pandas.

    Raises
    ------
    InputError
        For a model, file or option that cannot be used; or if no number of heads is confirmed to
        cost at most ``max_drop``.
    ValidationFailedError
        If our attention does not equal the model's.
    ArtefactError
        If a folder that was asked for could not be made, or holds another model than the measured
        one. Nothing of that folder is left; ``error.result`` is the result with all the rest.

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
        stack=stack,
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
        max_drop=max_drop,
        even=even,
        standalone=standalone,
        export=export,
        quantize=quantize,
        pooling=pooling,
        limit=limit,
        calibration_limit=calibration_limit,
        validate=validate,
        seed=seed,
        state=state,
        resume=resume,
    )
    return prune_with(model, choices, progress=progress, command=command, **options)


def prune_with(
    model: Model,
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
        What to do.
    """
    steps = Steps(progress or silent)
    inputs = _open(model, choices, options, steps)
    steps.begin()
    measured = run if choices.max_drop is None else find_most
    outcome = measured(inputs, choices, steps)
    apart = run_apart(inputs, choices, steps)
    result = _result(inputs, choices, outcome, apart, command)
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
