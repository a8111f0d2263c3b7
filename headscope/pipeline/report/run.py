"""``headscope report``: every command on one model, loaded and validated once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headscope.errors import InputError
from headscope.models.certificate import validate_model
from headscope.pipeline.opening import Model, need_tokenizer, open_for_tasks
from headscope.pipeline.provenance import provenance
from headscope.pipeline.report.samples import sample_patterns
from headscope.pipeline.sections.previous import Previous
from headscope.pipeline.sections.runner import Run, run_sections
from headscope.reports.options import ReportOptions
from headscope.results import SCHEMA, SECTIONS, ReportResult
from headscope.results.measured import warnings_of
from headscope.verdicts.insights.thresholds import InsightThresholds


def run(model: Model, options: ReportOptions) -> ReportResult:
    """Run every section, the scoreboard last, on one model."""
    wanted = choose_sections(options.only, options.skip)
    loaded = open_for_tasks(model, **options.loading)
    need_tokenizer(loaded, "report")
    if {"prune", "insights"} & set(wanted):
        loaded.pooling.check()  # before everything else is measured
    before = Previous() if options.previous is None else Previous.read(Path(options.previous))
    own = {
        "thresholds": options.thresholds or InsightThresholds(),
        "task": options.task,
        "data": None if options.data is None else Path(options.data),
        "draws": options.draws,
    }
    tables = dict(options.settings or {})
    tables["insights"] = {**own, **tables.get("insights", {})}
    shared = Run(
        loaded, tables, options.seed, options.command, options.validate, options.tell, before
    )
    usable = not options.validate or validate_model(loaded).passed
    found = run_sections([name for name in wanted if usable or name == "validate"], shared)
    failed = "validation failed, so nothing is reported on this model"
    return ReportResult(
        schema=SCHEMA,
        provenance=provenance(
            loaded,
            command=options.command,
            seed=options.seed,
            warnings=warnings_of(*found.sections.sections.values()),
        ),
        settings={name: shared.changed(name) for name in wanted if name != "insights"},
        left_out={
            **found.left_out,
            **({} if usable else {name: failed for name in wanted if name != "validate"}),
        },
        keys=found.keys,
        samples=sample_patterns(loaded) if usable else (),
        reused=found.reused,
        **found.sections.sections,
    )


def choose_sections(only: Sequence[str], skip: Sequence[str]) -> tuple[str, ...]:
    """Return the sections of a run, in their order.

    Raises
    ------
    InputError
        For a name that is none, or if nothing is left.
    """
    for name in (*only, *skip):
        if name not in SECTIONS:
            raise InputError(f"There is no section {name!r}; choose from {', '.join(SECTIONS)}.")
    chosen = tuple(name for name in SECTIONS if name in (only or SECTIONS) and name not in skip)
    if not chosen:
        raise InputError("No section is left to run; give fewer to skip.")
    return chosen
