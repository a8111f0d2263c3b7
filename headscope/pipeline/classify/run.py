"""``headscope classify``: what each head does, from one streamed pass over a corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headscope.data.batches import BATCH_TOKENS, WINDOW
from headscope.data.corpus import Corpus
from headscope.data.frequencies import Frequencies, find_frequencies
from headscope.data.pair_corpus import PairCorpus
from headscope.errors import UnusedOptionError
from headscope.measures.classify.thresholds import Thresholds
from headscope.models.copies import random_twin
from headscope.pipeline.classify.corpora import AnyCorpus, corpus_for, open_corpus, stacks_for
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
    public_function,
)
from headscope.pipeline.parameters import check_limit, check_seed
from headscope.pipeline.progress import Progress, silent
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

#: Examples that removing heads is measured on, unless told otherwise.
ABLATE_LIMIT = 64


def report_defaults() -> dict[str, Any]:
    """Return what a report sets unless it is told otherwise."""
    return {"control": True, "ablate": True, "ablate_limit": 12, "prefix_matching": True}


@public_function
def classify(
    model: Model,
    corpus: AnyCorpus = None,
    *,
    stack: str | None = None,
    frequencies: str | Path | None = None,
    language: str | None = None,
    thresholds: Thresholds | None = None,
    control: bool = False,
    norm_weighted: bool = False,
    prefix_matching: bool = False,
    ablate: bool = False,
    task: str = "fidelity",
    data: str | Path | None = None,
    ablate_limit: int = ABLATE_LIMIT,
    validate: bool = True,
    limit: int | None = None,
    seed: int = 0,
    state: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    command: str = "headscope.classify",
    **options: Any,
) -> ClassifyResult:
    """Say what each attention head does on a corpus.

    Parameters
    ----------
    model : str, path, LoadedModel
        ``demo``, a folder, a hub id, or what :func:`headscope.load` returned.
    corpus : optional
        A ``.conllu`` treebank or a text file (one sentence a line), sentences in memory, or None
        for the built-in sample treebank. For an encoder-decoder model also pairs of source and
        target: a table (``.tsv``, ``.csv``, ``.jsonl``) or a list of tuples.
    stack : str, optional
        ``encoder``, ``decoder``, ``cross`` or ``all``; by default every stack that the corpus
        runs: of an encoder-decoder model sentences run the encoder, pairs all three.
    frequencies : path, optional
        ``word<TAB>count`` lines for the rare-word score; else wordfreq, else the corpus itself.
    language : str, optional
        ISO code for wordfreq, where the corpus does not state it.
    thresholds : Thresholds, optional
        What a score must reach to become a label; the documented ones by default.
    control : bool
        Measure the same architecture with random weights too, and count its labels.
    norm_weighted : bool
        Let a key count by the norm of what it contributes, ``||P[i, j] v_j W_O||``, as a share of
        the row's sum, in place of the pattern; the labels of the pattern stand beside it.
    prefix_matching : bool
        Score every head on random tokens that are repeated: the induction score.
    ablate : bool
        Remove every head alone and measure what that does to the output.
    task : str
        What the model is then measured by: ``fidelity`` (cosine to its own embeddings), ``mlm``,
        ``classification``, ``similarity`` or ``seq2seq``.
    data : path, optional
        What that is measured on, half of it; means are taken of the other half. The built-in sample
        if missing.
    ablate_limit : int
        Most examples of each half (mlm: windows).
    validate : bool
        Refuse a model on which our attention is not the model's; recorded if False.
    limit : int, optional
        Use only the first sentences or pairs.
    seed : int
        For the random weights of the control and all else that is drawn.
    state : path, optional
        File in which a long run saves its sums.
    resume : bool
        Go on from what ``state`` holds.
    progress : callable, optional
        Called as ``progress(pass_name, done, total)``, in sentences or pairs.
    command : str
        Recorded in the result.
    **options
        ``dtype``, ``device``, ``revision``, ``allow_pickle``, as :func:`headscope.load` takes them.

    Returns
    -------
    ClassifyResult
        Frozen raw values; ``.to_frame()`` gives pandas.

    Raises
    ------
    InputError
        For a model, corpus or option that cannot be used.
    ValidationFailedError
        If our attention does not equal the model's.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.classify("demo", limit=50)
    >>> result.heads[2].name, result.heads[2].primary, result.heads[2].positional.offset
    ('L0H2', 'positional', -1)
    """
    thresholds = thresholds or Thresholds()
    check_limit(limit, "sentence")
    check_seed(seed)
    check_resume(state, resume)
    if not ablate and (data is not None or task != "fidelity"):
        raise UnusedOptionError(
            "task and data are what ablate measures models without a head by; ask for ablate too, "
            "or leave them out."
        )
    # The corpus is read and checked first: a slip in it should not cost the loading of a model.
    given = open_corpus(corpus)
    removal = open_removal(task, data, ablate_limit, seed) if ablate else None
    words = _frequencies(given, frequencies, language)
    opened = (open_for_tasks if ablate else open_model)(model, **options)
    need_tokenizer(opened, "classify")
    if ablate:
        check_task(task, opened)  # before everything else is measured
    read = corpus_for(opened, given)
    if not opened.sites:  # the certificate says why
        require_valid(opened, validate)
    stacks = stacks_for(opened, stack, pairs=isinstance(read, PairCorpus))
    if read is not given:
        words = _frequencies(read, frequencies, language)
    validation = require_valid(opened, validate)
    loaded = opened.whole or opened
    parts = parts_for(loaded, stacks, read, words, limit)
    saved = open_state(
        state,
        resume,
        {**_identity(read, words, thresholds, control, stacks, limit), "norms": norm_weighted},
        lambda: blank_sums(loaded, stacks),
        loaded,
        seed,
        by_process=True,
    )
    run = Run(stacks, thresholds, progress or silent, saved, norm_weighted)
    found = list(found_in(loaded, run, parts))
    twin = random_twin(loaded, seed) if control else None
    random = list(found_in(twin, run, parts, "control")) if twin else None
    measured = loaded.only(stacks[0]) if len(stacks) == 1 else loaded
    result = ClassifyResult(
        schema=SCHEMA,
        provenance=provenance(measured, command=command, seed=seed, data=read),
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
    if norm_weighted:
        result = beside_pattern(result, loaded, twin, random, run, parts)
    if prefix_matching:
        result = with_prefix(result, loaded, twin, stacks, seed)
    return result if removal is None else with_causes(result, loaded, removal, run.progress)


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
