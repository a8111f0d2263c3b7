"""``headscope classify``: what each head does, from one streamed pass over a corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace

from headscope.analyses.classify.options import ClassifyOptions
from headscope.analyses.classify.passes import (
    Run,
    StackLabels,
    blank_sums,
    corpus_for,
    readings,
    stacks_for,
)
from headscope.analyses.classify.prefix_matching import with_prefix_matching
from headscope.analyses.classify.result import ClassifyResult, ControlResult, CorpusInfo, HeadResult
from headscope.analyses.classify.thresholds import Thresholds
from headscope.analyses.classify.value_norms import compare
from headscope.core.roles import role_in, roles_of
from headscope.core.serialise import SCHEMA
from headscope.data.batches import BATCH_TOKENS, WINDOW
from headscope.data.corpus import Corpus
from headscope.data.encode import Frequencies, find_frequencies
from headscope.data.examples import open_corpus
from headscope.models.copies import random_twin
from headscope.models.loaded import LoadedModel
from headscope.session.opening import (
    Model,
    need_tokenizer,
    open_for_tasks,
    open_model,
)
from headscope.session.provenance import provenance
from headscope.session.resume import check_resume, open_state
from headscope.session.validate import require_valid


def run(model: Model, options: ClassifyOptions) -> ClassifyResult:
    """Say what each attention head does on a corpus."""
    thresholds = options.thresholds or Thresholds()
    frequencies, language = options.frequencies, options.language
    task, limit, seed = options.task, options.limit, options.seed
    check_resume(options.state, options.resume)
    # The corpus is read and checked first: a slip in it should not cost the loading of a model.
    as_given = open_corpus(options.corpus)
    removal = None
    if options.ablate:
        from headscope.analyses.classify import causes

        removal = causes.CauseSource.read(task, options.data, options.ablate_limit, seed)
    words = find_frequencies(as_given, frequencies, language)
    opened = (open_for_tasks if options.ablate else open_model)(model, **options.loading)
    need_tokenizer(opened, "classify")
    if removal is not None:
        causes.check_task(task, opened)  # before everything else is measured
    read = corpus_for(opened, as_given)
    if not opened.sites:  # the certificate says why
        require_valid(opened, options.validate)
    stacks = stacks_for(opened, options.stack, pairs=read.n_pairs > 0)
    if read is not as_given:
        words = find_frequencies(read, frequencies, language)
    validation = require_valid(opened, options.validate)
    loaded = opened.whole or opened
    texts = readings(loaded, stacks, read, words, limit)
    # What a saved state must agree with, besides model, seed and versions.
    identity = {
        "schema": SCHEMA,
        "corpus": read.sha256,
        "pairs": read.n_pairs > 0,
        "sentences": min(read.n_rows, limit or read.n_rows),
        "stacks": list(stacks),
        "frequencies": f"{words.source} {words.sha256}",
        "thresholds": dataclasses.asdict(thresholds),
        "control": options.control,
        "batches": [WINDOW, BATCH_TOKENS],
        "norms": options.norm_weighted,
    }
    saved = open_state(
        options.state,
        options.resume,
        identity,
        lambda: blank_sums(loaded, stacks),
        loaded,
        seed,
        by_process=True,
    )
    shared = Run(stacks, thresholds, options.tell, saved, options.norm_weighted)

    def labelled(model: LoadedModel, run: Run, name: str) -> list[StackLabels]:
        return [labels for text in texts for labels in text.label(model, run, name)]

    by_stack = labelled(loaded, shared, "model")
    twin = random_twin(loaded, seed) if options.control else None
    random = labelled(twin, shared, "control") if twin else None
    measured = loaded.only(stacks[0]) if len(stacks) == 1 else loaded
    result = ClassifyResult(
        schema=SCHEMA,
        provenance=provenance(measured, command=options.command, seed=seed, data=read),
        validation=validation,
        corpus=_describe(read, words, by_stack, language),
        thresholds=dataclasses.asdict(thresholds),
        heads=_heads(by_stack),
        control=_controls(by_stack, random, seed),
        untestable={
            role_in(role, item.corpus.stack): why
            for item in by_stack
            for role, why in item.untestable.items()
        },
    )
    if options.norm_weighted:  # the pattern itself too, and which of its labels norms leave
        pattern = dataclasses.replace(shared, norm_weighted=False)
        of_twin = None
        if twin is not None and random is not None:
            of_twin = _heads(labelled(twin, pattern, "control by the pattern")), _heads(random)
        by_pattern = _heads(labelled(loaded, pattern, "by the pattern"))
        result = replace(result, norms=compare(by_pattern, result.heads, of_twin))
    if options.prefix_matching:
        result = with_prefix_matching(result, loaded, twin, stacks, seed)
    if removal is None:
        return result
    return causes.with_causes(result, loaded, removal, options.tell)


def _heads(items: Sequence[StackLabels]) -> tuple[HeadResult, ...]:
    return tuple(head for item in items for head in item.heads)


def _controls(
    items: Sequence[StackLabels], random: Sequence[StackLabels] | None, seed: int
) -> ControlResult | None:
    """Gather what was found where there is nothing to find.

    ``random`` is what the rules find in the same architecture with random weights, drawn with this
    seed.
    """
    swapped = next((item.swapped for item in items if item.swapped is not None), None)
    if random is None:
        return None if swapped is None else ControlResult(swapped=swapped)
    by_stack = {
        item.corpus.stack: {"heads": len(item.heads), **_counts(item.heads, item.corpus.stack)}
        for item in random
    }
    heads = _heads(random)
    return ControlResult(
        swapped=swapped,
        seed=seed,
        heads=len(heads),
        false_positives=tuple(
            f"{head.name} {label.role} {label.detail}".strip()
            for head in heads
            for label in head.labels
            if label.role in ("syntactic", "rare")
        ),
        by_stack=by_stack if len(by_stack) > 1 else {},
        **_counts(heads, *by_stack),
    )


def _counts(heads: Sequence[HeadResult], *stacks: str) -> dict[str, int]:
    """Count heads by role, for every role that heads of these stacks can have."""
    return {r.key: sum(r.key in head.roles for head in heads) for r in roles_of(*stacks)}


def _describe(
    corpus: Corpus, words: Frequencies, items: Sequence[StackLabels], language: str | None
) -> CorpusInfo:
    *_, last = [i.corpus for i in items if i.corpus.stack != "cross"] or [items[-1].corpus]
    return CorpusInfo(
        name=corpus.name,
        sha256=corpus.sha256,
        sentences=last.sentences,
        skipped=last.skipped,
        queries=last.queries,
        trees=corpus.has_trees,
        language=language or corpus.language,
        frequencies=words.source,
        note=corpus.note,
        pairs=corpus.n_pairs > 0,
        by_stack=tuple(item.corpus for item in items) if corpus.n_pairs else (),
    )
