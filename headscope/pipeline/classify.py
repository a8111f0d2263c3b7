"""``headscope classify``: what each head does, from one streamed pass over a corpus."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headscope.data.batches import BATCH_TOKENS, WINDOW, collate
from headscope.data.corpus import Corpus, as_corpus
from headscope.data.encode import EncodedSentence, Encoder
from headscope.data.frequencies import Frequencies, find_frequencies
from headscope.data.places import placed
from headscope.data.sentence import Sentence
from headscope.errors import CorpusError, HeadscopeError
from headscope.measures.batch import Batch
from headscope.measures.classify.kernel import kernel_argmax
from headscope.measures.classify.labels import judge, judge_swapped
from headscope.measures.classify.sums import HeadMeasures
from headscope.measures.classify.syntactic import KernelHits
from headscope.measures.classify.testable import untestable
from headscope.measures.classify.thresholds import Thresholds
from headscope.models.control import random_twin
from headscope.models.loading import LoadedModel
from headscope.models.routing import Router, routed
from headscope.pipeline.opening import Model, need_tokenizer, open_model
from headscope.pipeline.parameters import check_limit, check_seed
from headscope.pipeline.progress import Progress, silent
from headscope.pipeline.provenance import provenance
from headscope.pipeline.resume import RunState, check_resume, open_state
from headscope.pipeline.texts import counted_batches
from headscope.pipeline.validate import require_valid
from headscope.results import (
    SCHEMA,
    ClassifyResult,
    ControlResult,
    CorpusInfo,
    HeadResult,
    SwappedControl,
)
from headscope.results.roles import roles_of

__all__ = ["classify", "report_defaults"]

#: A corpus of at most so many sentences is kept in memory as padded batches, about 3 kB each.
KEPT_SENTENCES = 4096


def report_defaults() -> dict[str, Any]:
    """Return what a report sets unless it is told otherwise."""
    return {"control": True}


class _Batches:
    """The batches of a corpus, the same ones every time.

    A small corpus is read, encoded and padded only once; of a larger one nothing is held.
    """

    def __init__(
        self, loaded: LoadedModel, corpus: Corpus, words: Frequencies, n_sentences: int
    ) -> None:
        self._encoder = Encoder(loaded, words)
        self._pad_id = loaded.pad_id
        self._corpus = corpus
        self._n_sentences = n_sentences
        self._kept: list[tuple[int, Batch]] = []

    def after(self, done: int) -> Iterator[tuple[int, Batch]]:
        """Yield (sentences seen so far, batch), leaving out the first ``done`` batches."""
        if self._kept:
            yield from self._kept[done:]
            return
        made = []
        for index, (seen, sentences) in enumerate(self._groups()):
            if index >= done:
                made.append((seen, collate(sentences, self._pad_id)))
                yield made[-1]
            if self._n_sentences > KEPT_SENTENCES:
                made.clear()
        if done == 0:
            self._kept = made

    def _groups(self) -> Iterator[tuple[int, list[EncodedSentence]]]:
        sentences, again = itertools.tee(itertools.islice(iter(self._corpus), self._n_sentences))
        return counted_batches(placed(again, self._encoder.encode(sentences)))


@dataclass(frozen=True)
class _Pass:
    """What every pass over the corpus shares."""

    corpus: Corpus
    n_sentences: int
    batches: _Batches
    progress: Progress
    state: RunState[HeadMeasures]


def classify(
    model: Model,
    corpus: Corpus | str | Path | Sequence[Sentence | str] | None = None,
    *,
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
        for the built-in sample treebank.
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
        Use only the first sentences.
    seed : int
        For the random weights of the control.
    state : path, optional
        File in which a long run saves its sums.
    resume : bool
        Go on from what ``state`` holds.
    progress : callable, optional
        Called as ``progress(pass_name, sentences_done, sentences)``.
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
    text = as_corpus(corpus)
    words = find_frequencies(text, frequencies, language)
    loaded = open_model(model, **options)
    need_tokenizer(loaded, "classify")
    validation = require_valid(loaded, validate)
    n_sentences = min(text.n_sentences, limit or text.n_sentences)
    saved = open_state(
        state,
        resume,
        _identity(text, words, thresholds, control, n_sentences),
        lambda: HeadMeasures(loaded.n_layers, loaded.n_heads),
        loaded,
        seed,
    )
    batches = _Batches(loaded, text, words, n_sentences)
    run = _Pass(text, n_sentences, batches, progress or silent, saved)

    sums, heads, swapped = _judged(loaded, run, thresholds, "model")
    found = ControlResult(swapped=swapped) if swapped is not None else None
    if control:
        found = _control(loaded, run, thresholds, seed, swapped)
    return ClassifyResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=command, seed=seed, data=text),
        validation=validation,
        corpus=_describe(text, words, sums, language),
        thresholds=dataclasses.asdict(thresholds),
        heads=heads,
        control=found,
        untestable=untestable(sums, thresholds, trees=text.has_trees),
    )


def _judged(
    loaded: LoadedModel, run: _Pass, thresholds: Thresholds, name: str
) -> tuple[HeadMeasures, tuple[HeadResult, ...], SwappedControl | None]:
    """Measure one model; its sums, its heads, and what swapped trees label."""
    sums = _measure(loaded, run, name)
    kernel, swapped = _kernel_hits(loaded, run, sums)
    ids = [site.head_ids for site in loaded.sites]
    heads = judge(sums, kernel, thresholds, ids)
    trees = run.corpus.has_trees
    return sums, heads, judge_swapped(sums, swapped, thresholds, ids) if trees else None


def _measure(loaded: LoadedModel, run: _Pass, name: str) -> HeadMeasures:
    """Stream the corpus through the model once; all sums are taken on the way."""
    if loaded.n_layers == 0:
        raise HeadscopeError(f"{loaded.name} has no attention that headscope recognises.")
    blank = HeadMeasures(loaded.n_layers, loaded.n_heads)
    done, sums = run.state.load(blank, name)
    reducer = sums.reducer()
    index = done
    with routed(loaded.model, Router(loaded.sites, [reducer], others=loaded.others)) as router:
        # Of an interrupted run the first batches are already in the sums.
        for index, (seen, on_host) in enumerate(run.batches.after(done), start=done + 1):
            batch = on_host.to(loaded.device)
            reducer.start(batch)
            router.run(functools.partial(loaded.forward, batch.input_ids, batch.attention_mask))
            run.state.note(name, index, sums)
            run.progress(name, seen, run.n_sentences)
    _check_measured(sums, run)
    run.state.note(name, index, sums, final=True)
    return sums


def _kernel_hits(
    loaded: LoadedModel, run: _Pass, sums: HeadMeasures
) -> tuple[KernelHits, KernelHits]:
    """Count what the heads' distance kernels hit: of the gold trees, and of the swapped ones.

    The kernels are known only after the pass. This second one needs words and trees, not the model.
    """
    gold, swapped = KernelHits(sums.syntactic), KernelHits(sums.swapped)
    if run.corpus.has_trees:
        kernel = torch.from_numpy(sums.kernel.means()).flatten(0, 1)
        for _, batch in run.batches.after(0):
            looks_at = kernel_argmax(kernel, batch)
            gold.update(looks_at, batch)
            swapped.update(looks_at, batch)
    return gold, swapped


def _measured(sums: HeadMeasures) -> int:
    return int(sums.profile.sentences)


def _check_measured(sums: HeadMeasures, run: _Pass) -> None:
    sums.skipped = run.n_sentences - _measured(sums)
    if _measured(sums) == 0:
        raise CorpusError(
            f"None of the {run.n_sentences} sentences of {run.corpus.name} could be measured: "
            "each is longer than the model's limit or has a word that yields no piece."
        )


def _control(
    loaded: LoadedModel,
    run: _Pass,
    thresholds: Thresholds,
    seed: int,
    swapped: SwappedControl | None,
) -> ControlResult:
    """Measure the same architecture with random weights: what the rules find in untrained heads."""
    _, heads, _ = _judged(random_twin(loaded, seed), run, thresholds, "control")
    roles = roles_of(*{head.stack for head in heads})
    counts = {role.key: sum(role.key in head.roles for head in heads) for role in roles}
    return ControlResult(
        swapped=swapped,
        seed=seed,
        heads=len(heads),
        false_positives=_false_positives(heads),
        **counts,
    )


def _false_positives(heads: Sequence[HeadResult]) -> tuple[str, ...]:
    return tuple(
        f"{head.name} {label.role} {label.detail}".strip()
        for head in heads
        for label in head.labels
        if label.role in ("syntactic", "rare")
    )


def _describe(
    corpus: Corpus, words: Frequencies, sums: HeadMeasures, language: str | None
) -> CorpusInfo:
    return CorpusInfo(
        name=corpus.name,
        sha256=corpus.sha256,
        sentences=_measured(sums),
        skipped=sums.skipped,
        queries=int(sums.positional.content),
        trees=corpus.has_trees,
        language=language or corpus.language,
        frequencies=words.source,
        note=corpus.note,
    )


def _identity(
    corpus: Corpus, words: Frequencies, thresholds: Thresholds, control: bool, n_sentences: int
) -> dict[str, Any]:
    """Everything that a saved state must agree with, besides model, seed and versions."""
    return {
        "schema": SCHEMA,
        "corpus": corpus.sha256,
        "sentences": n_sentences,
        "frequencies": f"{words.source} {words.sha256}",
        "thresholds": dataclasses.asdict(thresholds),
        "control": control,
        "batches": [WINDOW, BATCH_TOKENS],
    }
