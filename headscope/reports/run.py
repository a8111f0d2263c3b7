"""``headscope report``: all sections on one model, and every head's pattern on a few sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headscope.analyses.explain.run import read_sentence
from headscope.core.heads import head_name
from headscope.core.serialise import SCHEMA, warnings_of
from headscope.data.readable_pieces import readable_pieces
from headscope.models.certificate.certificate import validate_model
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.probes import Probe
from headscope.models.run.recording import run_ours
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.options import ReportOptions
from headscope.reports.result import ReportResult, SamplePatterns
from headscope.reports.sections import SectionRun, run_sections, source_of
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.texts import short_sentences

_DIGITS = 2  # Digits after the decimal point of a weight in the report


def run(model: Model, options: ReportOptions) -> ReportResult:
    """Run every section, the scoreboard last, on one model."""
    # Open the model; refuse its pooling or the sentences before anything is measured.
    names = options.section_names()
    loaded = open_for_tasks(model, task=options.task, **options.loading)
    need_tokenizer(loaded, "report")
    if {"prune", "insights"} & set(names):
        loaded.pooling.check()
    sentences = [
        (text, read_sentence(loaded, text, "report").ids) for text in options.sentences or ()
    ]
    section_run = SectionRun(
        loaded,
        _settings(options),
        seed=options.seed,
        command=options.command,
        check=options.validate,
        progress=options.tell,
        source=source_of(model, loaded, options),
    )

    # Prove that the re-run equals the model, and run the sections; else only report the failure.
    is_valid = not options.validate or validate_model(loaded).passed
    measured = run_sections(names if is_valid else ["validate"], section_run)
    left_out = dict(measured.left_out)
    if not is_valid:
        why = "validation failed, so nothing is reported on this model"
        left_out |= {name: why for name in names if name != "validate"}

    # The result.
    results = measured.results.sections
    return ReportResult(
        schema=SCHEMA,
        provenance=provenance(
            loaded,
            command=options.command,
            seed=options.seed,
            warnings=warnings_of(*results.values()),
        ),
        settings={name: section_run.changed(name) for name in names if name != "insights"},
        left_out=left_out,
        samples=_sample_patterns(loaded, sentences) if is_valid and loaded.sites else (),
        failed=measured.failed,
        **results,
    )


def _settings(options: ReportOptions) -> dict[str, Mapping[str, Any]]:
    """Return the settings of all sections; insights gets those of the report's own options."""
    settings = dict(options.settings or {})
    settings["insights"] = {
        "thresholds": options.thresholds or InsightThresholds(),
        "task": options.task,
        "data": None if options.data is None else Path(options.data),
        "draws": options.draws,
        **settings.get("insights", {}),
    }
    return settings


def _sample_patterns(
    loaded: LoadedModel, sentences: Sequence[tuple[str, list[int]]]
) -> tuple[SamplePatterns, ...]:
    """Return all heads' patterns on sentences, given with their token ids; by default on two."""
    if loaded.encoder_decoder:  # single sentences run only the encoder
        loaded = loaded.only("encoder")
    samples = []
    for text, ids in sentences or short_sentences(loaded, 2):
        recorded = run_ours(loaded, Probe(text, *loaded.pad([ids]))).seen["pattern"]
        patterns = {}
        for site in loaded.sites:
            head_patterns = recorded[site.row][0].cpu().double().tolist()
            for head, rows in zip(site.head_ids, head_patterns, strict=True):
                rounded = tuple(tuple(round(weight, _DIGITS) for weight in row) for row in rows)
                patterns[head_name(site.layer, head, site.stack)] = rounded
        tokens = readable_pieces(loaded.tokenizer, ids)
        samples.append(SamplePatterns(text, tokens, patterns))
    return tuple(samples)
