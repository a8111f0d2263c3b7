"""Run a model with something else in place of its attention, and see how near it stays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from torch import Tensor

from headscope.data.batches import BATCH_TOKENS, WINDOW, buckets, windows
from headscope.data.plain import PlainText, encode_lines
from headscope.errors import CorpusError
from headscope.measures.accumulator import Array
from headscope.measures.pooling import cosine, mean_pooled
from headscope.models.loading import LoadedModel
from headscope.models.routing import Mechanism, Router, routed

__all__ = ["Fidelity", "text_batches"]


class Fidelity:
    """Cosine between a changed model's mean-pooled last states and its own, line by line.

    Parameters
    ----------
    loaded : LoadedModel
    text : PlainText
    limit : int, optional
        Use only the first lines.

    Attributes
    ----------
    lines, skipped : int
        Measured; longer than the model's limit.
    """

    def __init__(self, loaded: LoadedModel, text: PlainText, limit: int | None = None) -> None:
        self._loaded = loaded
        self._batches = [loaded.pad(batch) for _, batch in text_batches(loaded, text, limit)]
        self.lines = sum(len(ids) for ids, _ in self._batches)
        self.skipped = min(text.n_lines, limit or text.n_lines) - self.lines
        check_measured(text, self.lines)
        self._original = list(self._pooled(None))

    def of(
        self,
        mechanism: Mechanism,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Array:
        """Return the cosine of every line, (lines,), under ``mechanism``.

        Parameters
        ----------
        mechanism : Mechanism
            Runs at every site.
        around : callable
            Makes a context in which all passes run (to watch the sites' inputs, say).
        """
        with around():
            changed = list(self._pooled(mechanism))
        pairs = zip(changed, self._original, strict=True)
        return np.concatenate([cosine(ours, theirs).cpu().numpy() for ours, theirs in pairs])

    def _pooled(self, mechanism: Mechanism | None) -> Iterator[Tensor]:
        loaded = self._loaded
        with routed(loaded.model, Router(loaded.sites, mechanism=mechanism)) as router:
            for ids, mask in self._batches:
                router.begin()
                hidden = loaded.forward(ids, mask)
                router.check_calls()
                yield mean_pooled(hidden, mask)


def text_batches(
    loaded: LoadedModel, text: PlainText, limit: int | None = None
) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield (lines seen so far, token ids of the next batch); too long lines are left out."""
    lines = itertools.islice(iter(text), limit)
    encoded = encode_lines(loaded.tokenizer, lines, loaded.max_length, loaded.vocab_size)
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
