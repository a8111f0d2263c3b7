"""``headscope insights``: what one model says to the claims of the source articles."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headscope.data.corpus import as_corpus
from headscope.errors import UnsupportedModelError
from headscope.models.certificate import validate_model
from headscope.models.loading import LoadedModel
from headscope.pipeline.insights.kept_roles import DRAWS, measure_kept_roles
from headscope.pipeline.opening import open_model
from headscope.pipeline.provenance import provenance
from headscope.pipeline.sections.runner import Progress, Runner
from headscope.pipeline.validate import require_valid
from headscope.results import SCHEMA, InsightsResult, KeptRoles, ValidationSummary
from headscope.verdicts.insights.finding import Evidence
from headscope.verdicts.insights.scoreboard import scoreboard
from headscope.verdicts.insights.thresholds import InsightThresholds

__all__ = ["NEEDED", "conclude", "insights"]

#: The sections that decide the claims.
NEEDED = ("classify", "rank", "spectrum", "depth")


def insights(
    model: str | Path | LoadedModel | Any,
    *,
    thresholds: InsightThresholds | None = None,
    task: str = "fidelity",
    data: str | Path | None = None,
    draws: int = DRAWS,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    validate: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    command: str = "headscope.insights",
    **options: Any,
) -> InsightsResult:
    """Hold the claims of the source articles against one model.

    Parameters
    ----------
    model : str, path, LoadedModel
        ``demo``, a folder, a hub id, or what :func:`headscope.load` returned (with
        ``task_head="auto"`` for tasks that need the model's head).
    thresholds : InsightThresholds, optional
    task : str
        What the model is measured by while only its labelled heads are kept.
    data : path, optional
        What the task is measured on; half of the built-in sample by default.
    draws : int
        Random sets of heads, 20 or more.
    settings : mapping, optional
        Arguments of classify, rank, spectrum and depth, by command.
    validate : bool
        Refuse a model on which our attention is not the model's; recorded if False.
    seed : int
    progress : callable, optional
        Called as ``progress(what, done, total)``.
    command : str
        Recorded in the result.
    **options
        ``dtype``, ``device``, ``revision``, ``allow_pickle``, as :func:`headscope.load` takes them.

    Returns
    -------
    InsightsResult

    Raises
    ------
    InputError
        For a model, file or option that cannot be used.
    ValidationFailedError
        If our attention does not equal the model's.

    Examples
    --------
    >>> import headscope
    >>> quick = {"classify": {"limit": 64, "control": False}, "rank": {"limit": 16},
    ...          "spectrum": {"sequences": 8, "control": False},
    ...          "depth": {"sequences": 4, "control": False}}
    >>> found = headscope.insights("demo", settings=quick)
    >>> found[0].verdict, found[6].verdict
    ('holds', 'not measured yet')
    """
    loaded = open_model(model, **({"task_head": "auto", **options} if _is_name(model) else options))
    require_valid(loaded, validate)
    run = Runner(loaded, settings or {}, seed, command, check=validate, progress=progress)
    for name in NEEDED:
        run.section(name)
    return conclude(run, thresholds=thresholds, task=task, data=data, draws=draws)


def conclude(
    run: Runner,
    *,
    thresholds: InsightThresholds | None = None,
    task: str = "fidelity",
    data: str | Path | None = None,
    draws: int = DRAWS,
) -> InsightsResult:
    """Give the verdicts that the sections of a run allow."""
    thresholds = thresholds or InsightThresholds()
    kept = _kept(run, task, data, draws)
    found = scoreboard(thresholds, Evidence(**run.found, kept=kept))
    return InsightsResult(
        schema=SCHEMA,
        provenance=provenance(run.loaded, command=run.command, seed=run.seed),
        validation=_summary(run),
        insights=found,
        thresholds=dataclasses.asdict(thresholds),
        kept_roles=kept,
    )


def _kept(run: Runner, task: str, data: str | Path | None, draws: int) -> KeptRoles | None:
    if "classify" not in run.found:
        return None
    try:
        return measure_kept_roles(
            run.loaded,
            run.found["classify"],
            task=task,
            data=data,
            draws=draws,
            seed=run.seed,
            corpus=as_corpus(run.arguments("classify").get("corpus")),
            progress=run.tell("insights"),
        )
    except UnsupportedModelError:
        return None


def _summary(run: Runner) -> ValidationSummary:
    if not run.check:
        return ValidationSummary(passed=None)
    return ValidationSummary.of(validate_model(run.loaded))


def _is_name(model: object) -> bool:
    return isinstance(model, str | Path)
