"""Syntactic heads: does a head's word-level argmax find the gold tree's neighbour?

``dep->head``: one trial per edge, the dependent asks, a hit when its argmax is its head.
``head->dep``: one trial per (head, relation), a hit when the argmax is any dependent with that
relation. Pairs that a user has labelled are edges, too: ``from->to`` and ``to->from`` have one
trial per (word, label), a hit when the argmax is any word that it is paired with.

Everything is counted separately for the two halves of the corpus, so that what is chosen on one can
be confirmed on the other. Counted as well are the hits of piece means, and of baselines that know
nothing of words: every fixed offset, always the first or the last word, evenly spread attention
(Voita et al. 2019, arXiv:1905.09418, section 5.2).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Self

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
from headscope.core.accumulator import Accumulator, Array, Keys, numpy, zeros
from headscope.core.processes import summed
from headscope.core.rounding import tied
from headscope.data.batches import Batch, CrossWords
from headscope.data.edge_trials import EdgeTrials, OffsetName, RelationName

WORDLESS = ("first", "last", "uniform")  # Baselines that :class:`Syntactic` counts by relation.
_BY_OFFSET = ("offset_trials", "both_offset")
_AT_ONCE = 1 << 18  # Entries of (sentences, heads, words, words) that exist at a time


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
        relation = self.relations.indices(edges.relation_names)[numpy(edges.relation_key)]
        offset = self.offsets.indices(edges.offset_names)[numpy(edges.offset_key)]
        self._grow()
        wordless = torch.stack([edges.first, edges.last, edges.uniform], dim=1)  # as WORDLESS
        np.add.at(self.trials, relation, 1)
        row_of_trial = np.zeros(len(relation), dtype=np.int64)
        row_of_trial[numpy(edges.trial)] = numpy(edges.row)
        # A text counts once for each relation of which it has a trial.
        relations_of_texts = np.unique(np.stack([relation, row_of_trial]), axis=1)[0]
        np.add.at(self.texts, relations_of_texts, 1)
        np.add.at(self.wordless, relation, numpy(wordless))
        np.add.at(self.uniform_squared, relation, numpy(edges.uniform) ** 2)
        np.add.at(self.offset_trials, offset, 1)
        hits = _trial_hits(looks_at, edges)
        _add_grouped(self.hits, hits, relation)
        _add_grouped(self.mean_hits, _trial_hits(by_mean, edges), relation)
        _add_grouped(self.both_wordless, hits[:, None] * wordless[..., None], relation)
        # Every pair of a trial has a different offset, so none is counted twice.
        _add_grouped(self.both_offset, hits[edges.trial], offset)

    def merge(self, other: Self) -> None:
        """Add the sums of another accumulator, whose names may come in another order."""
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


def _trial_hits(word_argmax: Tensor, edges: EdgeTrials) -> Tensor:
    """Whether each head hits each trial: (trials, n_heads), 0 or 1.

    ``word_argmax`` (batch, n_heads, pos) has the first piece of the word attended to.
    """
    # One gather for all edges: (pairs, n_heads)
    pair_hits = (word_argmax[edges.row, :, edges.query] == edges.target[:, None]).long()
    hits = pair_hits.new_zeros(len(edges.relation_key), pair_hits.shape[1])
    return hits.index_add_(0, edges.trial, pair_hits)


def _add_grouped(sums: Array, hits: Tensor, group: Array) -> None:
    """Add hits (items, ..., heads of all layers) to the sums (groups, ..., n_layers, n_heads)."""
    by_group = hits.new_zeros(len(sums), *hits.shape[1:])
    by_group.index_add_(0, torch.from_numpy(group).to(hits.device), hits)
    sums += numpy(by_group).reshape(sums.shape)


class Kernel(RowMeasure):
    """Baseline: where a head looks by its mean attention at each distance, without any content.

    For word offset r (clipped to -20..20, r != 0), over the first half of a corpus::

        K_h(r) = mean over ordered word pairs (i, j), j - i = r, of A_h[i, j] / pieces(j)

    with A_h the word-level attention: mean over the pieces of i, sum over the pieces of j. A head
    that follows only this attends from word i to the argmax over j != i of
    K_h(j - i) * pieces(j); among equals, to the leftmost.
    """

    def __init__(self, n_layers: int, n_heads: int, n_offsets: int = len(WORD_OFFSETS)) -> None:
        #: (n_layers, n_heads, offsets): attention per piece of the attended word, by
        #: :data:`.rows.WORD_OFFSETS`
        self.sums = np.zeros((n_layers, n_heads, n_offsets))
        #: (offsets,): ordered word pairs at each offset, far ones together at the ends
        self.pairs = np.zeros(n_offsets, dtype=np.int64)

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        is_first_half = batch.half == 0
        for n_words in batch.first_piece[is_first_half].sum(dim=1).tolist():
            distance = np.arange(1, n_words)
            near = np.minimum(distance, FARTHEST)
            counts = np.bincount(near, weights=n_words - distance, minlength=FARTHEST + 1)
            one_side = counts[1:].astype(np.int64)
            self.pairs += np.concatenate([one_side[::-1], one_side])
        self.sums += numpy(rows.by_distance.sum(dim=0)).reshape(self.sums.shape)

    def means(self) -> Array:
        """K, (n_layers, n_heads, offsets); 0 at an offset that was never seen."""
        return np.asarray(self.sums / np.maximum(self.pairs, 1))


def kernel_argmax(kernel: Tensor, batch: Batch | CrossWords) -> Tensor:
    """Return where heads that follow only their kernels K (n_heads, offsets) would look.

    Of sentences, (batch, n_heads, pos): at first pieces the attended word's first piece. Of sources
    and targets, (batch, n_heads, target words): source words, with distances from the straight
    line.
    """
    # Entries of K that differ only by rounding are ties, in an even kernel for example.
    kernel = torch.from_numpy(tied(kernel.cpu().numpy()))
    if isinstance(batch, CrossWords):
        scores = kernel[:, batch.near(FARTHEST)].transpose(0, 1) * batch.pieces[:, None, None]
        source_words: Tensor = scores.masked_fill(~batch.inside[:, None], -1.0).max(dim=-1).indices
        return source_words
    # Positions of first pieces, of which shorter sentences have none in the last places.
    count = int(batch.first_piece.sum(dim=1).max())
    first = batch.first_piece.long().argsort(dim=1, descending=True, stable=True)[:, :count]
    pieces = batch.pieces.gather(1, first)[:, None, None]
    words = torch.arange(count)
    step = (words - words[:, None]).clamp(-FARTHEST, FARTHEST)  # (query, key)
    index = word_offset_index(step).fill_diagonal_(0)
    result = torch.zeros(batch.size[0], len(kernel), batch.size[1], dtype=torch.int64)
    at_once = max(1, _AT_ONCE // max(len(first) * count**2, 1))
    for heads in (slice(start, start + at_once) for start in range(0, len(kernel), at_once)):
        scores = kernel[heads][:, index] * pieces  # (batch, heads, query, key)
        scores.diagonal(dim1=2, dim2=3).fill_(-1.0)
        looks_at = scores.masked_fill_(pieces == 0, -1.0).max(dim=-1).indices
        queries = first[:, None].expand_as(looks_at)
        result[:, heads] = result[:, heads].scatter(2, queries, queries.gather(2, looks_at))
    return result


def kernel_hits(
    kernel: Array, counted: Sequence[Syntactic], batches: Iterable[Batch]
) -> list[Array]:
    """Count the hits of heads that follow only their kernels, on the trials counted before.

    ``kernel`` (n_layers, n_heads, offsets). Returns hits of all processes, (relations, n_layers,
    n_heads), for each of ``counted``, in the order of its relations after its pass. The kernels are
    known only then: this second pass needs words and trees, not the model.
    """
    hits = [np.zeros_like(sums.hits) for sums in counted]
    by_head = torch.from_numpy(kernel).flatten(0, 1)
    for read in batches:
        batch = read if read.words is None else read.words
        looks_at = kernel_argmax(by_head, batch)
        for sums, hits_of_sums in zip(counted, hits, strict=True):
            edges = sums.edges_of(batch)
            if edges is not None:
                relation = sums.relations.indices(edges.relation_names)
                group = relation[numpy(edges.relation_key)]
                _add_grouped(hits_of_sums, _trial_hits(looks_at, edges), group)
    over_processes = summed("what kernels hit", *map(torch.from_numpy, hits))
    return [numpy(total) for total in over_processes]
