"""``headscope prune``: choose heads, remove them, measure again, keep a model that loads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headscope.errors import InputError
from headscope.models.loading import LoadedModel
from headscope.pipeline.opening import open_model
from headscope.pipeline.provenance import provenance
from headscope.pipeline.pruning.calibrating import Progress
from headscope.pipeline.pruning.data import CALIBRATION_LIMIT, Sources, open_sources
from headscope.pipeline.pruning.keeping import Keep
from headscope.pipeline.pruning.options import PruneOptions, make_options
from headscope.pipeline.pruning.roles import find_roles, read_classification
from headscope.pipeline.pruning.run import Run
from headscope.pipeline.tasks import Task
from headscope.pipeline.validate import require_valid
from headscope.results import SCHEMA
from headscope.results.prune import DataInfo, PruneResult

__all__ = ["prune"]


def prune(
    model: str | Path | LoadedModel | Any,
    *,
    task: str = "fidelity",
    data: str | Path | None = None,
    calibration: str | Path | None = None,
    methods: Sequence[str] | None = None,
    repairs: Sequence[str] | None = None,
    step: float = 0.1,
    fractions: Sequence[float] | None = None,
    heads: str | None = None,
    keep_roles: Sequence[str] | None = None,
    draws: int = 5,
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
        ``head="auto"`` for tasks that need the model's head).
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
        Folders for the pruned model: compact, or in its old shape with zeros.
    benchmark : bool
        Time the full model against the pruned one.
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

    Examples
    --------
    >>> import headscope
    >>> found = headscope.prune("demo", heads="L0H1,L3H*", calibration_limit=64, ablation=False)
    >>> found.curves[0].method, len(found.curves[0].points[0].heads_removed)
    ('manual', 13)
    """
    wanted = make_options(
        methods=methods, repairs=repairs, step=step, fractions=fractions, heads=heads,
        keep_roles=keep_roles, draws=draws, normalise=normalise, labels=labels,
        ablation=data is None if ablation is None and heads is None and not keep_roles
        else bool(ablation),
        seed=seed,
    )  # fmt: skip
    keep = Keep.checked(save, save_dense, benchmark, wanted)
    known = read_classification(roles) if isinstance(roles, str | Path) else None
    sources = open_sources(
        task, data, calibration, needs_calibration=wanted.needs_calibration,
        needs_labels=wanted.needing("labels"), limit=limit, calibration_limit=calibration_limit,
        seed=seed,
    )  # fmt: skip
    loaded = open_model(model, **({"head": "auto", **options} if _is_name(model) else options))
    if loaded.tokenizer is None:
        raise InputError("prune needs the model's tokenizer; load it with headscope.load.")
    evaluation, choosing = sources.tasks(loaded, seed)
    validation = require_valid(loaded, validate)
    found = find_roles(loaded, known, seed=seed, wanted=roles is not False)
    run = Run(loaded, evaluation, choosing, found, wanted, progress)
    outcome = run.all()
    result = PruneResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=command, seed=seed, data=evaluation.data),
        validation=validation,
        task=evaluation.name,
        metric=evaluation.metric,
        higher_is_better=evaluation.higher_is_better,
        baseline=run.measure.baseline(),
        data=_describe(evaluation, None),
        calibration=None if choosing is None else _describe(choosing, _labels_used(wanted, run)),
        n_heads=sum(site.n_heads for site in loaded.sites),
        shared_layers=run.units.shared,
        curves=outcome.curves,
        scores=outcome.scores,
        ablation=outcome.ablation,
        kept_alone=outcome.kept_alone,
        roles=found.heads,
        roles_from=found.corpus,
        warnings=(*sources.warnings, *_overlap(sources), *found.warnings, *outcome.warnings),
    )
    return keep.finish(result, run, outcome)


def _is_name(model: object) -> bool:
    return isinstance(model, str | Path)


def _describe(task: Task, labels: bool | None) -> DataInfo:
    return DataInfo(
        task.data["name"], task.data["sha256"], task.name, task.n_examples, task.skipped, labels
    )


def _labels_used(options: PruneOptions, run: Run) -> bool:
    return bool(options.needing("labels")) or (
        options.labels and run.given is not None and run.given.calibration.has_labels
    )


def _overlap(sources: Sources) -> tuple[str, ...]:
    """Warn where a good part of the evaluation texts was seen while choosing."""
    if sources.calibration is None or sources.warnings:
        return ()
    seen = set(sources.calibration.texts)
    texts = sources.data.texts
    share = sum(text in seen for text in texts) / max(len(texts), 1)
    if share <= 0.05:
        return ()
    return (f"{share:.0%} of the evaluation texts are also calibration texts.",)
