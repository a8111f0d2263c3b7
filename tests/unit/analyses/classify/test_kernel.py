"""The distance kernel and both word-level argmaxes against loops over words."""

import numpy as np
import pytest
import torch
from hand_made import activations, encode

from headscope.analyses.classify.rows import WORD_OFFSETS, RowReducer, RowSummary
from headscope.analyses.classify.syntactic import Kernel, kernel_argmax
from headscope.data.batches import Batch
from headscope.data.files import Sentence


class Keep:
    """Remembers the summary of a layer."""

    def update(self, rows: RowSummary, batch: Batch) -> None:
        self.rows = rows


def naive(batch: Batch, pattern: torch.Tensor, row: int, head: int) -> np.ndarray:
    """Mean over the query's pieces, sum over the key's pieces, (words, words)."""
    first = torch.nonzero(batch.first_piece[row])[:, 0].tolist()
    spans = [range(p, p + int(batch.pieces[row, p])) for p in first]
    return np.array(
        [
            [np.mean([sum(float(pattern[row, head, a, b]) for b in k) for a in q]) for k in spans]
            for q in spans
        ]
    )


@pytest.mark.parametrize("rows_at_once", [1, 4])
def test_word_level_reductions(rows_at_once):
    corpus = [Sentence(tuple("w" * n)) for n in (1, 2, 5, 24, 47, 3)]
    batch = encode(corpus, pieces=lambda i: 1 + (i * 5) % 4)
    torch.manual_seed(0)
    scores = torch.randn(batch.size[0], 3, batch.size[1], batch.size[1], dtype=torch.float64)
    scores = scores.masked_fill(batch.attention_mask[:, None, None, :] == 0, -1e30)
    pattern = torch.softmax(scores, dim=-1)
    keep, kernel = Keep(), Kernel(1, 3)
    reducer = RowReducer(1, 3, lambda *summed: (keep.update(*summed), kernel.update(*summed)))
    reducer.start(batch)
    for start in range(0, batch.size[0], rows_at_once):
        rows = slice(start, min(start + rows_at_once, batch.size[0]))
        for heads in (slice(0, 1), slice(1, 3)):
            reducer.observe(activations(pattern[rows, heads], rows=rows, heads=heads, n_heads=3))
    reducer.finish("encoder", 0)
    sums = {(head, r): [] for head in range(3) for r in WORD_OFFSETS}
    for row in range(batch.size[0]):
        first = torch.nonzero(batch.first_piece[row])[:, 0].tolist()
        pieces = np.array([int(batch.pieces[row, p]) for p in first])
        for head in range(3):
            words = naive(batch, pattern, row, head)
            for i in range(len(words) if len(words) > 1 else 0):
                others = [j for j in range(len(words)) if j != i]
                by_sum = max(others, key=lambda j: words[i, j])
                by_mean = max(others, key=lambda j: words[i, j] / pieces[j])
                assert int(keep.rows.word_argmax[row, head, first[i]]) == first[by_sum]
                assert int(keep.rows.word_argmax_mean[row, head, first[i]]) == first[by_mean]
                if row % 2 == 0:
                    for j in others:
                        r = max(-20, min(20, j - i))
                        sums[head, r].append(words[i, j] / pieces[j])
    for (head, r), values in sums.items():
        at = WORD_OFFSETS.index(r)
        assert int(kernel.pairs[at]) == len(values)
        expected = np.mean(values) if values else 0.0
        assert kernel.means()[0, head, at] == pytest.approx(expected, rel=1e-6)


def test_kernel_argmax_equals_its_definition():
    rng = np.random.default_rng(3)
    corpus = [Sentence(tuple("w" * n)) for n in (1, 2, 3, 25, 50)]
    batch = encode(corpus, pieces=lambda i: 1 + (i * 7) % 3)
    kernel = rng.integers(1, 4, (3, len(WORD_OFFSETS))).astype(float)  # ties
    found = kernel_argmax(torch.from_numpy(kernel), batch)
    for row, sentence in enumerate(corpus):
        first = torch.nonzero(batch.first_piece[row])[:, 0].tolist()
        n = len(sentence.words)
        pieces = [int(batch.pieces[row, p]) for p in first]
        assert pieces == [1 + (i * 7) % 3 for i in range(n)]
        for head in range(3):
            for i in range(n if n > 1 else 0):
                k = {
                    j: kernel[head, WORD_OFFSETS.index(max(-20, min(20, j - i)))] * pieces[j]
                    for j in range(n)
                    if j != i
                }
                best = max(k.values())
                expected = min(j for j in k if k[j] == best)
                assert int(found[row, head, first[i]]) == first[expected]
