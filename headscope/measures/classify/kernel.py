"""What a head's own habit of looking at a distance explains, without any content.

For word offset r (clipped to -20..20, r != 0)::

    K_h(r) = mean over ordered word pairs (i, j), j - i = r, of A_h[i, j] / pieces(j)

with A_h the word-level attention: mean over the pieces of i, sum over the pieces of j. A head that
only had this habit would attend from word i to the argmax over j != i of K_h(j - i) * pieces(j);
among equals, to the leftmost.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headscope.measures.accumulator import Array, numpy
from headscope.measures.batch import Batch
from headscope.measures.classify.rows import FARTHEST, WORD_OFFSETS, RowMeasure, RowSummary
from headscope.measures.rounding import tied

#: Entries of (sentences, heads, words, words) that exist at a time.
_AT_ONCE = 1 << 18


class Kernel(RowMeasure):
    """Attention by word offset, summed over the first half of a corpus.

    Attributes
    ----------
    sums : array of float, (n_layers, n_heads, offsets)
        Attention per piece of the attended word, by :data:`.rows.WORD_OFFSETS`.
    pairs : array of int, (offsets,)
        Ordered word pairs at each offset.
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.sums = np.zeros((n_layers, n_heads, len(WORD_OFFSETS)))
        self.pairs = np.zeros(len(WORD_OFFSETS), dtype=np.int64)

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        for n_words in batch.first_piece[batch.half == 0].sum(dim=1).tolist():
            self.pairs += _pairs(n_words)
        self.sums += numpy(rows.by_distance.sum(dim=0)).reshape(self.sums.shape)

    def means(self) -> Array:
        """K, (n_layers, n_heads, offsets); 0 at an offset that was never seen."""
        return np.asarray(self.sums / np.maximum(self.pairs, 1))


def _pairs(n_words: int) -> Array:
    """Count the ordered pairs of n words at each offset, far ones together at the ends."""
    distance = np.arange(1, n_words)
    near = np.minimum(distance, FARTHEST)
    counts = np.bincount(near, weights=n_words - distance, minlength=FARTHEST + 1)
    one_side = counts[1:].astype(np.int64)
    return np.concatenate([one_side[::-1], one_side])


def kernel_argmax(kernel: Tensor, batch: Batch) -> Tensor:
    """Where heads with nothing but their kernels K (n_heads, offsets) would look in a batch.

    Returns
    -------
    Tensor, (batch, n_heads, pos), int64
        At first pieces: position of the attended word's first piece; 0 elsewhere.
    """
    # An even kernel, or one that does not tell near from far, has no largest entry of its own.
    kernel = torch.from_numpy(tied(kernel.cpu().numpy()))
    n_words = batch.first_piece.sum(dim=1)
    found = torch.zeros(batch.size[0], kernel.shape[0], batch.size[1], dtype=torch.int64)
    for count in sorted(set(n_words.tolist())):
        rows = torch.nonzero(n_words == count)[:, 0]
        if count < 2:
            continue
        first = torch.nonzero(batch.first_piece[rows])[:, 1].view(len(rows), count)
        looks_at = _looks_at(kernel, batch.pieces[rows].gather(1, first))
        at = first[:, None].expand_as(looks_at)
        found[rows] = found[rows].scatter(2, at, at.gather(2, looks_at))
    return found


def _looks_at(kernel: Tensor, pieces: Tensor) -> Tensor:
    """Return the argmax for sentences of as many words, (sentences, n_heads, words).

    ``kernel`` is (n_heads, offsets), ``pieces`` (sentences, words).
    """
    n_words = pieces.shape[1]
    words = torch.arange(n_words)
    offset = (words - words[:, None]).clamp(-FARTHEST, FARTHEST)  # (query, key)
    # There is no offset 0: offsets to the right stand one place further left.
    index = offset + FARTHEST - (offset > 0).long()
    index.fill_diagonal_(0)
    found = torch.empty(len(pieces), len(kernel), n_words, dtype=torch.int64)
    heads_at_once = max(1, _AT_ONCE // n_words**2)
    for start in range(0, len(kernel), heads_at_once):
        heads = slice(start, start + heads_at_once)
        weights = kernel[heads][:, index]  # (heads, query, key)
        sentences_at_once = max(1, _AT_ONCE // weights.numel())
        for row in range(0, len(pieces), sentences_at_once):
            rows = slice(row, row + sentences_at_once)
            scores = weights * pieces[rows, None, None]
            scores.diagonal(dim1=2, dim2=3).fill_(-1.0)
            found[rows, heads] = scores.max(dim=-1).indices
    return found
