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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.classify.result import Confirmation, SyntacticScore
from headscope.analyses.classify.rows import (
    FARTHEST,
    WORD_OFFSETS,
    RowMeasure,
    RowSummary,
    word_offset_index,
)
from headscope.core.accumulator import Accumulator, Array, Keys, numpy, zeros
from headscope.core.processes import summed
from headscope.core.roles import Thresholds
from headscope.core.rounding import FRACTION, tied
from headscope.data.batches import Batch, CrossWords
from headscope.data.edge_trials import TREE_WAYS, EdgeTrials, OffsetName, RelationName
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import adjust, mcnemar_p, paired_p, wilson

#: Relations that are scored but never make a label: punctuation has a separate role.
NEVER = ("punct", "root")
#: Baselines that the piece-mean accuracy must exceed too; the others are made for sums.
_POSITIONAL = ("offset", "first", "last")
_WORDLESS = ("first", "last", "uniform")  # Baselines that :class:`Syntactic` counts by relation.
_BY_OFFSET = ("offset_trials", "both_offset")
#: Texts with a label's pairs that each half needs: words of one text are no independent evidence.
FEWEST_TEXTS = 8
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
        #: (relations, 3) and (relations, 3, n_layers, n_heads): of each baseline in _WORDLESS the
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
        wordless = torch.stack([edges.first, edges.last, edges.uniform], dim=1)  # as _WORDLESS
        np.add.at(self.trials, relation, 1)
        row_of_trial = np.zeros(len(relation), dtype=np.int64)
        row_of_trial[numpy(edges.trial)] = numpy(edges.row)
        asked = np.unique(np.stack([relation, row_of_trial]), axis=1)
        np.add.at(self.texts, asked[0], 1)
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
            wanted = len(self.offsets if name in _BY_OFFSET else self.relations)
            if wanted > len(array):
                more = np.zeros((wanted - len(array), *array.shape[1:]), dtype=array.dtype)
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
        for n_words in batch.first_piece[batch.half == 0].sum(dim=1).tolist():
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
        at = first[:, None].expand_as(looks_at)
        result[:, heads] = result[:, heads].scatter(2, at, at.gather(2, looks_at))
    return result


def kernel_hits(
    kernel: Array, counted: Sequence[Syntactic], batches: Iterable[Batch]
) -> list[Array]:
    """Count the hits of heads that follow only their kernels, on the trials counted before.

    ``kernel`` (n_layers, n_heads, offsets). Returns hits of all processes, (relations, n_layers,
    n_heads), for each of ``counted``, in the order of its relations after its pass. The kernels are
    known only then: this second pass needs words and trees, not the model.
    """
    hits = [np.zeros_like(part.hits) for part in counted]
    by_head = torch.from_numpy(kernel).flatten(0, 1)
    for read in batches:
        batch = read if read.words is None else read.words
        looks_at = kernel_argmax(by_head, batch)
        for part, part_hits in zip(counted, hits, strict=True):
            if (edges := part.edges_of(batch)) is not None:
                relation = part.relations.indices(edges.relation_names)
                group = relation[numpy(edges.relation_key)]
                _add_grouped(part_hits, _trial_hits(looks_at, edges), group)
    return [numpy(part) for part in summed("what kernels hit", *map(torch.from_numpy, hits))]


@dataclass
class _Counts:
    """One relation and direction on some sentences; hits as (n_layers, n_heads) or one number."""

    trials: int
    hits: Array
    mean_hits: Array  # By piece means
    baselines: Mapping[str, Array | float]  # Their hits
    #: Trials that head and baseline both hit; uniform's are sums of probabilities.
    joint: Mapping[str, Array]
    uniform_squared: float

    def __post_init__(self) -> None:
        n = max(self.trials, 1)
        #: Shares of hits, by sums and by piece means; the 95% Wilson interval of the first
        self.accuracy: Array = self.hits / n
        self.mean_accuracy: Array = self.mean_hits / n
        self.interval = wilson(self.hits, self.trials)
        #: Every baseline's accuracy for every head, (n_layers, n_heads)
        self.rates: dict[str, Array] = {
            name: np.broadcast_to(np.divide(hits, n), self.hits.shape)
            for name, hits in self.baselines.items()
        }

    def at(self, head: tuple[int, int]) -> dict[str, Any]:
        """Return one head's values for the fields that SyntacticScore and Confirmation share."""
        numbers = (self.accuracy, *self.interval)
        return {
            "accuracy": Estimate(*(float(number[head]) for number in numbers)),
            "accuracy_mean": float(self.mean_accuracy[head]),
            "baselines": {name: float(rate[head]) for name, rate in self.rates.items()},
            "trials": self.trials,
        }

    def p_value(self) -> Array:
        """Return the largest p of the paired tests against offset, first, last and uniform."""
        exact = [
            mcnemar_p(self.hits - self.joint[name], self.baselines[name] - self.joint[name])
            for name in _POSITIONAL
        ]
        expected = (float(self.baselines["uniform"]), self.uniform_squared)
        over_uniform = paired_p(self.hits, self.joint["uniform"], *expected, self.trials)
        return np.asarray(np.max([*exact, over_uniform], axis=0))

    def exceeds(self, accuracy: Array, names: Sequence[str], thresholds: Thresholds) -> Array:
        """Return which heads' accuracies exceed all these baselines by the margin."""
        passed = np.ones(accuracy.shape, dtype=bool)
        for baseline in (self.rates[name] for name in names):
            margin = thresholds.syntactic * (baseline if thresholds.syntactic_relative else 1.0)
            passed &= (accuracy - baseline >= margin - FRACTION) & (accuracy > baseline)
        return passed


