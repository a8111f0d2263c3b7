"""A baseline of syntactic heads: what a head hits by its distance kernel, without any content.

A head's *kernel* is its mean attention to a word at each distance. :class:`Kernel` is taken in the
pass over the corpus; when it is known, :func:`kernel_hits` counts the trials that heads would hit
if they followed only their kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.classify.rows import (
    FARTHEST,
    WORD_OFFSETS,
    RowMeasure,
    RowSummary,
    word_offset_index,
)
from headscope.analyses.classify.syntactic import Syntactic, add_grouped, trial_hits
from headscope.core.accumulator import Array, numpy
from headscope.core.processes import summed
from headscope.core.rounding import tied
from headscope.data.batches import Batch, CrossWords

_AT_ONCE = 1 << 18  # Entries of (sentences, heads, words, words) that exist at a time


class Kernel(RowMeasure):
    """Where a head looks by its mean attention at each distance, without any content.

    For word offset r (clipped to -20..20, r != 0), over the first half of a corpus::

        K_h(r) = mean over ordered word pairs (i, j), j - i = r, of A_h[i, j] / pieces(j)

    with A_h the word-level attention: mean over the pieces of i, sum over the pieces of j. A head
    that follows only this attends from word i to the argmax over j != i of
    K_h(j - i) * pieces(j); among equals, to the leftmost.
    """

    def __init__(self, n_layers: int, n_heads: int, n_offsets: int = len(WORD_OFFSETS)) -> None:
        #: (n_layers, n_heads, offsets): attention per piece of the attended word, at the offsets of
        #: WORD_OFFSETS: -20, ..., -1, 1, ..., 20
        self.sums = np.zeros((n_layers, n_heads, n_offsets))
        #: (offsets,): ordered word pairs at each offset, far ones together at the ends
        self.pairs = np.zeros(n_offsets, dtype=np.int64)

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        # A sentence of n words has n - d pairs of words at each distance d, on either side: of 4
        # words 3 pairs at distance 1, 2 at distance 2, 1 at distance 3.
        is_first_half = batch.half == 0
        for n_words in batch.first_piece[is_first_half].sum(dim=1).tolist():
            distance = np.arange(1, n_words)
            clipped = np.minimum(distance, FARTHEST)
            counts = np.bincount(clipped, weights=n_words - distance, minlength=FARTHEST + 1)
            ahead = counts[1:].astype(np.int64)  # at distances 1 to FARTHEST
            self.pairs += np.concatenate([ahead[::-1], ahead])
        self.sums += numpy(rows.by_distance.sum(dim=0)).reshape(self.sums.shape)

    def means(self) -> Array:
        """K, (n_layers, n_heads, offsets); 0 at an offset that was never seen."""
        return np.asarray(self.sums / np.maximum(self.pairs, 1))


def kernel_hits(
    kernel: Array, counted: Sequence[Syntactic], batches: Iterable[Batch]
) -> list[Array]:
    """Count the hits of heads that follow only their kernels, on the trials counted before.

    ``kernel`` (n_layers, n_heads, offsets); ``counted``: the sums whose trials are meant, on the
    sentences' own trees and on others'. Returns for each of them the hits in all processes,
    (relations, n_layers, n_heads), in the order of its relations. Kernels are known only after the
    pass over the corpus: this second pass needs words and trees, not the model.
    """
    hits = [np.zeros_like(sums.hits) for sums in counted]
    by_head = torch.from_numpy(kernel).flatten(0, 1)
    for batch in batches:
        # Of sources and targets the trials are between words, of sentences at first pieces.
        sentences_or_words = batch if batch.words is None else batch.words
        looks_at = kernel_argmax(by_head, sentences_or_words)
        for sums, hits_of_sums in zip(counted, hits, strict=True):
            edges = sums.edges_of(sentences_or_words)
            if edges is not None:
                relation = sums.relations.indices(edges.relation_names)
                group = relation[numpy(edges.relation_key)]
                add_grouped(hits_of_sums, trial_hits(looks_at, edges), group)
    over_processes = summed("what kernels hit", *map(torch.from_numpy, hits))
    return [numpy(total) for total in over_processes]


def kernel_argmax(kernel: Tensor, batch: Batch | CrossWords) -> Tensor:
    """Return where heads that follow only their kernels K (n_heads, offsets) would look.

    Of sentences, (batch, n_heads, pos): at first pieces the attended word's first piece. Of sources
    and targets, (batch, n_heads, target words): source words, with distances from the straight
    line.
    """
    # Entries of K that differ only by rounding are ties, in an even kernel for example.
    kernel = torch.from_numpy(tied(kernel.cpu().numpy()))
    if isinstance(batch, Batch):
        return _argmax_in_sentences(kernel, batch)
    distance_index = batch.near(FARTHEST)  # [batch, target words, source words]
    scores = kernel[:, distance_index].transpose(0, 1) * batch.pieces[:, None, None]
    scores = scores.masked_fill(~batch.inside[:, None], -1.0)  # below every weight
    source_words: Tensor = scores.max(dim=-1).indices
    return source_words


def _argmax_in_sentences(kernel: Tensor, batch: Batch) -> Tensor:
    """Return :func:`kernel_argmax` of sentences."""
    # Positions of the words' first pieces, (batch, words): first_piece [0, 1, 1, 0, 1] ->
    # [1, 2, 4]. Shorter sentences have other positions in the last places, of 0 pieces.
    most_words = max(1, int(batch.first_piece.sum(dim=1).max()))  # none where all are at position 0
    first_pieces_first = batch.first_piece.long().argsort(dim=1, descending=True, stable=True)
    first_piece = first_pieces_first[:, :most_words]
    pieces = batch.pieces.gather(1, first_piece)[:, None, None]

    # The index of every pair's distance in WORD_OFFSETS, [query word, key word]. That of a word to
    # itself is none; the diagonal is taken out below.
    word = torch.arange(most_words)
    step = (word - word[:, None]).clamp(-FARTHEST, FARTHEST)
    offset_index = word_offset_index(step).fill_diagonal_(0)

    # A few heads at a time.
    result = torch.zeros(batch.size[0], len(kernel), batch.size[1], dtype=torch.int64)
    n_at_once = max(1, _AT_ONCE // max(len(first_piece) * most_words**2, 1))
    for start in range(0, len(kernel), n_at_once):
        heads = slice(start, start + n_at_once)
        scores = kernel[heads][:, offset_index] * pieces  # [batch, heads, query word, key word]
        scores.diagonal(dim1=2, dim2=3).fill_(-1.0)
        looks_at = scores.masked_fill_(pieces == 0, -1.0).max(dim=-1).indices
        # From numbers of words to positions of their first pieces.
        positions = first_piece[:, None].expand_as(looks_at)
        result[:, heads] = result[:, heads].scatter(2, positions, positions.gather(2, looks_at))
    return result
