"""``headscope classify``: what each head does, from one streamed pass over a corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headscope.data.batches import BATCH_TOKENS, WINDOW
from headscope.data.corpus import Corpus
from headscope.data.frequencies import Frequencies, find_frequencies
from headscope.data.pair_corpus import PairCorpus
from headscope.measures.classify.thresholds import Thresholds
from headscope.models.control import random_twin
from headscope.models.loaded import LoadedModel
from headscope.pipeline.classify.corpora import AnyCorpus, corpus_for, open_corpus, stacks_for
from headscope.pipeline.classify.paired import Pairs
from headscope.pipeline.classify.passes import Found, Run, blank_sums
from headscope.pipeline.classify.sentences import Sentences
from headscope.pipeline.opening import Model, need_tokenizer, open_model
from headscope.pipeline.parameters import check_limit, check_seed
from headscope.pipeline.progress import Progress, silent
from headscope.pipeline.provenance import provenance
from headscope.pipeline.resume import check_resume, open_state
from headscope.pipeline.validate import require_valid
from headscope.results import (
    SCHEMA,
    ClassifyResult,
    ControlResult,
    CorpusInfo,
    HeadResult,
)
from headscope.results.roles import role_in, roles_of


def report_defaults() -> dict[str, Any]:
    """Return what a report sets unless it is told otherwise."""
    return {"control": True}


def classify(
    model: Model,
    corpus: AnyCorpus = None,
    *,
    stack: str | None = None,
    frequencies: str | Path | None = None,
    language: str | None = None,
    thresholds: Thresholds | None = None,
    control: bool = False,
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
    validate : bool
        Refuse a model on which our attention is not the model's; recorded if False.
    limit : int, optional
        Use only the first sentences or pairs.
    seed : int
        For the random weights of the control.
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
    # The corpus is read and checked first: a slip in it should not cost the loading of a model.
    given = open_corpus(corpus)
    words = _frequencies(given, frequencies, language)
    opened = open_model(model, **options)
    need_tokenizer(opened, "classify")
    read = corpus_for(opened, given)
    if not opened.sites:  # the certificate says why
        require_valid(opened, validate)
    stacks = stacks_for(opened, stack, pairs=isinstance(read, PairCorpus))
    if read is not given:
        words = _frequencies(read, frequencies, language)
    validation = require_valid(opened, validate)
    loaded = opened.whole or opened
    parts = _parts(loaded, stacks, read, words, limit)
    saved = open_state(
        state,
        resume,
        _identity(read, words, thresholds, control, stacks, limit),
        lambda: blank_sums(loaded, stacks),
        loaded,
        seed,
    )
    run = Run(stacks, thresholds, progress or silent, saved)
    found = list(_found(loaded, run, parts))
    measured = loaded.only(stacks[0]) if len(stacks) == 1 else loaded
    return ClassifyResult(
        schema=SCHEMA,
        provenance=provenance(measured, command=command, seed=seed, data=read),
        validation=validation,
        corpus=_describe(read, words, found, language),
        thresholds=dataclasses.asdict(thresholds),
        heads=tuple(head for item in found for head in item.heads),
        control=_controls(loaded, run, parts, found, seed if control else None),
        untestable={
            role_in(role, item.corpus.stack): why
            for item in found
            for role, why in item.untestable.items()
        },
    )


def _frequencies(
    corpus: Corpus | PairCorpus, path: str | Path | None, language: str | None
) -> Frequencies:
    """Find the frequencies of the words of sentences, or of the sources of pairs."""
    sentences = corpus.sources if isinstance(corpus, PairCorpus) else corpus
    return find_frequencies(sentences, path, language)


@dataclasses.dataclass(frozen=True)
class _Parts:
    """What the stacks of a model read: some read sentences, some pairs."""

    sentences: Sentences | None
    pairs: Pairs | None


def _parts(
    loaded: LoadedModel,
    stacks: tuple[str, ...],
    corpus: Corpus | PairCorpus,
    words: Frequencies,
    limit: int | None,
) -> _Parts:
    if isinstance(corpus, Corpus):
        return _Parts(Sentences.of(loaded, corpus, words, limit, stacks[0]), None)
    sources, deep = None, tuple(stack for stack in stacks if stack != "encoder")
    if "encoder" in stacks:
        sources = Sentences.of(loaded, corpus.sources, words, limit)
    return _Parts(sources, Pairs.of(loaded, corpus, limit, deep) if deep else None)


def _found(
    loaded: LoadedModel, run: Run, parts: _Parts, *, control: bool = False
) -> Iterator[Found]:
    """Measure a model, stack by stack; a control model needs no further controls."""
    name = "control" if control else "model"
    if parts.sentences is not None:
        yield parts.sentences.find(loaded, run, f"{name}, sources" if parts.pairs else name)
    if parts.pairs is not None:
        swapped = "" if control else "swapped sources"
        yield from parts.pairs.find(loaded, run, f"{name}, pairs", swapped)


def _controls(
    loaded: LoadedModel, run: Run, parts: _Parts, found: Sequence[Found], seed: int | None
) -> ControlResult | None:
    """Gather what was found where there is nothing to find.

    With a seed the same architecture with random weights is measured: what the rules find in
    untrained heads.
    """
    swapped = next((item.swapped for item in found if item.swapped is not None), None)
    if seed is None:
        return None if swapped is None else ControlResult(swapped=swapped)
    items = list(_found(random_twin(loaded, seed), run, parts, control=True))
    by_stack = {
        item.corpus.stack: {"heads": len(item.heads), **_counts(item.heads, item.corpus.stack)}
        for item in items
    }
    heads = [head for item in items for head in item.heads]
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
