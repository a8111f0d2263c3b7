"""``headscope report``: every command on one model, loaded and validated once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from headscope.core.activations import Activations
from headscope.core.errors import InputError
from headscope.core.heads import head_name
from headscope.core.serialise import SCHEMA, warnings_of
from headscope.models.certificate import validate_model
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, routed
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.options import ReportOptions
from headscope.reports.registry import SECTIONS
from headscope.reports.result import ReportResult, SamplePatterns
from headscope.reports.sections import Previous, Run, run_sections
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.texts import handy_sentences


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
    """Return the sections of a run, in their order."""
    for name in (*only, *skip):
        if name not in SECTIONS:
            raise InputError(f"There is no section {name!r}; choose from {', '.join(SECTIONS)}.")
    chosen = tuple(name for name in SECTIONS if name in (only or SECTIONS) and name not in skip)
    if not chosen:
        raise InputError("No section is left to run; give fewer to skip.")
    return chosen


#: Tokens of a sentence that is shown, special ones included.
_DIGITS = 2  # Digits after the decimal point that are kept of a weight.


def sample_patterns(loaded: LoadedModel, count: int = 2) -> tuple[SamplePatterns, ...]:
    """Run the first short sentences of the built-in sample and keep their rounded patterns.

    There are none for a model without tokenizer.
    """
    if loaded.tokenizer is None or not loaded.sites:
        return ()
    if loaded.encoder_decoder:  # sentences run no more of it
        loaded = loaded.only("encoder")
    spell = loaded.tokenizer.convert_ids_to_tokens
    return tuple(
        SamplePatterns(text, tuple(map(str, spell(ids))), _patterns(loaded, ids))
        for text, ids in handy_sentences(loaded, count)
    )


class _Keep:
    """Keeps the rounded patterns of one sentence."""

    def __init__(self, heads: Sequence[int]) -> None:
        self.found: list[list[Tensor]] = [[torch.empty(0)] * n for n in heads]

    def observe(self, site: Activations) -> None:
        for place, head in enumerate(range(*site.heads.indices(site.n_heads))):
            self.found[site.row][head] = site.pattern[0, place].cpu().double().clone()

    def finish(self, stack: str, layer: int) -> None:
        """Nothing to do."""


def _patterns(loaded: LoadedModel, ids: list[int]) -> dict[str, tuple[tuple[float, ...], ...]]:
    keep = _Keep([site.n_heads for site in loaded.sites])
    with routed(loaded.model, Router(loaded.sites, [keep], others=loaded.others)) as router:
        router.run(functools.partial(loaded.forward, *loaded.pad([ids])))
    return {
        head_name(site.layer, head): tuple(
            tuple(round(float(w), _DIGITS) for w in row) for row in pattern
        )
        for site, patterns in zip(loaded.sites, keep.found, strict=True)
        for head, pattern in zip(site.head_ids, patterns, strict=True)
    }
