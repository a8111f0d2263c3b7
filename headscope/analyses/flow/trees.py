"""Trees in the attention: unlabelled attachment of the largest tree of each head to gold trees.

Every tree has the gold root. A *candidate* is a head in one of two directions: ``dep->head`` (a
dependent attends to its head) or ``head->dep``. Heads and directions are chosen on one half of a
corpus and measured on the other.

References
----------
Raganato & Tiedemann 2018, BlackboxNLP: the spanning tree from one head's attention, the root given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headscope.analyses.flow.graph import Clustered
from headscope.core.accumulator import Array, numpy
from headscope.core.widest import widest, widest_type
from headscope.data.files import ROOT, Sentence

DIRECTIONS = ("dep->head", "head->dep")
#: Trees that need no attention; ``offset`` attaches words at the best distance of OFFSETS.
BASELINES = ("previous", "next", "offset", "root", "random")
OFFSETS = tuple(r for r in range(-5, 6) if r != 0)
SENTENCES = 256  # Sentences, about, that heads are chosen on; their attention is kept in memory.
TRIED = 16  # Candidates that may be combined: those whose own trees are best.
MOST = 8  # Heads that are added up, at most.


@dataclass(frozen=True)
class GoldTrees:
    """Gold trees of sentences of two words or more, padded to the longest."""

    heads: Tensor  # (sentences, words): head of each word, ROOT, or NO_HEAD where it is not known
    sizes: Tensor  # (sentences,): words of each
    #: (2, sentences, words): words that count, those with a head; and without punctuation.
    scored: Tensor

    @classmethod
    def of(cls, sentences: Sequence[Sentence], device: torch.device | str = "cpu") -> GoldTrees:
        """Lay out the trees of some sentences."""
        heads = pad_sequence([torch.tensor(s.heads) for s in sentences], True, 0)
        names = [s.relations or ("",) * len(s.words) for s in sentences]  # relations may be unknown
        marks = [torch.tensor([name == "punct" for name in of]) for of in names]
        sizes = torch.tensor([len(s.words) for s in sentences])
        scored = (heads >= 0) & (torch.arange(heads.shape[1]) < sizes[:, None])
        scored = torch.stack([scored, scored & ~pad_sequence(marks, True, True)])
        return cls(heads.to(device), sizes.to(device), scored.to(device))

    @property
    def root(self) -> Tensor:
        """The word without a head, (sentences,)."""
        return (self.heads == ROOT).long().argmax(1)

    def largest(self, scores: Tensor) -> Tensor:
        """Return the trees of largest total score that have the gold roots.

        Shapes: ``scores`` (sentences, trees, words, words); returns (sentences, trees, words).
        """
        n_trees = scores.shape[1]
        root, sizes = (part.repeat_interleave(n_trees) for part in (self.root, self.sizes))
        return largest_trees(scores.flatten(0, 1), root, sizes).view(scores.shape[:3])

    def hits(self, trees: Tensor) -> Array:
        """Count words with the right head in (sentences, trees, words): (sentences, 2, trees)."""
        right = trees == self.heads[:, None]
        return numpy(torch.einsum("sgw,nsw->sng", right.float(), self.scored.float()))


def candidates(graph: Tensor) -> Tensor:
    """Return every head's scores in both directions, (sentences, 2 * n_heads, words, words)."""
    return torch.cat([graph.mT, graph], dim=1)


def simple_trees(gold: GoldTrees) -> dict[str, Tensor]:
    """Return baseline trees, which use only the root: (sentences, words) each, by name.

    ``previous`` and ``next`` attach every word to its neighbour (right- and left-branching chains),
    ``offset r`` to the word r positions away, ``root`` to the root; where there is no such word, to
    the root.
    """
    root, position = gold.root[:, None], torch.arange(gold.heads.shape[1], device=gold.heads.device)
    trees = {"root": root.expand_as(gold.heads)}
    for r in OFFSETS:
        target = (position + r).expand_as(gold.heads)
        inside = (target >= 0) & (target < gold.sizes[:, None])
        trees[f"offset {r:+d}"] = torch.where(inside, target, root)
    trees["previous"], trees["next"] = trees["offset -1"], trees["offset +1"]
    return trees


