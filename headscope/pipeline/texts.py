"""A text as a model reads it: batches of whole lines, or windows of equal length."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from headscope.data.batches import BATCH_TOKENS, WINDOW, Item, buckets, windows
from headscope.data.packing import Windows, pack
from headscope.data.plain import PlainText, encode_lines
from headscope.errors import CorpusError
from headscope.models.loading import LoadedModel


def line_batches(
    loaded: LoadedModel, text: PlainText, limit: int | None = None
) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield (lines seen so far, token ids of the next batch); too long lines are left out."""
    lines = itertools.islice(iter(text), limit)
    return counted_batches(
        encode_lines(loaded.tokenizer, lines, loaded.max_length, loaded.vocab_size)
    )


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


def windows_of(loaded: LoadedModel, text: PlainText, length: int) -> Windows:
    """Cut a text into windows of ``length`` tokens, as :func:`headscope.data.packing.pack` does."""
    return pack(
        text,
        loaded.tokenizer,
        length,
        max_length=loaded.max_length,
        vocab_size=loaded.vocab_size,
        name=loaded.name,
    )
