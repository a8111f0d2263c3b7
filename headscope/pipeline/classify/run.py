"""``headscope classify``: what each head does, from one streamed pass over a corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headscope.analyses.classify.options import ClassifyOptions
from headscope.data.batches import BATCH_TOKENS, WINDOW
from headscope.data.corpus import Corpus
from headscope.data.frequencies import Frequencies, find_frequencies
from headscope.data.pair_corpus import PairCorpus
from headscope.measures.classify.thresholds import Thresholds
from headscope.models.control import random_twin
from headscope.pipeline.classify.corpora import corpus_for, open_corpus, stacks_for
from headscope.pipeline.classify.further import (
    beside_pattern,
    open_removal,
    with_causes,
    with_prefix,
)
from headscope.pipeline.classify.passes import Found, Run, blank_sums
from headscope.pipeline.classify.stack_parts import found_in, parts_for
from headscope.pipeline.opening import (
    Model,
    need_tokenizer,
    open_for_tasks,
    open_model,
)
from headscope.pipeline.provenance import provenance
from headscope.pipeline.resume import check_resume, open_state
from headscope.pipeline.tasks import check_task
from headscope.pipeline.validate import require_valid
from headscope.results import (
    SCHEMA,
    ClassifyResult,
    ControlResult,
    CorpusInfo,
    HeadResult,
)
from headscope.results.roles import role_in, roles_of


def run(model: Model, options: ClassifyOptions) -> ClassifyResult:
    """Say what each attention head does on a corpus."""
    thresholds = options.thresholds or Thresholds()
    frequencies, language = options.frequencies, options.language
    task, limit, seed = options.task, options.limit, options.seed
    check_resume(options.state, options.resume)
    # The corpus is read and checked first: a slip in it should not cost the loading of a model.
    given = open_corpus(options.corpus)
    removal = (
        open_removal(task, options.data, options.ablate_limit, seed) if options.ablate else None
    )
    words = _frequencies(given, frequencies, language)
    opened = (open_for_tasks if options.ablate else open_model)(model, **options.loading)
    need_tokenizer(opened, "classify")
    if options.ablate:
        check_task(task, opened)  # before everything else is measured
    read = corpus_for(opened, given)
    if not opened.sites:  # the certificate says why
        require_valid(opened, options.validate)
    stacks = stacks_for(opened, options.stack, pairs=isinstance(read, PairCorpus))
    if read is not given:
        words = _frequencies(read, frequencies, language)
    validation = require_valid(opened, options.validate)
    loaded = opened.whole or opened
    parts = parts_for(loaded, stacks, read, words, limit)
    saved = open_state(
        options.state,
        options.resume,
        {
            **_identity(read, words, thresholds, options.control, stacks, limit),
            "norms": options.norm_weighted,
        },
        lambda: blank_sums(loaded, stacks),
        loaded,
        seed,
        by_process=True,
    )
    shared = Run(stacks, thresholds, options.tell, saved, options.norm_weighted)
    found = list(found_in(loaded, shared, parts))
    twin = random_twin(loaded, seed) if options.control else None
    random = list(found_in(twin, shared, parts, "control")) if twin else None
    measured = loaded.only(stacks[0]) if len(stacks) == 1 else loaded
    result = ClassifyResult(
        schema=SCHEMA,
        provenance=provenance(measured, command=options.command, seed=seed, data=read),
        validation=validation,
        corpus=_describe(read, words, found, language),
        thresholds=dataclasses.asdict(thresholds),
        heads=tuple(head for item in found for head in item.heads),
        control=_controls(found, random, seed),
        untestable={
            role_in(role, item.corpus.stack): why
            for item in found
            for role, why in item.untestable.items()
        },
    )
    if options.norm_weighted:
        result = beside_pattern(result, loaded, twin, random, shared, parts)
    if options.prefix_matching:
        result = with_prefix(result, loaded, twin, stacks, seed)
    return result if removal is None else with_causes(result, loaded, removal, options.tell)


def _frequencies(
    corpus: Corpus | PairCorpus, path: str | Path | None, language: str | None
) -> Frequencies:
    """Find the frequencies of the words of sentences, or of the sources of pairs."""
    sentences = corpus.sources if isinstance(corpus, PairCorpus) else corpus
    return find_frequencies(sentences, path, language)


def _controls(
    found: Sequence[Found], random: Sequence[Found] | None, seed: int
) -> ControlResult | None:
    """Gather what was found where there is nothing to find.

    ``random`` is what the rules find in the same architecture with random weights, drawn with this
    seed.
    """
    swapped = next((item.swapped for item in found if item.swapped is not None), None)
    if random is None:
        return None if swapped is None else ControlResult(swapped=swapped)
    by_stack = {
        item.corpus.stack: {"heads": len(item.heads), **_counts(item.heads, item.corpus.stack)}
        for item in random
    }
    heads = [head for item in random for head in item.heads]
    return ControlResult(
        swapped=swapped,
        seed=seed,
        heads=len(heads),
        false_positives=_false_positives(heads),
        by_stack=by_stack if len(by_stack) > 1 else {},
        **_counts(heads, *by_stack),
    )


def _counts(heads: Sequence[HeadResult], *stacks: str) -> dict[str, int]:
    """Count heads by role, for every role that heads of these stacks can have."""
    return {r.key: sum(r.key in head.roles for head in heads) for r in roles_of(*stacks)}


def _false_positives(heads: Sequence[HeadResult]) -> tuple[str, ...]:
    return tuple(
        f"{head.name} {label.role} {label.detail}".strip()
        for head in heads
        for label in head.labels
        if label.role in ("syntactic", "rare")
    )


def _describe(
    corpus: Corpus | PairCorpus, words: Frequencies, found: Sequence[Found], language: str | None
) -> CorpusInfo:
    *_, last = [item.corpus for item in found if item.corpus.stack != "cross"] or [found[-1].corpus]
    pairs = isinstance(corpus, PairCorpus)
    sentences = corpus.sources if isinstance(corpus, PairCorpus) else corpus
    return CorpusInfo(
        name=corpus.name,
        sha256=corpus.sha256,
        sentences=last.sentences,
        skipped=last.skipped,
        queries=last.queries,
        trees=sentences.has_trees,
        language=language or sentences.language,
        frequencies=words.source,
        note=sentences.note,
        pairs=pairs,
        by_stack=tuple(item.corpus for item in found) if pairs else (),
    )


def _identity(
    corpus: Corpus | PairCorpus,
    words: Frequencies,
    thresholds: Thresholds,
    control: bool,
    stacks: Sequence[str],
    limit: int | None,
) -> dict[str, Any]:
    """Everything that a saved state must agree with, besides model, seed and versions."""
    pairs = isinstance(corpus, PairCorpus)
    whole = corpus.n_pairs if isinstance(corpus, PairCorpus) else corpus.n_sentences
    return {
        "schema": SCHEMA,
        "corpus": corpus.sha256,
        "pairs": pairs,
        "sentences": min(whole, limit or whole),
        "stacks": list(stacks),
        "frequencies": f"{words.source} {words.sha256}",
        "thresholds": dataclasses.asdict(thresholds),
        "control": control,
        "batches": [WINDOW, BATCH_TOKENS],
    }