class TreeCounts:
    """Hits of some trees, sentence by sentence."""

    def __init__(self) -> None:
        self.words: list[Array] = []
        self.hits: dict[str, list[Array]] = {}

    def update(self, gold: GoldTrees, trees: dict[str, Tensor]) -> None:
        """Add sentences and their trees: (sentences, trees, words) or (sentences, words)."""
        self.words += list(numpy(gold.scored.sum(-1).T))
        for name, heads in trees.items():
            heads = heads[:, None] if heads.dim() == 2 else heads
            self.hits.setdefault(name, []).extend(gold.hits(heads))

    def attachment(self, name: str, *, punctuation: bool = True) -> Clustered:
        """Return the unlabelled attachment score of every tree of that name."""
        side = 0 if punctuation else 1
        hits = np.stack(self.hits[name])[:, side]
        return Clustered.ratio(hits, np.stack(self.words)[:, side, None])

    def total(self, name: str) -> Array:
        """Return how many words each tree of that name attaches rightly, punctuation included."""
        return np.asarray(np.stack(self.hits[name])[:, 0].sum(0))


class TreeSearch:
    """Counts the trees of every head, and of what :meth:`choose` chooses."""

    chosen: tuple[int, ...]  # Candidates whose attention is added up.

    def __init__(self, seed: int, sentences: int = 0, *, every: bool = True) -> None:
        self._every = every  # Whether each head is measured on the second half too.
        self._share = SENTENCES / max(SENTENCES, sentences)
        self._generator = torch.Generator().manual_seed(seed)
        self._chosen_on: list[tuple[GoldTrees, Tensor]] = []  # Trees with the attention.
        self.first, self.counts, self.swapped = TreeCounts(), TreeCounts(), TreeCounts()
        self.best, self.chosen, self.offset = -1, (), ""

    def update(
        self, graph: Tensor, gold: GoldTrees, swapped: tuple[Sequence[int], GoldTrees] | None = None
    ) -> None:
        """Add sentences with the attention between their words.

        ``swapped`` has some rows with other trees for them. Shapes: ``graph`` (sentences, n_heads,
        words, words), padded as ``gold``.
        """
        random = graph.new_zeros(len(graph), 1, *graph.shape[2:])
        taken = torch.zeros(len(graph), dtype=torch.bool)
        sizes = gold.sizes.cpu()
        for n in dict.fromkeys(sizes.tolist()):  # sentences of one length are drawn together
            rows = sizes == n
            drawn = torch.rand(int(rows.sum()), 1, n, n, generator=self._generator)
            random[rows, :, :n, :n] = drawn.to(graph)
            if not self.chosen:
                # Sentences come by length: the first ones would be short.
                taken[rows] = torch.rand(len(drawn), generator=self._generator) < self._share
        scores = {"random": random, **self._chosen_scores(graph)}
        if self._every or not self.chosen:
            scores["heads"] = candidates(graph)
        heads = gold.largest(torch.cat([*scores.values()], 1))
        parts = torch.split(heads, [part.shape[1] for part in scores.values()], dim=1)
        trees = simple_trees(gold) | dict(zip(scores, parts, strict=True))
        (self.counts if self.chosen else self.first).update(gold, trees)
        if self.chosen and swapped is not None:
            rows, others = swapped
            n = others.heads.shape[1]
            of_rows = self._chosen_scores(graph[rows, :, :n, :n])
            self.swapped.update(others, {name: others.largest(of_rows[name]) for name in of_rows})
        elif taken.any():
            some = taken.nonzero()[:, 0].to(graph.device)
            of_some = GoldTrees(gold.heads[some], gold.sizes[some], gold.scored[:, some])
            self._chosen_on.append((of_some, graph[some]))

    def _chosen_scores(self, graph: Tensor) -> dict[str, Tensor]:
        if not self.chosen:
            return {}
        return {"best": summed(graph, (self.best,)), "combination": summed(graph, self.chosen)}

    def choose(self) -> None:
        """Choose the best head, combination and distance on what has been seen so far."""
        if self.first.words:
            hits = self.first.total("heads")
            self.best, self.chosen = int(hits.argmax()), choose_heads(self._chosen_on, hits)
            names = [f"offset {r:+d}" for r in OFFSETS]
            self.offset = max(names, key=lambda name: float(self.first.total(name)[0]))
            self._chosen_on.clear()

    def baseline(self, name: str, *, punctuation: bool = True) -> Clustered:
        """Return the attachment of one of :data:`BASELINES` on the second half."""
        name = self.offset if name == "offset" else name
        return self.counts.attachment(name, punctuation=punctuation)

    @property
    def strongest(self) -> str:
        """The baseline with most words attached rightly on the second half."""
        return max(BASELINES, key=lambda name: float(self.baseline(name).value[0]))


