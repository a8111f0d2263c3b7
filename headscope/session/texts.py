"""Batches of whole lines of a text, counted."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from headscope.core.errors import CorpusError
from headscope.data.batches import BATCH_TOKENS, WINDOW, Item, buckets, windows
from headscope.data.corpus import PlainText, encode_lines, sample_plain
from headscope.models.loaded import LoadedModel


def line_batches(
    loaded: LoadedModel, text: PlainText, limit: int | None = None
) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield (lines seen so far, token ids of the next batch); too long lines are left out."""
    lines = itertools.islice(iter(text), limit)
    return counted_batches(encode_lines(loaded, lines))


def counted_batches(encoded: Iterable[Item | None]) -> Iterator[tuple[int, list[Item]]]:
    """Yield (items seen so far, next batch); what is None is seen, but in no batch."""
    seen = 0
    for window in windows(encoded, WINDOW):
        seen += window.count(None)
        for batch in buckets(window, BATCH_TOKENS):
            seen += len(batch)
            yield seen, batch


def check_measured(text: PlainText, lines: int) -> None:
    """Raise if every line of a text had to be skipped."""
    if lines == 0:
        raise CorpusError(
            f"No line of {text.name} fits into the model's limit; break the text into sentences, "
            "one a line."
        )


SHORTEST, LONGEST = 8, 16  # Tokens of a sentence that fits a picture.


def handy_sentences(loaded: LoadedModel, count: int) -> list[tuple[str, list[int]]]:
    """Choose sentences of the built-in sample of a handy length, or the shortest there are."""
    texts = list(sample_plain())
    encoded = encode_lines(loaded, texts)
    known = [(text, ids) for text, ids in zip(texts, encoded, strict=True) if ids is not None]
    # Sorting is stable: sentences of a handy length come first, as they stand in the sample.
    known.sort(key=lambda item: 0 if SHORTEST <= len(item[1]) <= LONGEST else len(item[1]))
    return known[:count]
