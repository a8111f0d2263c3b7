"""``headscope prune``: choose heads, remove them, measure again, keep a model that loads."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from headscope.artefacts.onnx_graph import check_exportable, need_packages
from headscope.artefacts.saving import check_saves, check_target
from headscope.core.processes import alone, current
from headscope.data.examples import Examples
from headscope.models.pooling import chosen as chosen_pooling
from headscope.pipeline.classify import classify
from headscope.pipeline.validate import require_valid
from headscope.pruning.curves import Apart, Outcome, run_apart, run_curves, steps_of_runs
from headscope.pruning.keep import choose_version, failure, keep, rehearse
from headscope.pruning.max_drop import check_enough, find_most
from headscope.pruning.options import CALIBRATION_LIMIT, DRAWS, STEP, PruneOptions, needs
from headscope.pruning.resume import Findings
from headscope.pruning.setup import Inputs, open_sources
from headscope.pruning.steps import Steps, costs_of, keeping_steps, opening_steps, time_a_pass
from headscope.results.prune import DataInfo, PruneResult
from headscope.results.serialise import SCHEMA
from headscope.session.known_roles import (
    Classification,
    KnownRoles,
    find_roles,
    read_classification,
)
from headscope.session.opening import Model, need_tokenizer, open_for_tasks, public_function
from headscope.session.progress import Progress, silent
from headscope.session.provenance import provenance
from headscope.session.resume import check_resume
from headscope.tasks.base import Task
from headscope.tasks.calibration import chosen_stack
from headscope.tasks.units import units_of


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
        Names of :data:`headscope.pruning.options.METHODS`; by default fisher-joint and random.
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
    arguments = locals()
    choices = PruneOptions(**{field.name: arguments[field.name] for field in fields(PruneOptions)})
    return run(model, choices, progress=progress, command=command, **options)


def run(
    model: Model,
    options: PruneOptions,
    *,
    progress: Progress | None = None,
    command: str = "headscope.prune",
    **loading: Any,
) -> PruneResult:
    """Do what :func:`prune` does, with all options as one value."""
    steps = Steps(progress or silent)
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
