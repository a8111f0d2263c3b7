"""``headscope classify``: what each head does, from one streamed pass over a corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import chain
from typing import Any

from headscope.analyses.classify.corpus_batches import stacks_for
from headscope.analyses.classify.optional.causes import CauseSource, with_causes
from headscope.analyses.classify.optional.patching import with_patching
from headscope.analyses.classify.optional.prefix_matching import with_prefix_matching
from headscope.analyses.classify.optional.random_weights import with_random_weights
from headscope.analyses.classify.optional.results import UserPairs
from headscope.analyses.classify.options import ClassifyOptions
from headscope.analyses.classify.passes import (
    Passes,
    StackLabels,
    blank_sums,
    readings,
)
from headscope.analyses.classify.result import ClassifyResult, ControlResult, CorpusInfo
from headscope.analyses.classify.roles import Thresholds, role_in, roles_with_keys
from headscope.core.errors import InputError
from headscope.core.serialise import SCHEMA
from headscope.data.batches import BATCH_TOKENS
from headscope.data.corpus import WINDOW, Corpus, as_corpus
from headscope.data.frequencies import Frequencies, find_frequencies
from headscope.data.pairs import open_labelled
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import random_twin
from headscope.session.opening import Model, need_tokenizer, open_for_tasks, open_model
from headscope.session.provenance import provenance
from headscope.session.resume import check_resume, open_state
from headscope.session.texts import corpus_for
from headscope.session.validate import require_valid, validating
from headscope.tasks.making import check_task


def run(model: Model, options: ClassifyOptions) -> ClassifyResult:
    """Say what each attention head does on a corpus."""
    # Open the corpus first: a slip in it should not cost loading a model.
    check_resume(options.state, options.resume)
    corpus, words = _open_corpus(options)
    removal_examples = _examples_of_removal(options)
    opened = _open_model(model, options)
    text = corpus_for(opened, corpus)
    if not opened.sites:  # the certificate says why
        require_valid(opened, options.validate)
    stacks = stacks_for(opened, options.stack, pairs=text.n_pairs > 0)
    labels = {stack: text.labels_of(stack) for stack in stacks}
    if text.labels and not any(labels.values()):
        raise _no_stack_for_pairs(opened, text, stacks, options)

    # Prove that attention is re-run as it is. Counting words takes as long as that.
    with validating(opened, options.validate) as certificate:
        if words is None or text is not corpus:
            words = find_frequencies(text, options.frequencies, options.language)
    validation = certificate.result()

    # Measure every stack, and label its heads.
    loaded = opened.with_all_stacks
    thresholds = options.thresholds or Thresholds()
    passes = _passes(loaded, stacks, thresholds, text, words, options)
    texts = readings(loaded, stacks, text, words, options.limit)

    def label(network: LoadedModel, name: str) -> list[StackLabels]:
        by_stack: list[StackLabels] = []
        for reading in texts:
            by_stack += reading.label(network, passes, name)
        return by_stack

    by_stack = label(loaded, "model")
    measured = loaded.only(stacks[0]) if len(stacks) == 1 else loaded
    result = ClassifyResult(
        schema=SCHEMA,
        provenance=provenance(measured, command=options.command, seed=options.seed, data=text),
        validation=validation,
        corpus=_corpus_info(text, by_stack, words, options),
        thresholds=_least_scores(thresholds),
        heads=tuple(chain.from_iterable(stack.heads for stack in by_stack)),
        control=_swapped_control(by_stack),
        pairs=next((UserPairs(stack, names) for stack, names in labels.items() if names), None),
        untestable=_untestable(by_stack),
    )

    # Optional parts, one after another.
    random_network = None
    if options.control:
        random_network = random_twin(loaded, options.seed)
        random = label(random_network, "control")
        result = with_random_weights(result, random, seed=options.seed, labels=labels)
    if options.prefix_matching:
        result = with_prefix_matching(result, loaded, random_network, stacks, options.seed)
    if options.patch:
        result = with_patching(
            result,
            loaded,
            text,
            sentences=options.limit,
            pairs=options.patch_pairs,
            seed=options.seed,
            progress=options.tell,
        )
    if removal_examples is not None:
        result = with_causes(result, loaded, removal_examples, options.tell)
    return result


def _open_corpus(options: ClassifyOptions) -> tuple[Corpus, Frequencies | None]:
    """Read the corpus or a user's pairs, and the file of frequencies if one is named."""
    if options.pairs is None:
        corpus = as_corpus(options.corpus)
    else:
        corpus = open_labelled(options.pairs, options.limit)
    if options.frequencies is None:
        return corpus, None
    return corpus, find_frequencies(corpus, options.frequencies, options.language)


