"""``headscope insights``: eleven claims of the literature, tested on a model."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headscope.core.errors import InputError, UnsupportedModelError
from headscope.data.corpus import as_corpus
from headscope.pipeline.insights.expected import Whole, announcement, expected_seconds
from headscope.pipeline.insights.kept_roles import (
    DRAWS,
    check_draws,
    measure_kept_roles,
    prune_stacks,
    with_sources,
)
from headscope.pipeline.report.sections import Run, check_settings, run_sections
from headscope.pipeline.validate import require_valid
from headscope.results.insights import InsightsResult
from headscope.results.measured import warnings_of
from headscope.results.sections import Sections, section_of
from headscope.results.serialise import SCHEMA
from headscope.session.opening import Model, open_for_tasks, public_function
from headscope.session.progress import Progress, part_of, silent
from headscope.session.provenance import provenance
from headscope.verdicts.insights.finding import Evidence
from headscope.verdicts.insights.scoreboard import scoreboard
from headscope.verdicts.insights.thresholds import InsightThresholds

#: Seconds of the whole command: what is left of them when the rest is done is transfer's.
BUDGET = 300.0


@public_function
def insights(
    model: Model,
    *,
    thresholds: InsightThresholds | None = None,
    task: str = "fidelity",
    data: str | Path | None = None,
    draws: int = DRAWS,
    limit: int | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    skip: Sequence[str] = (),
    sections: Sections | None = None,
    budget: float = BUDGET,
    validate: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    announce: Callable[[str], None] | None = None,
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
        What decides the claims; the documented ones by default.
    task : str
        What the model is measured by while only its labelled heads are kept, and, where it is
        ``seq2seq``, while the stacks of an encoder-decoder model lose their heads.
    data : path, optional
        What the task is measured on; half of the built-in sample by default. Of pairs of source and
        target, the other sections read every third source.
    draws : int
        Random sets of heads, 39 or more.
    limit : int, optional
        Only the first examples that the task is measured on; all by default. The other sections
        have limits of their own in ``settings``.
    settings : mapping, optional
        Arguments of the sections that are measured, by command.
    skip : sequence of str
        Sections not to run: a claim that needs one of them is not measured.
    sections : Sections, optional
        What has been measured already with these settings. A claim whose section it lacks is not
        measured; without it all of them are run but those of ``skip``.
    budget : float
        Seconds of the whole run. Transfer comes last and gets what the others leave; they are
        never cut short. Nothing is run that long where ``sections`` are given.
    seed : int
        Of the sections and of the random sets of heads.
    announce : callable, optional
        Told in a sentence, before anything is measured, what is run and about how long it takes.
    validate, progress, command, **options
        As :func:`headscope.classify` takes them.

    Returns
    -------
    InsightsResult
        One verdict for each claim, with what was measured and the rule that decided.

    Raises
    ------
    InputError
        For a model, file or option that cannot be used.
    ValidationFailedError
        If our attention does not equal the model's.

    Examples
    --------
    >>> import headscope
    >>> from headscope.results import Sections
    >>> ranks = Sections(rank=headscope.rank("demo"))
    >>> found = headscope.insights("demo", sections=ranks)
    >>> found[3].verdict, found[4].verdict, found[5].verdict
    ('holds', 'not applicable', 'not measured yet')
    """
    known = [name for name in section_of("insights").uses if name != "prune"]
    for name in skip:
        if name not in known:
            raise InputError(
                f"There is no section {name!r} to skip; insights runs {', '.join(known)}."
            )
    check_draws(draws)
    for name, table in (settings or {}).items():
        check_settings(name, table)
    if not budget > 0:
        raise InputError(f"The budget is {budget:g} seconds; give more than 0.")
    started = time.monotonic()
    loaded = open_for_tasks(model, **options)
    loaded.pooling.check()
    validation = require_valid(loaded, validate)
    thresholds = thresholds or InsightThresholds()
    settings, tell = settings or {}, progress or silent
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
        if announce is not None:
            announce(announcement(expected, budget))
        tell = whole = Whole(expected, budget - (time.monotonic() - started), tell)
        run = Run(loaded, settings, seed, command, check=validate, progress=tell)
        sections = run_sections(first, run).sections
        last = run if "transfer" in names else None
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
                draws=draws,
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
            command=command,
            seed=seed,
            warnings=warnings_of(*sections.sections.values()),
        ),
        validation=validation,
        insights=found,
        thresholds=dataclasses.asdict(thresholds),
        kept_roles=kept,
    )
