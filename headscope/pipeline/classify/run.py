"""``headscope classify``: what each head does, from one streamed pass over a corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headscope.core.errors import UnusedOptionError
from headscope.data.batches import BATCH_TOKENS, WINDOW
from headscope.data.corpus import Corpus
from headscope.data.examples import AnyCorpus, open_corpus
from headscope.data.frequencies import Frequencies, find_frequencies
from headscope.measures.classify.thresholds import Thresholds
from headscope.models.copies import random_twin
from headscope.models.loaded import LoadedModel
from headscope.pipeline.classify.passes import (
    Run,
    StackLabels,
    blank_sums,
    corpus_for,
    readings,
    stacks_for,
)
from headscope.pipeline.classify.prefix_matching import with_prefix_matching
from headscope.pipeline.classify.value_norms import compare
from headscope.pipeline.validate import require_valid
from headscope.results.classify import ClassifyResult, ControlResult, CorpusInfo, HeadResult
from headscope.results.roles import role_in, roles_of
from headscope.results.serialise import SCHEMA
from headscope.session.opening import (
    Model,
    need_tokenizer,
    open_for_tasks,
    open_model,
    public_function,
)
from headscope.session.parameters import check_limit, check_seed
from headscope.session.progress import Progress, silent
from headscope.session.provenance import provenance
from headscope.session.resume import check_resume, open_state

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
    as_given = open_corpus(corpus)
    removal = None
    if ablate:
        from headscope.pipeline.classify import causes  # with all tasks: not needed otherwise

        removal = causes.CauseSource.read(task, data, ablate_limit, seed)
    words = find_frequencies(as_given, frequencies, language)
    opened = (open_for_tasks if ablate else open_model)(model, **options)
    need_tokenizer(opened, "classify")
    if removal is not None:
        causes.check_task(task, opened)  # before everything else is measured
    read = corpus_for(opened, as_given)
    if not opened.sites:  # the certificate says why
        require_valid(opened, validate)
    stacks = stacks_for(opened, stack, pairs=read.n_pairs > 0)
    if read is not as_given:
        words = find_frequencies(read, frequencies, language)
    validation = require_valid(opened, validate)
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
        "control": control,
        "batches": [WINDOW, BATCH_TOKENS],
        "norms": norm_weighted,
    }
    saved = open_state(
        state, resume, identity, lambda: blank_sums(loaded, stacks), loaded, seed, by_process=True
    )
    run = Run(stacks, thresholds, progress or silent, saved, norm_weighted)

    def labelled(model: LoadedModel, run: Run, name: str) -> list[StackLabels]:
        return [labels for text in texts for labels in text.label(model, run, name)]

    by_stack = labelled(loaded, run, "model")
    twin = random_twin(loaded, seed) if control else None
    random = labelled(twin, run, "control") if twin else None
    measured = loaded.only(stacks[0]) if len(stacks) == 1 else loaded
    result = ClassifyResult(
        schema=SCHEMA,
        provenance=provenance(measured, command=command, seed=seed, data=read),
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
    if norm_weighted:  # measure the pattern itself too, and say which of its labels norms leave
        pattern = dataclasses.replace(run, norm_weighted=False)
        of_twin = None
        if twin is not None and random is not None:
            of_twin = _heads(labelled(twin, pattern, "control by the pattern")), _heads(random)
        by_pattern = _heads(labelled(loaded, pattern, "by the pattern"))
        result = replace(result, norms=compare(by_pattern, result.heads, of_twin))
    if prefix_matching:
        result = with_prefix_matching(result, loaded, twin, stacks, seed)
    if removal is None:
        return result
    return causes.with_causes(result, loaded, removal, run.progress)


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
