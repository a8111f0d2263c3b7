"""Syntactic heads: does the word that a head looks at most stand next to the query in a gold tree?

Here the trials are counted; ``two_halves.py`` judges heads by the counts. "Head" without more is an
attention head; in ``dep->head`` it is the governor in a tree::

    dep->head  one trial for each edge: the dependent asks, its governor is a hit
    head->dep  one trial for each (governor, relation): any dependent with that relation is a hit

In ``the old cat saw``, amod ``dep->head`` asks from ``old`` for ``cat``, and ``head->dep`` from
``cat`` for ``old``. Pairs that a user has labelled are edges, too: ``from->to`` and ``to->from``
have one trial for each (word, label), and any word that it is paired with is a hit.

Everything is counted separately for the two halves of the corpus, so that what is chosen on one can
be confirmed on the other. Counted as well are the hits of piece means, and of baselines that know
nothing of words: every fixed offset, always the first or the last word, evenly spread attention
(Voita et al. 2019, arXiv:1905.09418, section 5.2). One more baseline is in ``kernel.py``.

:class:`Syntactic` holds the sums. A batch brings its trials as :class:`EdgeTrials`: a trial has a
query word and one or more *pairs*, one for each word that would be a hit. ``trial`` maps pairs to
trials; ``relation_key`` and ``offset_key`` are indices into names.
"""

from __future__ import annotations

import json
from typing import Self

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.classify.rows import RowMeasure, RowSummary
from headscope.core.accumulator import Accumulator, Array, Keys, numpy, zeros
from headscope.data.batches import Batch, CrossWords
from headscope.data.edge_trials import EdgeTrials, OffsetName, RelationName

WORDLESS = ("first", "last", "uniform")  # Baselines that :class:`Syntactic` counts by relation.
_BY_OFFSET = ("offset_trials", "both_offset")  # Sums by offset; all others are by relation.


class Syntactic(RowMeasure):
    """Hits per head and (half, relation, direction).

    Its arrays are the sums, as of every :class:`Accumulator`, which saves and merges them by name;
    their first axis grows with the relations or offsets that are seen.
    """

    def __init__(self, n_layers: int, n_heads: int, *, swapped: bool = False) -> None:
        """``swapped``: score each sentence on the tree of another one, as a control."""
        self._swapped = swapped
        #: Names with their index in the sums: (half, relation, direction) as (0, nsubj, dep->head),
        #: and the same with a word offset, the distance from the query word to a word of a pair
        self.relations = Keys[RelationName]()
        self.offsets = Keys[OffsetName]()
        shape = (0, n_layers, n_heads)
        #: (relations,): trials, and over them the sum of uniform attention's squared probability
        self.trials = np.zeros(0, dtype=np.int64)
        self.uniform_squared = np.zeros(0)
        #: (relations,): sentences, or pairs of texts, that have a trial
        self.texts = np.zeros(0, dtype=np.int64)
        #: (relations, n_layers, n_heads): trials that the head hits, by sum and by mean over the
        #: attended word's pieces
        self.hits, self.mean_hits = zeros(2, *shape, dtype=np.int64)
        #: (relations, 3) and (relations, 3, n_layers, n_heads): the hits of each baseline in
        #: WORDLESS, and its hits on trials that the head hits too; for ``uniform``, which may look
        #: at any of several words, sums of the probability of a hit
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
        """Add the words that heads look at, by sums over a word's pieces and by their mean.

        Both are (batch, n_heads, pos), set at words' first pieces.
        """
        edges = self.edges_of(batch)
        if edges is None:
            return
        # The relation of each trial, and the offset of each pair, as indices into the sums.
        relation = self.relations.indices(edges.relation_names)[numpy(edges.relation_key)]
        offset = self.offsets.indices(edges.offset_names)[numpy(edges.offset_key)]
        self._grow()

        # Count trials and texts; a text counts once for each relation of which it has a trial.
        np.add.at(self.trials, relation, 1)  # not +=, which counts an index only once
        text_of_trial = np.zeros(len(relation), dtype=np.int64)
        text_of_trial[numpy(edges.trial)] = numpy(edges.row)
        relations_of_texts, _ = np.unique(np.stack([relation, text_of_trial]), axis=1)
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
        sums = super().state()  # without the names, which :meth:`state` adds
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

    ``word_argmax`` (batch, n_heads, pos) has the first piece of the word attended to. A trial is
    hit if one of its pairs is: pairs hit [0, 1, 1] of trials [0, 0, 1] -> [1, 1].
    """
    looks_at = word_argmax[edges.row, :, edges.query]  # [pairs, n_heads]
    pair_hits = (looks_at == edges.target[:, None]).long()
    hits = pair_hits.new_zeros(len(edges.relation_key), pair_hits.shape[1])
    return hits.index_add_(0, edges.trial, pair_hits)


def add_grouped(sums: Array, hits: Tensor, group: Array) -> None:
    """Add hits (items, ..., heads of all layers) to the sums (groups, ..., n_layers, n_heads).

    ``group`` (items,) is each item's index in the sums.
    """
    by_group = hits.new_zeros(len(sums), *hits.shape[1:])
    by_group.index_add_(0, torch.from_numpy(group).to(hits.device), hits)
    sums += numpy(by_group).reshape(sums.shape)
