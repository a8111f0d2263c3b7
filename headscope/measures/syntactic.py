"""Syntactic heads: does a head look along the edges of the gold tree?

Word-level attention (summed over the attended word's pieces, averaged over the attending word's,
the word itself excluded). ``dep->head``: one trial per edge, a hit when the dependent's argmax is
its head. ``head->dep``: one trial per (head, relation), a hit when the head's argmax is any of its
dependents with that relation. The baseline is the best fixed word offset on the same trials.

A second control is *uniform* attention. Summing over a word's pieces favours words of many pieces:
attention that is spread evenly, as in a model with random weights, has its word-level argmax on the
longest word of the sentence (any of them, where several are), and wins wherever one end of a
relation is a long string (``list`` in web text). A head that does no better has learnt nothing.

Hits are also summed together with each baseline's own, so that a head can be compared with it trial
by trial although the best offset is known only at the end.

References
----------
Voita et al. 2019, arXiv:1905.09418, section 5.2; Clark et al. 2019, arXiv:1906.04341, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from headscope.measures.accumulator import Accumulator, Array, Keys, numpy
from headscope.measures.batch import Batch, EdgeTrials
from headscope.measures.rows import RowSummary

__all__ = ["Baseline", "Syntactic"]


_BY_OFFSET = ("offset_trials", "both")


@dataclass(frozen=True)
class Baseline:
    """The best fixed offset of one (relation, direction), and each head against it.

    Attributes
    ----------
    relation, direction : str
    trials : int
    offset : int
    offset_hits : int
    hits, both : array of int, (n_layers, n_heads)
        Trials that the head hits, and that head and offset both hit.
    uniform, uniform_squared : float
        Sums over trials of the probability that uniform attention hits, and of its square.
    both_uniform : array of float, (n_layers, n_heads)
        The first of these sums over the trials that the head hits.
    """

    relation: str
    direction: str
    trials: int
    offset: int
    offset_hits: int
    hits: Array
    both: Array
    uniform: float
    uniform_squared: float
    both_uniform: Array


class Syntactic(Accumulator):
    """Hits per head, relation and direction.

    Parameters
    ----------
    n_layers, n_heads : int
    """

    _sums = (
        "trials", "uniform", "uniform_squared", "hits", "both_uniform", "offset_trials", "both",
    )  # fmt: skip

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.relations = Keys()
        self.offsets = Keys()
        self.trials = np.zeros(0, dtype=np.int64)
        self.uniform = np.zeros(0)
        self.uniform_squared = np.zeros(0)
        self.hits = np.zeros((0, n_layers, n_heads), dtype=np.int64)
        self.both_uniform = np.zeros((0, n_layers, n_heads))
        self.offset_trials = np.zeros(0, dtype=np.int64)
        self.both = np.zeros((0, n_layers, n_heads), dtype=np.int64)

    def update(self, layer: int, rows: RowSummary, batch: Batch) -> None:
        """Add one layer of one batch."""
        edges = batch.edges
        if edges is None or not len(edges.relation_key):
            return
        relation = self.relations.indices(edges.relation_names)[numpy(edges.relation_key)]
        offset = self.offsets.indices(edges.offset_names)[numpy(edges.offset_key)]
        self._grow()
        if layer == 0:
            np.add.at(self.trials, relation, 1)
            np.add.at(self.offset_trials, offset, 1)
            np.add.at(self.uniform, relation, numpy(edges.uniform))
            np.add.at(self.uniform_squared, relation, numpy(edges.uniform) ** 2)
        trial_hits, pair_trial_hits = _hits(rows.word_argmax, edges)
        n_heads = trial_hits.shape[1]
        for sums, hits, group, keys in (
            (self.hits, trial_hits, relation, self.relations),
            (self.both_uniform, trial_hits * edges.uniform[:, None], relation, self.relations),
            (self.both, pair_trial_hits, offset, self.offsets),
        ):
            sums[:, layer, :n_heads] += _grouped(hits, group, len(keys))

    def merge(self, other: Self) -> None:
        """Add the sums of another accumulator, whose names may come in another order."""
        relation = self.relations.indices(tuple(other.relations.names))
        offset = self.offsets.indices(tuple(other.offsets.names))
        self._grow()
        for name in self._sums:
            index = offset if name in _BY_OFFSET else relation
            getattr(self, name)[index] += getattr(other, name)

    def baselines(self) -> list[Baseline]:
        """Return every (relation, direction) in alphabetical order, with its best offset.

        Among equally good offsets the shortest wins, then the one to the left.
        """
        best: dict[tuple[str, str], tuple[int, int, int, int]] = {}
        for index, (relation, direction, offset) in enumerate(self.offsets.names):
            rank = (int(self.offset_trials[index]), -abs(offset), -offset, index)
            best[relation, direction] = max(rank, best.get((relation, direction), rank))
        found = []
        for name in sorted(best):
            hits, _, minus_offset, index = best[name]
            k = self.relations.index(name)
            found.append(
                Baseline(
                    *name,
                    trials=int(self.trials[k]),
                    offset=-minus_offset,
                    offset_hits=hits,
                    uniform=float(self.uniform[k]),
                    uniform_squared=float(self.uniform_squared[k]),
                    hits=self.hits[k],
                    both=self.both[index],
                    both_uniform=self.both_uniform[k],
                )
            )
        return found

    def _grow(self) -> None:
        """Make room for names that were just seen for the first time."""
        for name in self._sums:
            keys = self.offsets if name in _BY_OFFSET else self.relations
            array = getattr(self, name)
            missing = len(keys) - len(array)
            if missing:
                more = np.zeros((missing, *array.shape[1:]), dtype=array.dtype)
                setattr(self, name, np.concatenate([array, more]))


def _hits(word_argmax: Tensor, edges: EdgeTrials) -> tuple[Tensor, Tensor]:
    """Hits (trials, n_heads), and for every pair whether its trial is a hit (pairs, n_heads)."""
    # One gather for all edges: (pairs, n_heads)
    pair_hits = (word_argmax[edges.row, :, edges.query] == edges.target[:, None]).long()
    trial_hits = pair_hits.new_zeros(len(edges.relation_key), pair_hits.shape[1])
    trial_hits.index_add_(0, edges.trial, pair_hits)
    return trial_hits, trial_hits[edges.trial]


def _grouped(hits: Tensor, group: Array, n_groups: int) -> Array:
    """Sum hits (items, n_heads) within groups: (n_groups, n_heads)."""
    sums = hits.new_zeros(n_groups, hits.shape[1])
    sums.index_add_(0, torch.from_numpy(group).to(hits.device), hits)
    return numpy(sums)
