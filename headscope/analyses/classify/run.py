"""``headscope classify``: what each head does, from one streamed pass over a corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headscope.analyses.classify.optional_results import UserPairs
from headscope.analyses.classify.options import ClassifyOptions
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
from headscope.data.pairs import open_labelled
from headscope.models.run.loaded import LoadedModel
from headscope.session.opening import Model, need_tokenizer, open_for_tasks, open_model
from headscope.session.provenance import provenance
from headscope.session.resume import check_resume, open_state
from headscope.session.texts import corpus_for
from headscope.session.validate import require_valid, validating


def run(model: Model, options: ClassifyOptions) -> ClassifyResult:
    """Say what each attention head does on a corpus."""
    thresholds = options.thresholds or Thresholds()
    limit = options.limit
    seed = options.seed
    check_resume(options.state, options.resume)
    # The corpus is read and checked first: a slip in it should not cost the loading of a model.
    if options.pairs is None:
        corpus = as_corpus(options.corpus)
    else:
        corpus = open_labelled(options.pairs, limit)
    source = options.frequencies, options.language
    words = None if options.frequencies is None else find_frequencies(corpus, *source)
    examples = None
    if options.ablate:
        from headscope.analyses.classify.causes import CauseSource, with_causes
        from headscope.tasks.making import check_task

        examples = CauseSource.read(options.task, options.data, options.ablate_limit, seed)
        opened = open_for_tasks(model, task=options.task, **options.loading)
        need_tokenizer(opened, "classify")
        check_task(options.task, opened)  # before everything else is measured
    else:
        opened = open_model(model, **options.loading)
        need_tokenizer(opened, "classify")
    read = corpus_for(opened, corpus)
    if not opened.sites:  # the certificate says why
        require_valid(opened, options.validate)
    stacks = stacks_for(opened, options.stack, pairs=read.n_pairs > 0)
    labels = {name: read.labels_of(name) for name in stacks}
    if read.labels and not any(labels.values()):
        needed = "cross" if read.n_pairs else "encoder"
        raise InputError(
            f"Pairs in one text are scored in an encoder, pairs of source and target in "
            f"cross-attention; "
            f"{options.pairs} needs the stack {needed}, and of {opened.name} "
            f"{' and '.join(stacks)} would be measured."
        )
    with validating(opened, options.validate) as certificate:
        if words is None or read is not corpus:  # counting takes as long as the certificate
            words = find_frequencies(read, *source)
    validation = certificate.result()
    loaded = opened.whole or opened
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
        "control": options.control,
        "batches": [WINDOW, BATCH_TOKENS],
    }
    with_pairs = read.labelled is not None
    saved = open_state(
        options.state,
        options.resume,
        identity,
        lambda: blank_sums(loaded, stacks, with_pairs),
        loaded,
        seed,
        by_process=True,
    )
    shared = Run(stacks, thresholds, options.tell, saved, with_pairs)

    def labelled(model: LoadedModel, name: str, run: Run = shared) -> list[StackLabels]:
        return [labels for text in texts for labels in text.label(model, run, name)]

    by_stack = labelled(loaded, "model")
    heads = _heads(by_stack)
    control: ControlResult | None = None
    twin: LoadedModel | None = None
    if options.control:
        from headscope.models.surgery.copies import random_twin

        twin = random_twin(loaded, seed)
        random_stacks = labelled(twin, "control")
        control = _random_control(random_stacks, seed, labels)
    if (swapped := next((s.swapped for s in by_stack if s.swapped is not None), None)) is not None:
        control = replace(control or ControlResult(), swapped=swapped)
    pairs = [UserPairs(stack, names) for stack, names in labels.items() if names]
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
            words_left_out=last.words_left_out,
        ),
        thresholds=least,
        heads=heads,
        control=control,
        pairs=next(iter(pairs), None),
        untestable={
            role_in(role, item.corpus.stack): why
            for item in by_stack
            for role, why in item.untestable.items()
        },
    )
    if options.prefix_matching:
        from headscope.analyses.classify.prefix_matching import with_prefix_matching

        result = with_prefix_matching(result, loaded, twin, stacks, seed)
    if options.patch:
        from headscope.analyses.classify.patching import with_patching

        most = options.patch_pairs
        result = with_patching(
            result, loaded, read, sentences=limit, pairs=most, seed=seed, progress=options.tell
        )
    if examples is not None:
        result = with_causes(result, loaded, examples, options.tell)
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
