"""Syntactic heads: does a head's word-level argmax find the gold tree's neighbour?

``dep->head``: one trial per edge, the dependent asks, a hit when its argmax is its head.
``head->dep``: one trial per (head, relation), a hit when the argmax is any dependent with that
relation. Everything is counted apart for the two halves of the corpus, so that what is chosen on
one can be confirmed on the other.

Counted beside a head's hits are those of its piece means, and of baselines that know nothing of
words: every fixed offset, always the first or the last word, evenly spread attention.

References
----------
Voita et al. 2019, arXiv:1905.09418, section 5.2.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from torch import Tensor

from headscope.core.processes import summed
from headscope.measures.accumulator import Array, Keys, numpy, zeros
from headscope.measures.batch import Batch, EdgeTrials, OffsetName, RelationName
from headscope.measures.classify.rows import RowMeasure, RowSummary

_BY_OFFSET = ("offset_trials", "both_offset")


class Syntactic(RowMeasure):
    """Hits per head and (half, relation, direction).

    Parameters
    ----------
    swapped : bool
        Score sentences against the trees of others: a control.

    Attributes
    ----------
    relations, offsets : Keys
        (half, relation, direction), and the same with a word offset.
    trials, first, last : array of int, (relations,)
        Trials, and those that the sentence's first or last word would hit.
    uniform, uniform_squared : array of float, (relations,)
        Sums of the probability that uniform attention hits, and of its square.
    hits, mean_hits, both_first, both_last : array of int, (relations, n_layers, n_heads)
        Trials that the head hits, by sum and by mean over the attended word's pieces; those that
        the first or last word hits too.
    both_uniform : array of float, (relations, n_layers, n_heads)
        Uniform's probability, summed over the trials that the head hits.
    offset_trials : array of int, (offsets,)
        Trials that the offset hits.
    both_offset : array of int, (offsets, n_layers, n_heads)
        Trials that head and offset both hit.
    """

    def __init__(self, n_layers: int, n_heads: int, *, swapped: bool = False) -> None:
        self._swapped = swapped
        self.relations, self.offsets = Keys[RelationName](), Keys[OffsetName]()
        places = (0, n_layers, n_heads)
        self.trials, self.first, self.last = zeros(3, 0, dtype=np.int64)
        self.uniform, self.uniform_squared = zeros(2, 0)
        self.hits, self.mean_hits = zeros(2, *places, dtype=np.int64)
        self.both_first, self.both_last = zeros(2, *places, dtype=np.int64)
        self.both_uniform = np.zeros(places)
        self.offset_trials = np.zeros(0, dtype=np.int64)
        self.both_offset = np.zeros(places, dtype=np.int64)

    def edges_of(self, batch: Batch) -> EdgeTrials | None:
        """Return the trials that this accumulator counts; None where there are none."""
        edges = batch.swapped if self._swapped else batch.edges
        return edges if edges is not None and len(edges.relation_key) else None

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        edges = self.edges_of(batch)
        if edges is None:
            return
        relation = self.relations.indices(edges.relation_names)[numpy(edges.relation_key)]
        offset = self.offsets.indices(edges.offset_names)[numpy(edges.offset_key)]
        self._grow()
        self._count_trials(edges, relation, offset)
        hits = trial_hits(rows.word_argmax, edges)
        for sums, counted in (
            (self.hits, hits),
            (self.mean_hits, trial_hits(rows.word_argmax_mean, edges)),
            (self.both_first, hits * edges.first[:, None]),
            (self.both_last, hits * edges.last[:, None]),
            (self.both_uniform, hits * edges.uniform[:, None]),
        ):
            sums += grouped(counted, relation, len(self.relations)).reshape(sums.shape)
        # Every pair of a trial has an offset of its own, so none is counted twice.
        by_pair = grouped(hits[edges.trial], offset, len(self.offsets))
        self.both_offset += by_pair.reshape(self.both_offset.shape)

    def _count_trials(self, edges: EdgeTrials, relation: Array, offset: Array) -> None:
        """Count what does not depend on heads."""
        uniform = numpy(edges.uniform)
        np.add.at(self.trials, relation, 1)
        np.add.at(self.first, relation, numpy(edges.first))
        np.add.at(self.last, relation, numpy(edges.last))
        np.add.at(self.uniform, relation, uniform)
        np.add.at(self.uniform_squared, relation, uniform**2)
        np.add.at(self.offset_trials, offset, 1)

    def merge(self, other: Self) -> None:
        """Add the sums of another accumulator, whose names may come in another order."""
        relation = self.relations.indices(other.relations.names)
        offset = self.offsets.indices(other.offsets.names)
        self._grow()
        mine = self.state()
        for name, array in other.state().items():
            mine[name][offset if name in _BY_OFFSET else relation] += array

    def _grow(self) -> None:
        """Make room for names that were just seen for the first time."""
        for name, array in self.state().items():
            wanted = len(self.offsets if name in _BY_OFFSET else self.relations)
            if wanted > len(array):
                more = np.zeros((wanted - len(array), *array.shape[1:]), dtype=array.dtype)
                setattr(self, name, np.concatenate([array, more]))


class KernelHits:
    """Hits of heads that have nothing but their distance kernels, on the trials of ``counted``.

    ``hits`` (relations, n_layers, n_heads) are in the order of its relations after its pass.
    """

    def __init__(self, counted: Syntactic) -> None:
        self._counted = counted
        self.hits = np.zeros_like(counted.hits)

    def update(self, looks_at: Tensor, batch: Batch) -> None:
        """Add one batch; ``looks_at`` as :func:`.kernel.kernel_argmax` gives it."""
        edges = self._counted.edges_of(batch)
        if edges is None:
            return
        relations = self._counted.relations
        relation = relations.indices(edges.relation_names)[numpy(edges.relation_key)]
        hits = grouped(trial_hits(looks_at, edges), relation, len(relations))
        self.hits += hits.reshape(self.hits.shape)

    def add_up(self, what: str) -> None:
        """Add the hits of all processes that share the run; ``what`` says of what they are."""
        (total,) = summed(what, torch.from_numpy(self.hits))
        self.hits = numpy(total)


def trial_hits(word_argmax: Tensor, edges: EdgeTrials) -> Tensor:
    """Whether each head hits each trial: (trials, n_heads), 0 or 1.

    ``word_argmax`` (batch, n_heads, pos) has the first piece of the word attended to.
    """
    # One gather for all edges: (pairs, n_heads)
    pair_hits = (word_argmax[edges.row, :, edges.query] == edges.target[:, None]).long()
    hits = pair_hits.new_zeros(len(edges.relation_key), pair_hits.shape[1])
    return hits.index_add_(0, edges.trial, pair_hits)


def grouped(hits: Tensor, group: Array, n_groups: int) -> Array:
    """Sum hits (items, n_heads) within groups: (n_groups, n_heads)."""
    sums = hits.new_zeros(n_groups, hits.shape[1])
    sums.index_add_(0, torch.from_numpy(group).to(hits.device), hits)
    return numpy(sums)
