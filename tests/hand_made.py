"""Batches of sentences whose pieces are made by hand, without a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headscope.data.batches import collate
from headscope.data.encode import EncodedSentence
from headscope.data.places import placed
from headscope.data.sentence import Sentence
from headscope.measures.batch import Batch


def encode(corpus: Sequence[Sentence], pieces: Callable[[int], int] = lambda i: 1) -> Batch:
    """Put special tokens around words of so many pieces each; one batch."""
    encoded = []
    for sentence in corpus:
        counts = [pieces(i) for i in range(len(sentence.words))]
        word_of = np.array([-1, *np.repeat(np.arange(len(counts)), counts), -1])
        first = np.concatenate([[1], 1 + np.cumsum(counts)[:-1]])
        ids = np.arange(len(word_of))
        encoded.append(EncodedSentence(ids, word_of, first, sentence, None))
    return collate([s for s in placed(corpus, encoded) if s is not None], 0)
