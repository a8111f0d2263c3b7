"""A run of ``insights``: measures what the claims need, and has each of them judged.

A claim needs the results of other commands, here called *sections*: ``run_sections`` measures them,
each with its own options (*settings*). Two things are measured for the claims alone: an
encoder-decoder's stacks pruned one by one, and the model with only its labelled heads, that is with
the heads to which ``classify`` gives one of the roles of claim 2 (:class:`KeptRoles`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from headscope import prune
from headscope.commands import COMMANDS
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.core.progress import Progress, progress_of_part
from headscope.core.serialise import SCHEMA, warnings_of
from headscope.data.corpus import as_corpus, as_plain
from headscope.data.examples import Examples
from headscope.models.run.loaded import LoadedModel
from headscope.pruning.result import PruneResult
from headscope.reports.claims.kept_roles import measure_kept_roles
from headscope.reports.claims.registry import claims, decide
from headscope.reports.claims.rule import Evidence
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.options import InsightsOptions
from headscope.reports.registry import Sections
from headscope.reports.result import InsightsResult, KeptRoles
from headscope.reports.sections import SectionRun, check_settings, run_sections, source_of
from headscope.session.opening import Model, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.tasks.making import read_examples

#: By section that reads a text: its option that names the text.
_TEXT_OPTIONS = {
    "classify": "corpus",
    "flow": "corpus",
    "rank": "text",
    "spectrum": "text",
    "depth": "text",
    "linear": "text",
    "symmetric": "text",
}

#: Options by section: {"spectrum": {"length": 64}}.
Settings = Mapping[str, Mapping[str, Any]]


def run(model: Model, options: InsightsOptions) -> InsightsResult:
    """Test the claims of the literature on one model."""
    started = time.monotonic()
    settings: Settings = options.settings or {}
    for name, table in settings.items():
        check_settings(name, table)

    # Open the model, and prove that our attention equals its own.
    loaded = open_for_tasks(model, task=options.task, **options.loading)
    loaded.pooling.check()
    validation = require_valid(loaded, options.validate)

    # Measure the sections, unless they are given; all but fine-tuning, which comes last.
    tell: Progress = options.tell
    sections = options.sections
    left_out: dict[str, str] = {}  # why a section is left out, by its name
    tuning: SectionRun | None = None  # how sections are run, where fine-tuning is to be measured
    pairs = _pairs_of(loaded, options)
    if sections is None:
        if pairs is not None:
            settings = _with_sources(settings, pairs)
        section_run = SectionRun(
            loaded=loaded,
            settings=settings,
            seed=options.seed,
            command=options.command,
            check=options.validate,
            progress=tell,
            source=source_of(model, loaded, options),
        )
        skipped = ("prune", *options.skip)  # only a translator is pruned, below
        names = [name for name in COMMANDS["insights"].uses if name not in skipped]
        if "transfer" in names:
            names.remove("transfer")
            tuning = section_run
        measured = run_sections(names, section_run)
        sections = measured.results
        left_out |= measured.left_out
        tell = progress_of_part("insights", tell)

    # Prune a translator's stacks one by one, and measure the model with only its labelled heads.
    if pairs is not None and sections.prune is None:
        pruned = _prune_each_stack(loaded, pairs, options, tell)
        sections = dataclasses.replace(sections, prune=pruned)
    kept_roles = _kept_roles(loaded, sections, settings, options, tell)

    # Fine-tune in the seconds that remain.
    if tuning is not None:
        remaining = options.budget - (time.monotonic() - started)
        tuned = run_sections(["transfer"], _within_budget(tuning, remaining))
        sections = dataclasses.replace(sections, transfer=tuned.results.transfer)
        left_out |= tuned.left_out

    # Judge every claim.
    evidence = Evidence(**sections.sections, kept_roles=kept_roles, stacks=loaded.stacks)
    thresholds = options.thresholds or InsightThresholds()
    warnings = [*warnings_of(*sections.sections.values())]
    warnings += [f"{name} is left out: {why}" for name, why in left_out.items()]
    return InsightsResult(
        schema=SCHEMA,
        provenance=provenance(
            loaded, command=options.command, seed=options.seed, warnings=warnings
        ),
        validation=validation,
        insights=tuple(decide(name, evidence, thresholds) for name in claims()),
        thresholds=dataclasses.asdict(thresholds),
        kept_roles=kept_roles,
    )


# --- a translator's pairs of texts ----------------------------------------------------------------


def _pairs_of(loaded: LoadedModel, options: InsightsOptions) -> Examples | None:
    """Read a translator's pairs of source and target; None where no section needs them."""
    sections = options.sections
    is_translator = loaded.encoder_decoder and options.task == "seq2seq"
    is_pruned = sections is not None and sections.prune is not None
    if not is_translator or is_pruned:
        return None
    if sections is None and options.data is None:
        raise InputError("The task seq2seq needs pairs of source and target as data.")
    return read_examples("seq2seq", options.data)


def _with_sources(settings: Settings, pairs: Examples) -> Settings:
    """Have sections that read a plain text read sources of the pairs, unless settings name a text.

    Every third source, each once: a sample of them is text enough for these sections.
    """
    sources = list(dict.fromkeys(pairs.first[::3]))
    with_sources = dict(settings)
    for name, option in _TEXT_OPTIONS.items():
        text = as_plain(sources) if option == "text" else sources
        with_sources[name] = {option: text, **settings.get(name, {})}
    return with_sources


def _prune_each_stack(
    loaded: LoadedModel, pairs: Examples, options: InsightsOptions, tell: Progress
) -> PruneResult:
    """Prune all stacks together and each one alone, by the default method and at random.

    Heads are chosen on every other pair, and the model is measured on the rest.
    """
    return prune(
        loaded,
        task="seq2seq",
        data=pairs.pick(range(1, len(pairs), 2)),
        calibration=pairs.pick(range(0, len(pairs), 2)),
        repairs=("none",),
        stack="all",  # together; a model of several stacks has each pruned alone, too
        limit=options.limit,
        validate=False,
        seed=options.seed,
        progress=tell,
    )


# --- labelled heads, and fine-tuning --------------------------------------------------------------


def _kept_roles(
    loaded: LoadedModel,
    sections: Sections,
    settings: Settings,
    options: InsightsOptions,
    tell: Progress,
) -> KeptRoles | None:
    """Measure the model with only its labelled heads.

    None where heads were not classified, or the model allows no such measurement.
    """
    if sections.classify is None:
        return None
    with contextlib.suppress(UnsupportedModelError):
        return measure_kept_roles(
            loaded.only("encoder" if loaded.encoder_decoder else "all"),
            sections.classify,
            task=options.task,
            data=options.data,
            draws=options.draws,
            limit=options.limit,
            seed=options.seed,
            corpus=as_corpus(settings.get("classify", {}).get("corpus")),
            progress=tell,
        )
    return None


def _within_budget(tuning: SectionRun, remaining: float) -> SectionRun:
    """Limit fine-tuning to the seconds that remain, or to its own budget if that is less."""
    remaining = max(remaining, 1.0)
    transfer_settings = tuning.settings.get("transfer", {})
    budget = min(remaining, transfer_settings.get("budget", remaining))
    settings = {**tuning.settings, "transfer": {**transfer_settings, "budget": budget}}
    return dataclasses.replace(tuning, settings=settings)
