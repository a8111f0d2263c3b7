"""Batches of whole lines of a text, counted, and the share of them that a process has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from headscope.core.errors import CorpusError, InputError
from headscope.core.processes import current, share
from headscope.data.batches import BATCH_TOKENS, Item, buckets
from headscope.data.corpus import WINDOW, Corpus, open_pairs, sample_corpus
from headscope.data.pieces import encode_lines
from headscope.models.run.loaded import LoadedModel

Raw = TypeVar("Raw")  # A sentence or pair as it was read.


def line_batches(
    loaded: LoadedModel, text: Corpus, limit: int | None = None
) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield (lines seen so far, token ids of the next batch); too long lines are left out."""
    lines = itertools.islice(text.lines(), limit)
    return counted_batches(encode_lines(loaded, lines))


def counted_batches(encoded: Iterable[Item | None]) -> Iterator[tuple[int, list[Item]]]:
    """Yield (items seen so far, next batch); what is None is seen, but in no batch."""
    seen = 0
    stream = iter(encoded)
    while window := list(itertools.islice(stream, WINDOW)):
        seen += window.count(None)
        for batch in buckets(window, BATCH_TOKENS):
            seen += len(batch)
            yield seen, batch


def own_batches(
    rows: Iterable[Raw], n: int, encode: Callable[[list[Raw], bool], Iterable[Item | None]]
) -> Iterator[tuple[float, list[Item]]]:
    """Yield (rows that this process has done by then, its next batch) of a corpus of ``n`` rows.

    All processes together have the batches that one alone would go through. They take windows of
    rows in turn, and none encodes what another takes. Every process encodes the last windows, which
    are too few for all, and takes their batches in turn. ``encode`` is called with the rows of a
    window, and whether they are the first. Within a window the rows that are done are counted by
    their tokens, since short ones come first.
    """
    stream = iter(rows)
    done = 0.0
    n_windows = -(-n // WINDOW)
    group = current()
    for number in range(n_windows):
        window = list(itertools.islice(stream, WINDOW))
        full_round = number < n_windows - n_windows % group.size
        if full_round and number % group.size != group.rank:
            continue
        encoded = list(encode(window, number == 0))
        tokens = sum(len(item) for item in encoded if item is not None)
        batches = buckets(encoded, BATCH_TOKENS)
        for batch in batches if full_round else share(batches):
            done += len(window) * sum(map(len, batch)) / tokens
            yield done, batch


def corpus_for(loaded: LoadedModel, corpus: Corpus) -> Corpus:
    """Return the corpus as a model reads it: to an encoder-decoder model a table holds pairs."""
    if loaded.encoder_decoder and corpus.table is not None:
        return open_pairs(corpus.table)
    if corpus.n_pairs and not loaded.encoder_decoder:
        raise InputError(
            f"{loaded.name} ({loaded.family}) is no encoder-decoder model, so it cannot read pairs "
            "of source and target; give sentences."
        )
    return corpus


def check_measured(text: Corpus, lines: int) -> None:
    """Raise if every line of a text had to be skipped."""
    if lines == 0:
        raise CorpusError(
            f"No line of {text.name} fits into the model's limit; break the text into sentences, "
            "one a line."
        )


def description(text: Corpus, limit: int | None, lines: int) -> dict[str, Any]:
    """Describe what was read of a text; refuse one of which every line was skipped."""
    check_measured(text, lines)
    skipped = min(text.n_sentences, limit or text.n_sentences) - lines
    return {"name": text.name, "sha256": text.sha256, "lines": lines, "skipped": skipped}


# Tokens of a sentence that fits a picture.
SHORTEST = 8
LONGEST = 16


def handy_sentences(loaded: LoadedModel, count: int) -> list[tuple[str, list[int]]]:
    """Choose sentences of the built-in sample of a handy length, or the shortest there are."""
    texts = list(sample_corpus().lines())
    encoded = encode_lines(loaded, texts)
    known = [(text, ids) for text, ids in zip(texts, encoded, strict=True) if ids is not None]
    # Sorting is stable: sentences of a handy length come first, as they stand in the sample.
    known.sort(key=lambda item: 0 if SHORTEST <= len(item[1]) <= LONGEST else len(item[1]))
    return known[:count]