def _examples_of_removal(options: ClassifyOptions) -> CauseSource | None:
    """Read the examples that removing heads is measured on; None where that is not asked for."""
    if not options.ablate:
        return None
    return CauseSource.read(options.task, options.data, options.ablate_limit, options.seed)


def _open_model(model: Model, options: ClassifyOptions) -> LoadedModel:
    """Open the model, with the head of its task where removals are measured by one."""
    if not options.ablate:
        opened = open_model(model, **options.loading)
        need_tokenizer(opened, "classify")
        return opened
    opened = open_for_tasks(model, task=options.task, **options.loading)
    need_tokenizer(opened, "classify")
    check_task(options.task, opened)  # before everything else is measured
    return opened


def _no_stack_for_pairs(
    opened: LoadedModel, text: Corpus, stacks: Sequence[str], options: ClassifyOptions
) -> InputError:
    needed = "cross" if text.n_pairs else "encoder"
    return InputError(
        "Pairs in one text are scored in an encoder, pairs of source and target in "
        f"cross-attention; {options.pairs} needs the stack {needed}, and of {opened.name} "
        f"{' and '.join(stacks)} would be measured."
    )


def _least_scores(thresholds: Thresholds) -> dict[str, Any]:
    """Return the thresholds by name, and by key those of roles that bring their number along."""
    least = dataclasses.asdict(thresholds)
    for role in roles_with_keys():
        least[role.key] = role.least(thresholds)
    return least


def _passes(
    loaded: LoadedModel,
    stacks: tuple[str, ...],
    thresholds: Thresholds,
    text: Corpus,
    words: Frequencies,
    options: ClassifyOptions,
) -> Passes:
    """Open the saved state of a run, and return what all its passes share."""
    # What a saved state must agree with, besides model, seed and versions.
    identity = {
        "schema": SCHEMA,
        "corpus": text.sha256,
        "pairs": text.n_pairs > 0,
        "sentences": min(text.n_rows, options.limit or text.n_rows),
        "stacks": list(stacks),
        "frequencies": f"{words.source} {words.sha256}",
        "thresholds": _least_scores(thresholds),
        "control": options.control,
        "batches": [WINDOW, BATCH_TOKENS],
    }
    with_pairs = text.labelled is not None
    saved = open_state(
        options.state,
        options.resume,
        identity,
        lambda: blank_sums(loaded, stacks, with_pairs),
        loaded,
        options.seed,
        by_process=True,
    )
    return Passes(
        stacks=stacks,
        thresholds=thresholds,
        progress=options.tell,
        state=saved,
        labelled=with_pairs,
    )


def _corpus_info(
    text: Corpus, by_stack: Sequence[StackLabels], words: Frequencies, options: ClassifyOptions
) -> CorpusInfo:
    """Say what was read; of several stacks the counts of the last that reads a text of its own."""
    self_attention = [stack.corpus for stack in by_stack if stack.corpus.stack != "cross"]
    counts = self_attention[-1] if self_attention else by_stack[-1].corpus
    return CorpusInfo(
        name=text.name,
        sha256=text.sha256,
        sentences=counts.sentences,
        skipped=counts.skipped,
        queries=counts.queries,
        trees=text.has_trees,
        language=options.language or text.language,
        frequencies=words.source,
        note=text.note,
        pairs=text.n_pairs > 0,
        by_stack=tuple(stack.corpus for stack in by_stack) if text.n_pairs else (),
        words_left_out=counts.words_left_out,
    )


def _swapped_control(by_stack: Sequence[StackLabels]) -> ControlResult | None:
    """Return what was labelled against other sentences' trees or pairs; None without them."""
    for stack in by_stack:
        if stack.swapped is not None:
            return ControlResult(swapped=stack.swapped)
    return None


def _untestable(by_stack: Sequence[StackLabels]) -> dict[str, str]:
    """Return the roles that the corpus cannot show, by their names in results."""
    reasons = {}
    for stack in by_stack:
        for role, reason in stack.untestable.items():
            reasons[role_in(role, stack.corpus.stack)] = reason
    return reasons