def summed(graph: Tensor, chosen: Sequence[int]) -> Tensor:
    """Add up the scores of some candidates: (sentences, 1, words, words)."""
    n_heads = graph.shape[1]
    parts = [graph[:, c].mT if c < n_heads else graph[:, c - n_heads] for c in chosen]
    total: Tensor = sum(parts[1:], start=parts[0])
    return total[:, None]


def choose_heads(sentences: Sequence[tuple[GoldTrees, Tensor]], hits: Array) -> tuple[int, ...]:
    """Add candidates one by one, always the one that helps most, until none helps.

    Shapes: each part's attention (sentences, n_heads, words, words), ``hits`` (candidates,).
    """
    order = sorted(range(len(hits)), key=lambda c: (-hits[c], c))[:TRIED]
    parts = [(gold, widest(candidates(graph)[:, order])) for gold, graph in sentences]
    sums = [torch.zeros_like(scores[:, :1]) for _, scores in parts]
    chosen: list[int] = []
    best = -1.0
    while len(chosen) < min(MOST, len(order)):
        gained = np.zeros(len(order))
        for (gold, scores), total in zip(parts, sums, strict=True):
            gained += gold.hits(gold.largest(scores + total))[:, 0].sum(0)
        gained[chosen] = -1.0
        new = int(gained.argmax())
        if gained[new] <= best:
            break
        best = float(gained[new])
        chosen.append(new)
        for (_, scores), total in zip(parts, sums, strict=True):
            total += scores[:, new : new + 1]
    return tuple(order[i] for i in chosen)


# --- Chu & Liu 1965, Edmonds 1967: many graphs at once ------------------------------------------

_NEVER = -torch.inf
_ENTRIES = 1 << 19  # Scores that are worked on at a time: they stay in the processor's cache.


