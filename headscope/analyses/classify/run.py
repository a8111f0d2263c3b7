"""``headscope classify``: what each head does, from one streamed pass over a corpus.

:func:`run` is the whole command: open, prove, measure, result, optional parts. The functions below
it stand in the order of their use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
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
    PassRunner,
    StackLabels,
    blank_sums,
    label_stacks,
    plan_passes,
)
from headscope.analyses.classify.repeats import Repeats
from headscope.analyses.classify.result import ClassifyResult, ControlResult, CorpusInfo
from headscope.analyses.classify.roles import Thresholds, role_in, roles_with_keys
from headscope.core.errors import InputError
from headscope.core.serialise import SCHEMA
from headscope.data.batches import BATCH_TOKENS
from headscope.data.corpus import WINDOW, Corpus, as_corpus
from headscope.data.frequencies import Frequencies, find_frequencies
from headscope.data.long_texts import in_windows, left_out_notes
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
    # Open the texts first: a slip in them should not cost loading a model.
    check_resume(options.state, options.resume)
    source = _open_corpus(options)
    frequencies = None
    if options.frequencies is not None:
        frequencies = find_frequencies(source, options.frequencies, options.language)
    removal_examples = _examples_of_removal(options)

    # Open the model, and choose the stacks (encoder, decoder, cross) that read such a corpus.
    opened = _open_model(model, options)
    corpus = corpus_for(opened, source)
    if options.windows:
        corpus = in_windows(opened, corpus)
    if not opened.sites:  # the certificate says why
        require_valid(opened, options.validate)
    labels = _labels_by_stack(opened, corpus, options)
    stacks = tuple(labels)

    # Prove that attention is re-run as it is. Counting words takes as long as that.
    with validating(opened, options.validate) as certificate:
        if frequencies is None or corpus is not source:
            frequencies = find_frequencies(corpus, options.frequencies, options.language)
    validation = certificate.result()  # nothing is measured on a model that fails

    # Measure every stack, and label its heads.
    loaded = opened.with_all_stacks
    thresholds = options.thresholds or Thresholds()
    repeats = _repeats(loaded, stacks, options)
    runner = _pass_runner(loaded, stacks, thresholds, corpus, frequencies, options, repeats)
    passes = plan_passes(loaded, stacks, corpus, frequencies, options.limit, options.seed)
    by_stack = label_stacks(loaded, passes, runner, "model")
    measured = loaded.only(stacks[0]) if len(stacks) == 1 else loaded
    corpus_info = _corpus_info(corpus, by_stack, frequencies, options)
    result = ClassifyResult(
        schema=SCHEMA,
        provenance=provenance(
            measured,
            command=options.command,
            seed=options.seed,
            data=corpus,
            warnings=left_out_notes(
                corpus_info.skipped,
                corpus_info.sentences + corpus_info.skipped,
                corpus.name,
                loaded.max_length,
                windows=not (
                    options.windows or corpus.has_trees or corpus.n_pairs or corpus.labels
                ),
            ),
        ),
        validation=validation,
        corpus=corpus_info,
        thresholds=_least_scores(thresholds),
        heads=tuple(chain.from_iterable(stack.heads for stack in by_stack)),
        control=_swapped_control(by_stack),
        pairs=_user_pairs(labels),
        untestable=_untestable(by_stack),
    )

    # Optional parts, one after another.
    random: list[StackLabels] = []  # of the same architecture with random weights
    if options.control:
        random = label_stacks(random_twin(loaded, options.seed), passes, runner, "control")
        result = with_random_weights(result, random, seed=options.seed, labels=labels)
    if options.prefix_matching or repeats is not None:
        result = with_prefix_matching(result, repeats, random, stacks)
    if options.patch:
        result = with_patching(
            result,
            loaded,
            corpus,
            sentences=options.limit,
            pairs=options.patch_pairs,
            seed=options.seed,
            progress=options.tell,
        )
    if removal_examples is not None:
        result = with_causes(result, loaded, removal_examples, options.tell)
    return result


def _repeats(
    loaded: LoadedModel, stacks: tuple[str, ...], options: ClassifyOptions
) -> Repeats | None:
    """Draw random tokens that come twice: for a causal language model, and where asked for.

    None where that is not so, or where there is room for too few.
    """
    is_language_model = stacks == ("decoder",) and not loaded.encoder_decoder
    if not (is_language_model or options.prefix_matching):
        return None
    return Repeats.draw(loaded, options.seed)


def _open_corpus(options: ClassifyOptions) -> Corpus:
    """Read the corpus, or the texts of a user's own pairs."""
    if options.pairs is None:
        return as_corpus(options.corpus)
    return open_labelled(options.pairs, options.limit)


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