@dataclass(frozen=True)
class SyntacticTest:
    """All heads on one relation and direction; arrays are (n_layers, n_heads)."""

    relation: str  # As ``nsubj``
    direction: str  # As ``dep->head``
    offset: int  # The best word offset on all sentences; ``overall`` is measured with it
    overall: _Counts  # On all sentences
    chosen: _Counts  # On half A, with its best offset
    held_out: _Counts  # On half B, with the best offset of half A
    selected: Array  # Which heads half A selects
    confirmed: Array  # Which of them half B confirms: the labels
    p_adjusted: Array  # 1 where not selected

    def score(self, head: tuple[int, int]) -> SyntacticScore:
        """Return the score of one head."""
        overall = self.overall.at(head)
        confirmation = None
        if self.selected[head]:
            held_out = self.held_out.at(head)
            names, rates = zip(*held_out["baselines"].items(), strict=True)
            strongest = names[int(tied(list(rates)).argmax())]
            p_adjusted = float(self.p_adjusted[head])
            confirmation = Confirmation(strongest=strongest, p_adjusted=p_adjusted, **held_out)
        return SyntacticScore(
            relation=self.relation,
            direction=self.direction,
            baseline=overall["baselines"]["offset"],
            baseline_offset=self.offset,
            uniform=overall["baselines"]["uniform"],
            selected=confirmation is not None,
            confirmed=confirmation,
            labelled=bool(self.confirmed[head]),
            **overall,
        )


def why_untested(sums: Syntactic, name: tuple[str, str], thresholds: Thresholds) -> str:
    """Say why no head could earn a label of this relation and direction; empty where one could."""
    relation, direction = name
    if relation in NEVER:
        return "scored, but never a label, as in a treebank"
    trials = []
    texts = []
    for half in (0, 1):
        known = sums.relations.known([(half, relation, direction)])
        trials.append(int(sums.trials[known].sum()))
        texts.append(int(sums.texts[known].sum()))
    if direction not in TREE_WAYS and min(texts) < FEWEST_TEXTS:
        return f"fewer than {FEWEST_TEXTS} different texts with such pairs in one half"
    if min(trials) < thresholds.min_trials:
        return f"fewer than {thresholds.min_trials} trials in one half of the texts"
    return ""


def judge_syntactic(
    sums: Syntactic, kernel: Array, exists: Array, thresholds: Thresholds
) -> list[SyntacticTest]:
    """Apply the rule of syntactic labels to every relation and direction, in alphabetical order.

    On half A a (head, relation, direction) is *selected* when its accuracy exceeds every baseline
    by the margin. On half B it is *confirmed* when it does so again (offset and kernel as chosen on
    A), the accuracy of piece means exceeds the positional baselines too, and the paired tests
    against offset, first word, last word and uniform attention are significant: the largest of the
    four p, adjusted over the selected ones alone (Benjamini & Hochberg). Only what is confirmed is
    a label. Relations with too few trials or texts in either half are not tested.

    ``kernel`` are the hits of :func:`kernel_hits` on the same trials; ``exists`` (n_layers,
    n_heads) marks where heads are.
    """

    def best_offset(name: tuple[str, str], halves: Sequence[int]) -> int:
        """Return the word offset that hits most trials; ties: the shortest, then the left one."""
        hits: dict[int, int] = {}
        for (half, *key, offset), count in zip(sums.offsets.names, sums.offset_trials, strict=True):
            if half in halves and tuple(key) == name:
                hits[offset] = hits.get(offset, 0) + int(count)
        return max(hits, key=lambda offset: (hits[offset], -abs(offset), -offset), default=-1)

    def counts(name: tuple[str, str], halves: Sequence[int], offset: int) -> _Counts:
        at = sums.relations.known((half, *name) for half in halves)
        by_offset = sums.offsets.known((half, *name, offset) for half in halves)
        baselines: dict[str, Array | float] = {
            "offset": float(sums.offset_trials[by_offset].sum()),
            **dict(zip(_WORDLESS, sums.wordless[at].sum(axis=0).tolist(), strict=True)),
            "kernel": kernel[at].sum(axis=0),
        }
        both = {"offset": sums.both_offset[by_offset].sum(axis=0)}
        both |= dict(zip(_WORDLESS, sums.both_wordless[at].sum(axis=0), strict=True))
        hits, mean_hits = (part[at].sum(axis=0) for part in (sums.hits, sums.mean_hits))
        squared = float(sums.uniform_squared[at].sum())
        return _Counts(int(sums.trials[at].sum()), hits, mean_hits, baselines, both, squared)

    drafts = []
    selected = []
    for name in sorted({(relation, way) for _, relation, way in sums.relations.names}):
        best = best_offset(name, (0, 1))
        from_a = best_offset(name, (0,))
        parts = (((0, 1), best), ((0,), from_a), ((1,), from_a))
        overall, a, b = (counts(name, halves, offset) for halves, offset in parts)
        drafts.append((name, best, overall, a, b))
        asked = not why_untested(sums, name, thresholds)
        selected.append(exists & asked & a.exceeds(a.accuracy, tuple(a.baselines), thresholds))
    if not drafts:
        return []
    p_adjusted = adjust(np.stack([b.p_value() for *_, b in drafts]), np.stack(selected))
    tests = []
    for (name, best, overall, a, b), selects, p in zip(drafts, selected, p_adjusted, strict=True):
        again = b.exceeds(b.accuracy, tuple(b.baselines), thresholds)
        again &= b.exceeds(b.mean_accuracy, _POSITIONAL, thresholds)
        confirmed = selects & (p <= thresholds.q) & again
        tests.append(SyntacticTest(*name, best, overall, a, b, selects, confirmed, p))
    return tests
