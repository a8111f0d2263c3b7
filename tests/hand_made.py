"""Batches of sentences and chunks of attention made by hand, without a tokenizer or a model."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.core.activations import Activations
from headscope.data.batches import Batch, collate
from headscope.data.sentences import Sentence
from headscope.data.word_pieces import EncodedSentence, placed


def encode(corpus: Sequence[Sentence], pieces: Callable[[int], int] = lambda i: 1) -> Batch:
    """Put special tokens around words of so many pieces each; one batch."""
    encoded = []
    for sentence, half, swapped in placed(corpus):
        counts = [pieces(i) for i in range(len(sentence.words))]
        word_of = np.array([-1, *np.repeat(np.arange(len(counts)), counts), -1])
        first = np.concatenate([[1], 1 + np.cumsum(counts)[:-1]])
        ids = np.arange(len(word_of))
        encoded.append(EncodedSentence(ids, word_of, first, sentence, None, half, swapped))
    return collate(encoded, 0)


def activations(
    pattern: Tensor,
    stack: str = "encoder",
    layer: int = 0,
    examples: slice | None = None,
    heads: slice | None = None,
    n_heads: int | None = None,
    **tensors: Tensor,
) -> Activations:
    """A pattern as an attention site shows it, whole or a chunk; q, k, v and z may be empty."""
    examples = examples or slice(0, len(pattern))
    heads = heads or slice(0, pattern.shape[1])
    all_tensors = {name: torch.empty(0) for name in "qkvz"} | tensors
    return Activations(
        stack,
        layer,
        layer,
        examples,
        heads,
        n_heads or pattern.shape[1],
        pattern=pattern,
        **all_tensors,
    )