def _labels_by_stack(
    opened: LoadedModel, corpus: Corpus, options: ClassifyOptions
) -> dict[str, tuple[str, ...]]:
    """Choose the stacks that are measured, each with the labels of a user's pairs it is scored for.

    Pairs that no measured stack can be scored for are an error.
    """
    stacks = stacks_for(opened, options.stack, pairs=corpus.n_pairs > 0)
    labels = {stack: corpus.labels_of(stack) for stack in stacks}
    if corpus.labels and not any(labels.values()):
        needed = "cross" if corpus.n_pairs else "encoder"
        raise InputError(
            "Pairs in one text are scored in an encoder, pairs of source and target in "
            f"cross-attention; {options.pairs} needs the stack {needed}, and of {opened.name} "
            f"{' and '.join(stacks)} would be measured."
        )
    return labels


def _least_scores(thresholds: Thresholds) -> dict[str, Any]:
    """Return all thresholds by name, those of registered roles by the role's key."""
    least = dataclasses.asdict(thresholds)
    for role in roles_with_keys():
        least[role.key] = role.least(thresholds)
    return least


def _pass_runner(
    loaded: LoadedModel,
    stacks: tuple[str, ...],
    thresholds: Thresholds,
    corpus: Corpus,
    frequencies: Frequencies,
    options: ClassifyOptions,
    repeats: Repeats | None,
) -> PassRunner:
    """Open the saved state of a run, and return what runs its passes."""
    # What a saved state must agree with, besides model, seed and versions.
    identity = {
        "schema": SCHEMA,
        "corpus": corpus.sha256,
        "pairs": corpus.n_pairs > 0,
        "sentences": min(corpus.n_rows, options.limit or corpus.n_rows),
        "stacks": list(stacks),
        "frequencies": f"{frequencies.source} {frequencies.sha256}",
        "thresholds": _least_scores(thresholds),
        "control": options.control,
        "batches": [WINDOW, BATCH_TOKENS],
    }
    with_pairs = corpus.labelled is not None
    saved = open_state(
        options.state,
        options.resume,
        identity,
        lambda: blank_sums(loaded, stacks, with_pairs),
        loaded,
        options.seed,
        by_process=True,
    )
    return PassRunner(
        stacks=stacks,
        thresholds=thresholds,
        progress=options.tell,
        state=saved,
        labelled=with_pairs,
        repeats=repeats,
    )


def _corpus_info(
    corpus: Corpus,
    by_stack: Sequence[StackLabels],
    frequencies: Frequencies,
    options: ClassifyOptions,
) -> CorpusInfo:
    """Say what was read.

    Of several stacks the counts are those of the decoder, or of the encoder where no decoder was
    measured.
    """
    self_attention = [stack.corpus for stack in by_stack if stack.corpus.stack != "cross"]
    counts = self_attention[-1] if self_attention else by_stack[-1].corpus
    return CorpusInfo(
        name=corpus.name,
        sha256=corpus.sha256,
        sentences=counts.sentences,
        skipped=counts.skipped,
        queries=counts.queries,
        trees=corpus.has_trees,
        language=options.language or corpus.language,
        frequencies=frequencies.source,
        note=corpus.note,
        pairs=corpus.n_pairs > 0,
        by_stack=tuple(stack.corpus for stack in by_stack) if corpus.n_pairs else (),
        words_left_out=counts.words_left_out,
        asked_edges=counts.asked_edges,
    )


def _user_pairs(labels: Mapping[str, tuple[str, ...]]) -> UserPairs | None:
    """Return the labels of a user's pairs, with the stack that they are scored in."""
    for stack, labels_of_stack in labels.items():
        if labels_of_stack:
            return UserPairs(stack, labels_of_stack)
    return None


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
