"""Syntactic heads: does a head's word-level argmax find the gold tree's neighbour?

Here the trials are counted; ``two_halves.py`` judges heads by the counts.

``dep->head``: one trial per edge, the dependent asks, a hit when its argmax is its head.
``head->dep``: one trial per (head, relation), a hit when the argmax is any dependent with that
relation. Pairs that a user has labelled are edges, too: ``from->to`` and ``to->from`` have one
trial per (word, label), a hit when the argmax is any word that it is paired with.

Everything is counted separately for the two halves of the corpus, so that what is chosen on one can
be confirmed on the other. Counted as well are the hits of piece means, and of baselines that know
nothing of words: every fixed offset, always the first or the last word, evenly spread attention
(Voita et al. 2019, arXiv:1905.09418, section 5.2). One more baseline is in ``kernel.py``.
"""

from __future__ import annotations

import json
from typing import Self

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.classify.rows import (
    RowMeasure,
    RowSummary,
)
from headscope.core.accumulator import Accumulator, Array, Keys, numpy, zeros
from headscope.data.batches import Batch, CrossWords
from headscope.data.edge_trials import EdgeTrials, OffsetName, RelationName

WORDLESS = ("first", "last", "uniform")  # Baselines that :class:`Syntactic` counts by relation.
_BY_OFFSET = ("offset_trials", "both_offset")


class Syntactic(RowMeasure):
    """Hits per head and (half, relation, direction)."""

    def __init__(self, n_layers: int, n_heads: int, *, swapped: bool = False) -> None:
        self._swapped = swapped
        #: (half, relation, direction), and the same with a word offset
        self.relations = Keys[RelationName]()
        self.offsets = Keys[OffsetName]()
        shape = (0, n_layers, n_heads)
        self.trials = np.zeros(0, dtype=np.int64)
        self.uniform_squared = np.zeros(0)
        #: (relations,): sentences, or pairs of texts, that have a trial
        self.texts = np.zeros(0, dtype=np.int64)
        #: (relations, n_layers, n_heads): trials that the head hits, by sum and by mean over the
        #: attended word's pieces
        self.hits, self.mean_hits = zeros(2, *shape, dtype=np.int64)
        #: (relations, 3) and (relations, 3, n_layers, n_heads): of each baseline in WORDLESS the
        #: hits, and those on trials that the head hits too; probabilities of uniform attention
        self.wordless = np.zeros((0, 3))
        self.both_wordless = np.zeros((0, 3, n_layers, n_heads))
        #: (offsets,) and (offsets, n_layers, n_heads): trials that the offset hits, and that head
        #: and offset both hit
        self.offset_trials = np.zeros(0, dtype=np.int64)
        self.both_offset = np.zeros(shape, dtype=np.int64)

    def edges_of(self, batch: Batch | CrossWords) -> EdgeTrials | None:
        """Return the trials that this accumulator counts; None where there are none."""
        edges = batch.swapped if self._swapped else batch.edges
        return edges if edges is not None and len(edges.relation_key) else None

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        self.add(rows.word_argmax, rows.word_argmax_mean, batch)

    def add(self, looks_at: Tensor, by_mean: Tensor, batch: Batch | CrossWords) -> None:
        """Add the words that heads look at, (batch, n_heads, pos), by sums and by piece means."""
        edges = self.edges_of(batch)
        if edges is None:
            return
        # The relation of each trial, and the offset of each pair, as indices into the sums.
        relation = self.relations.indices(edges.relation_names)[numpy(edges.relation_key)]
        offset = self.offsets.indices(edges.offset_names)[numpy(edges.offset_key)]
        self._grow()

        # Count trials and texts; a text counts once for each relation of which it has a trial.
        np.add.at(self.trials, relation, 1)
        row_of_trial = np.zeros(len(relation), dtype=np.int64)
        row_of_trial[numpy(edges.trial)] = numpy(edges.row)
        relations_of_texts = np.unique(np.stack([relation, row_of_trial]), axis=1)[0]
        np.add.at(self.texts, relations_of_texts, 1)

        # Count the hits of the baselines.
        wordless = torch.stack([edges.first, edges.last, edges.uniform], dim=1)  # as WORDLESS
        np.add.at(self.wordless, relation, numpy(wordless))
        np.add.at(self.uniform_squared, relation, numpy(edges.uniform) ** 2)
        np.add.at(self.offset_trials, offset, 1)

        # Count the hits of the heads, and those that they share with baselines.
        hits = trial_hits(looks_at, edges)
        add_grouped(self.hits, hits, relation)
        add_grouped(self.mean_hits, trial_hits(by_mean, edges), relation)
        add_grouped(self.both_wordless, hits[:, None] * wordless[..., None], relation)
        # Every pair of a trial has a different offset, so none is counted twice.
        add_grouped(self.both_offset, hits[edges.trial], offset)

    def merge(self, other: Self) -> None:
        """Add the sums of another accumulator, whose names may stand in another order."""
        relation = self.relations.indices(other.relations.names)
        offset = self.offsets.indices(other.offsets.names)
        self._grow()
        sums = super().state()
        for name, array in Accumulator.state(other).items():
            sums[name][offset if name in _BY_OFFSET else relation] += array

    def state(self) -> dict[str, Array]:
        """Return the sums, and the names of relations and offsets as the bytes of JSON."""
        names = json.dumps([self.relations.names, self.offsets.names]).encode()
        return super().state() | {"names": np.frombuffer(names, dtype=np.uint8)}

    def load_state(self, state: dict[str, Array]) -> None:
        """Continue from a saved :meth:`state`."""
        relations, offsets = json.loads(state["names"].tobytes())
        self.relations = Keys(map(tuple, relations))
        self.offsets = Keys(map(tuple, offsets))
        for name in super().state():
            setattr(self, name, state[name].copy())

    def _grow(self) -> None:
        """Make room for names that were just seen for the first time."""
        for name, array in super().state().items():
            n_names = len(self.offsets if name in _BY_OFFSET else self.relations)
            if n_names > len(array):
                more = np.zeros((n_names - len(array), *array.shape[1:]), dtype=array.dtype)
                setattr(self, name, np.concatenate([array, more]))


def trial_hits(word_argmax: Tensor, edges: EdgeTrials) -> Tensor:
    """Whether each head hits each trial: (trials, n_heads), 0 or 1.

    ``word_argmax`` (batch, n_heads, pos) has the first piece of the word attended to.
    """
    # One gather for all edges: (pairs, n_heads)
    pair_hits = (word_argmax[edges.row, :, edges.query] == edges.target[:, None]).long()
    hits = pair_hits.new_zeros(len(edges.relation_key), pair_hits.shape[1])
    return hits.index_add_(0, edges.trial, pair_hits)


def add_grouped(sums: Array, hits: Tensor, group: Array) -> None:
    """Add hits (items, ..., heads of all layers) to the sums (groups, ..., n_layers, n_heads)."""
    by_group = hits.new_zeros(len(sums), *hits.shape[1:])
    by_group.index_add_(0, torch.from_numpy(group).to(hits.device), hits)
    sums += numpy(by_group).reshape(sums.shape)
