"""Positional heads: how often does a head look at the token a fixed step away?

For an offset r: ``rate[r]`` = hits / queries over content queries i whose target i + r is a content
token of the same sentence; a hit when the largest content weight of row i lies at i + r.
``mass[r]`` = mean of P[i, i + r] over content queries whose target lies inside the sequence,
special tokens included as targets. Under a causal mask no query has a target to its right.

References
----------
Voita et al. 2019, arXiv:1905.09418, section 5.1 (label at 0.90).
"""

from __future__ import annotations

import numpy as np
import torch

from headscope.measures.accumulator import Array, numpy, zeros
from headscope.measures.batch import Batch
from headscope.measures.classify.rows import OFFSETS, RowMeasure, RowSummary
from headscope.measures.statistics import ratio

#: One step beyond the farthest offset that is scored.
_FAR = max(OFFSETS) + 1


class Positional(RowMeasure):
    """Hits and mass by relative position.

    Attributes
    ----------
    hits : array of int, (n_layers, n_heads, offsets)
        Queries whose largest content weight lies at the offset.
    mass : array of float, (n_layers, n_heads, offsets)
        Sum of the weights at the offset.
    queries, mass_queries : array of int, (offsets,)
        Queries that can hit, and that have a key there; the same for every head.
    chance : array of float, ()
        Sum over content queries of 1 / (content tokens that the query sees).
    content : array of int, ()
        Content queries.
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.hits = np.zeros((n_layers, n_heads, len(OFFSETS)), dtype=np.int64)
        self.mass = np.zeros((n_layers, n_heads, len(OFFSETS)))
        self.queries, self.mass_queries = zeros(2, len(OFFSETS), dtype=np.int64)
        self.chance = np.zeros(())
        self.content = np.zeros((), dtype=np.int64)

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        self._count_queries(batch)
        position = torch.arange(batch.size[1], device=rows.argmax.device)
        step = rows.argmax - position  # (batch, heads, pos)
        by_head = step.transpose(0, 1)[:, batch.content]  # (heads, content tokens)
        # One bin for each step from -FAR to FAR, what lies beyond in the last ones.
        n_bins = 2 * _FAR + 1
        head = torch.arange(len(by_head), device=step.device)[:, None]
        bins = by_head.clamp(-_FAR, _FAR) + _FAR + head * n_bins
        counts = torch.bincount(bins.flatten(), minlength=len(by_head) * n_bins)
        hits = counts.view(len(by_head), n_bins)[:, [_FAR + r for r in OFFSETS]]
        self.hits += numpy(hits).reshape(self.hits.shape)
        self.mass += numpy(rows.band.sum(dim=0)).reshape(self.mass.shape)

    def _count_queries(self, batch: Batch) -> None:
        content, real = numpy(batch.content), numpy(batch.attention_mask).astype(bool)
        for i, r in enumerate(OFFSETS):
            if batch.causal and r > 0:
                continue
            self.queries[i] += _pairs(content, content, r)
            self.mass_queries[i] += _pairs(content, real, r)
        per_sentence = content.sum(axis=1)
        self.content += per_sentence.sum()
        if batch.causal:
            place = np.arange(1, int(per_sentence.max(initial=0)) + 1)
            self.chance += float(sum((1 / place[:n]).sum() for n in per_sentence))
        else:
            self.chance += float((per_sentence > 0).sum())

    def rates(self) -> Array:
        """Hit rates, (n_layers, n_heads, offsets); NaN where there is no query."""
        return ratio(self.hits, self.queries)

    def masses(self) -> Array:
        """Mean mass, (n_layers, n_heads, offsets); NaN where there is no query."""
        return ratio(self.mass, self.mass_queries)


def _pairs(query: Array, target: Array, r: int) -> int:
    """Count positions i with ``query[i]`` and ``target[i + r]``."""
    n = query.shape[1]
    if abs(r) >= n:
        return 0
    if r > 0:
        return int((query[:, : n - r] & target[:, r:]).sum())
    return int((query[:, -r:] & target[:, : n + r]).sum())
