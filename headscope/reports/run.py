"""``headscope report``: every command on one model, loaded and validated once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from headscope.analyses.explain.run import read_sentence
from headscope.core.activations import Activations
from headscope.core.heads import head_name
from headscope.core.serialise import SCHEMA, warnings_of
from headscope.models.certificate.certificate import validate_model
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router, routed
from headscope.reports.claims.rule import InsightThresholds
from headscope.reports.options import ReportOptions
from headscope.reports.result import ReportResult, SamplePatterns
from headscope.reports.sections import Run, run_sections
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.texts import handy_sentences

_DIGITS = 2  # Digits after the decimal point that are kept of a weight.


def run(model: Model, options: ReportOptions) -> ReportResult:
    """Run every section, the scoreboard last, on one model."""
    names = options.names()
    loaded = open_for_tasks(model, task=options.task, **options.loading)
    need_tokenizer(loaded, "report")
    if {"prune", "insights"} & set(names):
        loaded.pooling.check()  # before everything else is measured
    # Wrong sentences are refused before anything is measured.
    given = [(text, read_sentence(loaded, text, "report").ids) for text in options.sentences or ()]
    settings = dict(options.settings or {})
    settings["insights"] = {
        "thresholds": options.thresholds or InsightThresholds(),
        "task": options.task,
        "data": None if options.data is None else Path(options.data),
        "draws": options.draws,
        **settings.get("insights", {}),
    }
    command, seed = options.command, options.seed
    shared = Run(loaded, settings, seed, command, options.validate, options.tell)
    usable = not options.validate or validate_model(loaded).passed
    result = run_sections([name for name in names if usable or name == "validate"], shared)
    left_out = dict(result.left_out)
    if not usable:
        why = "validation failed, so nothing is reported on this model"
        left_out |= {name: why for name in names if name != "validate"}
    sections = result.sections.sections
    warnings = warnings_of(*sections.values())
    return ReportResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=command, seed=seed, warnings=warnings),
        settings={name: shared.changed(name) for name in names if name != "insights"},
        left_out=left_out,
        samples=_sample_patterns(loaded, given) if usable and loaded.sites else (),
        failed=result.failed,
        **sections,
    )


class _KeepPatterns:
    """Keeps the rounded patterns of one sentence, by head."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._sites = loaded.sites
        self.patterns: dict[str, tuple[tuple[float, ...], ...]] = {}

    def observe(self, site: Activations) -> None:
        """Keep the patterns of a chunk, under the original numbers of its heads."""
        heads: Sequence[int] = self._sites[site.row].head_ids[site.heads]
        for head, pattern in zip(heads, site.pattern[0].cpu().double().tolist(), strict=True):
            rounded = tuple(tuple(round(weight, _DIGITS) for weight in row) for row in pattern)
            self.patterns[head_name(site.layer, head)] = rounded

    def finish(self, stack: str, layer: int) -> None:
        """Nothing to do."""


def _sample_patterns(
    loaded: LoadedModel, sentences: Sequence[tuple[str, list[int]]]
) -> tuple[SamplePatterns, ...]:
    """Keep all heads' patterns on sentences with their token ids, or on two of the sample."""
    if loaded.encoder_decoder:  # single sentences run only the encoder
        loaded = loaded.only("encoder")
    samples = []
    for text, ids in sentences or handy_sentences(loaded, 2):
        keep = _KeepPatterns(loaded)
        with routed(loaded.model, Router(loaded.sites, [keep], others=loaded.others)) as router:
            router.run(functools.partial(loaded.forward, *loaded.pad([ids])))
        tokens = loaded.tokenizer.convert_ids_to_tokens(ids)
        samples.append(SamplePatterns(text, tuple(map(str, tokens)), keep.patterns))
    return tuple(samples)
