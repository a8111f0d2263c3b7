"""``headscope insights``: eleven claims of the literature, tested on a model."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from headscope.core.errors import InputError, UnsupportedModelError
from headscope.data.corpus import as_corpus
from headscope.pipeline.insights.expected import Whole, announcement, expected_seconds
from headscope.pipeline.insights.kept_roles import measure_kept_roles, prune_stacks, with_sources
from headscope.pipeline.report.sections import Run, check_settings, run_sections
from headscope.pipeline.validate import require_valid
from headscope.reports.options import InsightsOptions
from headscope.results.insights import InsightsResult
from headscope.results.measured import warnings_of
from headscope.results.sections import section_of
from headscope.results.serialise import SCHEMA
from headscope.session.opening import Model, open_for_tasks
from headscope.session.progress import Progress, part_of
from headscope.session.provenance import provenance
from headscope.verdicts.insights.finding import Evidence
from headscope.verdicts.insights.scoreboard import scoreboard
from headscope.verdicts.insights.thresholds import InsightThresholds


def run(model: Model, options: InsightsOptions) -> InsightsResult:
    """Hold the claims of the source articles against one model."""
    skip, sections, budget = options.skip, options.sections, options.budget
    task, data, limit, seed = options.task, options.data, options.limit, options.seed
    known = [name for name in section_of("insights").uses if name != "prune"]
    for name in skip:
        if name not in known:
            raise InputError(
                f"There is no section {name!r} to skip; insights runs {', '.join(known)}."
            )
    for name, table in (options.settings or {}).items():
        check_settings(name, table)
    started = time.monotonic()
    loaded = open_for_tasks(model, **options.loading)
    loaded.pooling.check()
    validation = require_valid(loaded, options.validate)
    thresholds = options.thresholds or InsightThresholds()
    settings: Mapping[str, Mapping[str, Any]] = options.settings or {}
    tell: Progress = options.tell
    translating = loaded.encoder_decoder and task == "seq2seq"
    last: Run | None = None
    whole: Whole | None = None
    if sections is None:
        if translating:
            settings = with_sources(settings, data)
        names = [name for name in section_of("insights").uses if name not in ("prune", *skip)]
        first = [name for name in names if name != "transfer"]
        parts = [*first, *(["insights"] if "classify" in first else [])]
        parts += ["transfer"] if "transfer" in names else []
        expected = expected_seconds(loaded, parts, budget)
        if options.announce is not None:
            options.announce(announcement(expected, budget))
        tell = whole = Whole(expected, budget - (time.monotonic() - started), tell)
        shared = Run(loaded, settings, seed, options.command, check=options.validate, progress=tell)
        sections = run_sections(first, shared).sections
        last = shared if "transfer" in names else None
        tell = part_of("insights", tell)
    if translating and sections.prune is None:
        sections = dataclasses.replace(
            sections, prune=prune_stacks(loaded, data, limit, seed, tell)
        )
    kept = None
    if sections.classify is not None:
        with contextlib.suppress(UnsupportedModelError):
            kept = measure_kept_roles(
                loaded.only("encoder" if loaded.encoder_decoder else "all"),
                sections.classify,
                task=task,
                data=data,
                draws=options.draws,
                limit=limit,
                seed=seed,
                corpus=as_corpus(settings.get("classify", {}).get("corpus")),
                progress=tell,
            )
    if last is not None:
        left = max(budget - (time.monotonic() - started), 1.0)
        table = settings.get("transfer", {})
        limits = {**settings, "transfer": {**table, "budget": min(left, table.get("budget", left))}}
        tuned = run_sections(["transfer"], dataclasses.replace(last, settings=limits)).sections
        sections = dataclasses.replace(sections, transfer=tuned.transfer)
    if whole is not None:
        whole.finish()
    evidence = Evidence(**sections.sections, kept=kept, stacks=loaded.stacks)
    found = scoreboard(thresholds, evidence)
    return InsightsResult(
        schema=SCHEMA,
        provenance=provenance(
            loaded,
            command=options.command,
            seed=seed,
            warnings=warnings_of(*sections.sections.values()),
        ),
        validation=validation,
        insights=found,
        thresholds=dataclasses.asdict(thresholds),
        kept_roles=kept,
    )
