"""``headscope classify``: what each head does, from one streamed pass over a corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headscope.analyses.classify.options import ClassifyOptions
from headscope.analyses.classify.pairs_result import UserPairs
from headscope.analyses.classify.passes import (
    Run,
    StackLabels,
    blank_sums,
    readings,
    stacks_for,
)
from headscope.analyses.classify.result import ClassifyResult, ControlResult, CorpusInfo, HeadResult
from headscope.core.errors import InputError
from headscope.core.roles import PAIR, Thresholds, registered_roles, role_in, roles_of
from headscope.core.serialise import SCHEMA
from headscope.data.batches import BATCH_TOKENS
from headscope.data.corpus import WINDOW, as_corpus
from headscope.data.frequencies import find_frequencies
from headscope.data.pairs import open_labelled, with_alignments
from headscope.models.run.loaded import LoadedModel
from headscope.session.opening import Model, need_tokenizer, open_for_tasks, open_model
from headscope.session.provenance import provenance
from headscope.session.resume import check_resume, open_state
from headscope.session.texts import corpus_for
from headscope.session.validate import require_valid, validating


def run(model: Model, options: ClassifyOptions) -> ClassifyResult:
    """Say what each attention head does on a corpus."""
    thresholds, limit, seed = options.thresholds or Thresholds(), options.limit, options.seed
    state, resume, progress = options.state, options.resume, options.tell
    frequencies, language, stack = options.frequencies, options.language, options.stack
    with_control, norm_weighted = options.control, options.norm_weighted
    with_prefix, task = options.prefix_matching, options.task if options.ablate else None
    loading, must_pass, command = options.loading, options.validate, options.command
    check_resume(state, resume)
    # The corpus is read and checked first: a slip in it should not cost the loading of a model.
    if options.pairs is None:
        corpus = as_corpus(options.corpus)
    elif options.corpus is None:
        corpus = open_labelled(options.pairs, limit)
    else:
        corpus = with_alignments(as_corpus(options.corpus), options.pairs, limit)
    examples = None
    if task is not None:
        from headscope.analyses.classify.causes import CauseSource, with_causes
        from headscope.tasks.making import check_task

        examples = CauseSource.read(task, options.data, options.ablate_limit, seed)
    words = None if frequencies is None else find_frequencies(corpus, frequencies, language)
    if task is None:
        opened = open_model(model, **loading)
        need_tokenizer(opened, "classify")
    else:
        opened = open_for_tasks(model, task=task, **loading)
        need_tokenizer(opened, "classify")
        check_task(task, opened)  # before everything else is measured
    read = corpus_for(opened, corpus)
    if not opened.sites:  # the certificate says why
        require_valid(opened, must_pass)
    stacks = stacks_for(opened, stack, pairs=read.n_pairs > 0)
    labels = {name: read.labels_of(name) for name in stacks}
    if read.labels and not any(labels.values()):
        needed = "cross" if read.n_pairs else "encoder"
        raise InputError(
            f"Pairs are scored in the attention of an encoder, alignments in cross-attention; "
            f"{options.pairs} needs the stack {needed}, and of {opened.name} "
            f"{' and '.join(stacks)} would be measured."
        )
    with validating(opened, must_pass) as certificate:
        if words is None or read is not corpus:  # counting takes as long as the certificate
            words = find_frequencies(read, frequencies, language)
    validation, loaded = certificate.result(), opened.whole or opened
    texts = readings(loaded, stacks, read, words, limit)
    least = dataclasses.asdict(thresholds)
    least |= {role.key: role.threshold for role in registered_roles()}
    # What a saved state must agree with, besides model, seed and versions.
    identity = {
        "schema": SCHEMA,
        "corpus": read.sha256,
        "pairs": read.n_pairs > 0,
        "sentences": min(read.n_rows, limit or read.n_rows),
        "stacks": list(stacks),
        "frequencies": f"{words.source} {words.sha256}",
        "thresholds": least,
        "control": with_control,
        "batches": [WINDOW, BATCH_TOKENS],
        "norms": norm_weighted,
    }
    aligned = read.aligned is not None
    saved = open_state(
        *(state, resume, identity, lambda: blank_sums(loaded, stacks, aligned), loaded, seed),
        by_process=True,
    )
    shared = Run(stacks, thresholds, progress, saved, norm_weighted, aligned)

    def labelled(model: LoadedModel, run: Run, name: str) -> list[StackLabels]:
        return [labels for text in texts for labels in text.label(model, run, name)]

    by_stack = labelled(loaded, shared, "model")
    heads = _heads(by_stack)
    control: ControlResult | None = None
    twin: LoadedModel | None = None
    random: tuple[HeadResult, ...] = ()
    if with_control:
        from headscope.models.surgery.copies import random_twin

        twin = random_twin(loaded, seed)
        random_stacks = labelled(twin, shared, "control")
        random = _heads(random_stacks)
        control = _random_control(random_stacks, seed, labels)
    if (swapped := next((s.swapped for s in by_stack if s.swapped is not None), None)) is not None:
        control = replace(control or ControlResult(), swapped=swapped)
    scored = next((name for name, own in labels.items() if own), None)
    pairs = scored and UserPairs(
        scored, labels[scored], next((s.alignments for s in by_stack if s.alignments), None)
    )
    *_, last = [i.corpus for i in by_stack if i.corpus.stack != "cross"] or [by_stack[-1].corpus]
    measured = loaded.only(stacks[0]) if len(stacks) == 1 else loaded
    result = ClassifyResult(
        schema=SCHEMA,
        provenance=provenance(measured, command=command, seed=seed, data=read),
        validation=validation,
        corpus=CorpusInfo(
            name=read.name,
            sha256=read.sha256,
            sentences=last.sentences,
            skipped=last.skipped,
            queries=last.queries,
            trees=read.has_trees,
            language=language or read.language,
            frequencies=words.source,
            note=read.note,
            pairs=read.n_pairs > 0,
            by_stack=tuple(item.corpus for item in by_stack) if read.n_pairs else (),
        ),
        thresholds=least,
        heads=heads,
        control=control,
        pairs=pairs or None,
        untestable={
            role_in(role, item.corpus.stack): why
            for item in by_stack
            for role, why in item.untestable.items()
        },
    )

    def add_norms(result: ClassifyResult) -> ClassifyResult:
        """Compare with the pattern itself: which of its labels do norms leave?"""
        from headscope.analyses.classify.value_norms import compare

        pattern, of_twin = replace(shared, norm_weighted=False), None
        if twin is not None:
            of_twin = _heads(labelled(twin, pattern, "control by the pattern")), random
        by_pattern = _heads(labelled(loaded, pattern, "by the pattern"))
        return replace(result, norms=compare(by_pattern, heads, of_twin, read.labels))

    def add_prefix(result: ClassifyResult) -> ClassifyResult:
        from headscope.analyses.classify.prefix_matching import with_prefix_matching

        return with_prefix_matching(result, loaded, twin, stacks, seed)

    def add_patching(result: ClassifyResult) -> ClassifyResult:
        from headscope.analyses.classify.patching import with_patching

        pairs = options.patch_pairs
        return with_patching(
            result, loaded, read, sentences=limit, pairs=pairs, seed=seed, progress=progress
        )

    def add_causes(result: ClassifyResult) -> ClassifyResult:
        assert examples is not None
        return with_causes(result, loaded, examples, progress)

    optional: list[tuple[bool, Callable[[ClassifyResult], ClassifyResult]]] = [
        (norm_weighted, add_norms),
        (with_prefix, add_prefix),
        (options.patch, add_patching),
        (examples is not None, add_causes),
    ]
    for wanted, add in optional:
        if wanted:
            result = add(result)
    return result


def _heads(items: Sequence[StackLabels]) -> tuple[HeadResult, ...]:
    return tuple(head for item in items for head in item.heads)


def _random_control(
    random: Sequence[StackLabels], seed: int, labels: Mapping[str, Sequence[str]]
) -> ControlResult:
    """Count what the rules find in the same architecture with random weights of this seed."""

    def counts(heads: Sequence[HeadResult], *stacks: str) -> dict[str, int]:
        of_pairs = [label for stack in stacks for label in labels[stack]]
        possible = roles_of(*stacks, labels=of_pairs)
        return {r.key: sum(r.key in head.roles for head in heads) for r in possible}

    by_stack = {
        item.corpus.stack: {"heads": len(item.heads), **counts(item.heads, item.corpus.stack)}
        for item in random
    }
    heads = _heads(random)
    return ControlResult(
        seed=seed,
        heads=len(heads),
        roles=counts(heads, *by_stack),
        false_positives=tuple(
            f"{head.name} {label.role} {label.detail}".strip()
            for head in heads
            for label in head.labels
            if label.role in ("syntactic", "rare") or label.role.startswith(PAIR)
        ),
        by_stack=by_stack if len(by_stack) > 1 else {},
    )
