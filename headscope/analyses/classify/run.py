"""``headscope classify``: what each head does, from one streamed pass over a corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace

from headscope.analyses.classify.options import ClassifyOptions, Thresholds
from headscope.analyses.classify.passes import (
    Run,
    StackLabels,
    blank_sums,
    corpus_for,
    readings,
    stacks_for,
)
from headscope.analyses.classify.result import (
    ClassifyResult,
    ControlResult,
    CorpusInfo,
    HeadResult,
    SwappedControl,
)
from headscope.core.roles import role_in, roles_of
from headscope.core.serialise import SCHEMA
from headscope.data.batches import BATCH_TOKENS
from headscope.data.corpus import WINDOW
from headscope.data.examples import open_corpus
from headscope.data.frequencies import find_frequencies
from headscope.models.run.loaded import LoadedModel
from headscope.session.opening import Model, need_tokenizer, open_for_tasks, open_model
from headscope.session.provenance import provenance
from headscope.session.resume import check_resume, open_state
from headscope.session.validate import require_valid, validating


def run(model: Model, options: ClassifyOptions) -> ClassifyResult:
    """Say what each attention head does on a corpus."""
    thresholds, limit, seed = options.thresholds or Thresholds(), options.limit, options.seed
    check_resume(options.state, options.resume)
    # The corpus is read and checked first: a slip in it should not cost the loading of a model.
    corpus = open_corpus(options.corpus)
    removal = None
    if options.ablate:
        from headscope.analyses.classify import causes
        from headscope.tasks.making import check_task

        removal = causes.CauseSource.read(options.task, options.data, options.ablate_limit, seed)
    chosen = options.frequencies, options.language
    words = None if options.frequencies is None else find_frequencies(corpus, *chosen)
    if options.ablate:
        opened = open_for_tasks(model, task=options.task, **options.loading)
    else:
        opened = open_model(model, **options.loading)
    need_tokenizer(opened, "classify")
    if removal is not None:
        check_task(options.task, opened)  # before everything else is measured
    read = corpus_for(opened, corpus)
    if not opened.sites:  # the certificate says why
        require_valid(opened, options.validate)
    stacks = stacks_for(opened, options.stack, pairs=read.n_pairs > 0)
    with validating(opened, options.validate) as certificate:
        if words is None or read is not corpus:  # counting takes as long as the certificate
            words = find_frequencies(read, *chosen)
    validation = certificate.result()
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
    heads = _heads(by_stack)
    swapped = next((item.swapped for item in by_stack if item.swapped is not None), None)
    control = None if swapped is None else ControlResult(swapped=swapped)
    twin, random = None, []
    if options.control:
        from headscope.models.surgery.copies import random_twin

        twin = random_twin(loaded, seed)
        random = labelled(twin, shared, "control")
        control = _random_control(swapped, random, seed)
    *_, last = [i.corpus for i in by_stack if i.corpus.stack != "cross"] or [by_stack[-1].corpus]
    measured = loaded.only(stacks[0]) if len(stacks) == 1 else loaded
    result = ClassifyResult(
        schema=SCHEMA,
        provenance=provenance(measured, command=options.command, seed=seed, data=read),
        validation=validation,
        corpus=CorpusInfo(
            name=read.name,
            sha256=read.sha256,
            sentences=last.sentences,
            skipped=last.skipped,
            queries=last.queries,
            trees=read.has_trees,
            language=options.language or read.language,
            frequencies=words.source,
            note=read.note,
            pairs=read.n_pairs > 0,
            by_stack=tuple(item.corpus for item in by_stack) if read.n_pairs else (),
        ),
        thresholds=dataclasses.asdict(thresholds),
        heads=heads,
        control=control,
        untestable={
            role_in(role, item.corpus.stack): why
            for item in by_stack
            for role, why in item.untestable.items()
        },
    )
    if options.norm_weighted:  # the pattern itself too, and which of its labels norms leave
        from headscope.analyses.classify.value_norms import compare

        pattern, of_twin = replace(shared, norm_weighted=False), None
        if twin is not None:
            of_twin = _heads(labelled(twin, pattern, "control by the pattern")), _heads(random)
        by_pattern = _heads(labelled(loaded, pattern, "by the pattern"))
        result = replace(result, norms=compare(by_pattern, heads, of_twin))
    if options.prefix_matching:
        from headscope.analyses.classify.prefix_matching import with_prefix_matching

        result = with_prefix_matching(result, loaded, twin, stacks, seed)
    if removal is not None:
        summary, by_head = causes.find_causes(loaded, result.stacks, heads, removal, options.tell)
        heads = tuple(replace(head, cause=by_head.get(head.name)) for head in result.heads)
        result = replace(result, heads=heads, causes=summary)
    return result


def _heads(items: Sequence[StackLabels]) -> tuple[HeadResult, ...]:
    return tuple(head for item in items for head in item.heads)


def _random_control(
    swapped: SwappedControl | None, random: Sequence[StackLabels], seed: int
) -> ControlResult:
    """Count what the rules find in the same architecture with random weights of this seed."""

    def counts(heads: Sequence[HeadResult], *stacks: str) -> dict[str, int]:
        return {r.key: sum(r.key in head.roles for head in heads) for r in roles_of(*stacks)}

    by_stack = {
        item.corpus.stack: {"heads": len(item.heads), **counts(item.heads, item.corpus.stack)}
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
        **counts(heads, *by_stack),
    )