def largest_trees(scores: Tensor, root: Tensor, sizes: Tensor) -> Tensor:
    """Return the head of every word in the tree of largest total score, -1 at the root.

    What lies beyond a graph's size is attached to the root, which changes no other edge. Shapes:
    ``scores`` (graphs, n, n), ``root`` and ``sizes`` (graphs,); returns (graphs, n).
    """
    at_once = max(1, _ENTRIES // max(1, scores.shape[1] ** 2))
    parts = zip(*(torch.split(part, at_once) for part in (scores, root, sizes)), strict=True)
    heads = [_largest(*part) for part in parts]
    return torch.cat(heads) if heads else root.new_zeros(scores.shape[:2])


def _largest(scores: Tensor, root: Tensor, sizes: Tensor) -> Tensor:
    """Contract cycles until none is left; a component is named by its lowest word.

    Scores between components never change: what it costs to enter a component depends only on the
    word at which it is entered.
    """
    index, words = (torch.arange(n, device=root.device) for n in scores.shape[:2])
    beyond = words >= sizes[:, None]
    weight = scores.masked_fill(beyond[:, :, None] | beyond[:, None, :], _NEVER)
    weight.diagonal(dim1=1, dim2=2).fill_(_NEVER)
    weight[index, root] = weight[index, root].masked_fill(beyond, 0.0)
    here = words.expand(scores.shape[:2])
    label, paid = here, torch.zeros_like(weight[:, 0], dtype=widest_type(weight.device))
    source, target = torch.zeros_like(here), torch.zeros_like(here)
    order = here  # of the words, those of a component together
    #: For undoing each contraction: the graphs that had a cycle, the component of each word before,
    #: the edge (source, target) that each component had chosen, and the component it joined.
    levels: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []
    while True:
        top = root[index, None]
        best, from_word, to_word = _best_edges(weight, paid, label, order)
        source[index], target[index] = from_word, to_word
        # The root, and words that no longer name a component, get no edge.
        edge = label.gather(1, from_word)
        edge = torch.where((label == here[index]) & (here[index] != top), edge, top)
        leader = _leaders(edge, top[:, 0])
        cyclic = (leader >= 0).any(1).nonzero()[:, 0]
        if not len(cyclic):
            break
        index, leader = index[cyclic], leader[cyclic]
        weight = weight.index_select(0, cyclic)  # several times as fast as an index
        paid, label, best = paid[cyclic], label[cyclic], best[cyclic]
        joined = torch.where(leader < 0, here[index], leader)
        levels.append((index, label, from_word[cyclic], to_word[cyclic], joined))
        # Entering a cycle at a component costs the edge that this component has in the cycle.
        paid = paid + best.masked_fill(leader < 0, 0.0).gather(1, label)
        label = joined.gather(1, label)
        order = (label * label.shape[1] + order[cyclic]).argsort(1).argsort(1)
        weight.masked_fill_(label[:, :, None] == label[:, None, :], _NEVER)
    # Last contraction first: each cycle loses the edge where it was entered.
    for index, label, old_source, old_target, joined in reversed(levels):
        entered = [x[index].gather(1, joined) for x in (source, target)]
        at = label.gather(1, entered[1]) == here[index]
        source[index] = torch.where(at, entered[0], old_source)
        target[index] = torch.where(at, entered[1], old_target)
    heads: Tensor = source.scatter_(1, root[:, None], -1)
    return heads


def _best_edges(
    weight: Tensor, paid: Tensor, label: Tensor, order: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best edge into each component: what it is worth, and the words that it joins.

    Ties go to the edge from the lowest component, and in it to the lowest word. Shapes:
    ``weight`` (g, n, n); all else (g, n), what is returned at the component's lowest word.
    """
    n = weight.shape[1]
    value, source = weight.max(1)
    largest = weight == value[:, None]
    several = (largest.sum(1) > 1).any(1).nonzero()[:, 0]
    if len(several):
        places = order[several].to(weight)[:, :, None].expand(-1, -1, n)
        source[several] = places.masked_fill(~largest[several], n).argmin(1)
    value = value.to(paid) - paid
    best = torch.full_like(value, _NEVER).scatter_reduce(1, label, value, "amax")
    rank = label.gather(1, source) * n + order
    rank = rank.masked_fill(value < best.gather(1, label), n * n)
    first = torch.full_like(rank, n * n).scatter_reduce(1, label, rank, "amin")
    first = order.argsort(1).gather(1, first % n)
    return best, source.gather(1, first), first


def _leaders(edge: Tensor, top: Tensor) -> Tensor:
    """Return the lowest component of the cycle that each component lies on, -1 where on none.

    ``edge`` (g, m) leads from every component to its head, from ``top`` to itself.
    """
    g, m = edge.shape
    here = torch.arange(m, device=edge.device).expand(g, m)
    # After m steps along the edges all are on a cycle or at the top: their targets are the cycles.
    lowest, jump = here, edge
    for _ in range(max(1, (m - 1).bit_length())):
        lowest = torch.minimum(lowest, lowest.gather(1, jump))
        jump = jump.gather(1, jump)
    on = torch.zeros_like(edge, dtype=torch.bool).scatter_(1, jump, True)
    on.scatter_(1, top[:, None], False)
    return lowest.masked_fill(~on, -1)
