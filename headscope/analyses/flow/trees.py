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

from headscope.analyses.flow.recovery import Clustered
from headscope.core.accumulator import Array, numpy
from headscope.core.widest import widest
from headscope.data.sentence import Sentence

DIRECTIONS = ("dep->head", "head->dep")
#: What needs no attention; ``offset`` is the best of these distances to every word's head.
BASELINES = ("previous", "next", "offset", "root", "random")
OFFSETS = tuple(r for r in range(-5, 6) if r != 0)
SENTENCES = 256  # Sentences, about, that heads are chosen on; their attention is kept in memory.
TRIED = 16  # Candidates that may be combined: those whose own trees are best.
MOST = 8  # Heads that are added up, at most.


@dataclass(frozen=True)
class GoldTrees:
    """Gold trees of sentences with equally many words."""

    heads: Tensor  # (sentences, words): head of each word, -1 at the root
    #: (2, sentences, words): words that count, which is all but the root; and without punctuation.
    scored: Tensor

    @classmethod
    def of(cls, sentences: Sequence[Sentence], device: torch.device | str = "cpu") -> GoldTrees:
        """Lay out the trees of sentences that have equally many words."""
        heads = torch.tensor([s.heads for s in sentences])
        punctuation = torch.tensor([[r == "punct" for r in s.relations or ()] for s in sentences])
        scored = torch.stack([heads >= 0, (heads >= 0) & ~punctuation])
        return cls(heads.to(device), scored.to(device))

    @property
    def root(self) -> Tensor:
        """The word without a head, (sentences,)."""
        return (self.heads < 0).long().argmax(1)

    def hits(self, trees: Tensor) -> Array:
        """Count words with the right head in (sentences, trees, words): (sentences, 2, trees)."""
        right = trees == self.heads[:, None]
        return numpy(torch.einsum("sgw,nsw->sng", right.float(), self.scored.float()))

    def trees(self, scores: Tensor) -> Tensor:
        """Return the largest tree of each of some scores, the gold root given.

        Shapes: ``scores`` (sentences, trees, words, words); returns (sentences, trees, words).
        """
        root = self.root[:, None].expand(scores.shape[:2])
        return largest_trees(scores.flatten(0, 1), root.flatten()).view(scores.shape[:3])


def candidates(graph: Tensor) -> Tensor:
    """Return every head's scores in both directions, (sentences, 2 * n_heads, words, words)."""
    return torch.cat([graph.mT, graph], dim=1)


def simple_trees(gold: GoldTrees, generator: torch.Generator) -> dict[str, Tensor]:
    """Return trees that know nothing but the root: (sentences, words) each, by name.

    ``previous`` and ``next`` attach every word to its neighbour (right- and left-branching chains),
    ``offset r`` to the word r positions away, ``root`` to the root; where there is no such word, to
    the root. ``random`` is the largest tree of random scores.
    """
    n_sentences, n = gold.heads.shape
    root, position = gold.root[:, None], torch.arange(n, device=gold.heads.device)
    trees = {"root": root.expand(-1, n)}
    for r in OFFSETS:
        target = (position + r).expand(n_sentences, n)
        trees[f"offset {r:+d}"] = torch.where((target >= 0) & (target < n), target, root)
    trees["previous"], trees["next"] = trees["offset -1"], trees["offset +1"]
    scores = torch.rand(n_sentences, 1, n, n, generator=generator)
    trees["random"] = gold.trees(scores.to(gold.heads.device))[:, 0]
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


Kept = tuple[GoldTrees, Tensor]  # Trees, and attention (sentences, n_heads, words, words).


class TreeSearch:
    """Counts the trees of every head, and of what :meth:`choose` chooses."""

    chosen: tuple[int, ...]  # Candidates whose attention is added up.

    def __init__(self, seed: int, sentences: int = 0, *, every: bool = True) -> None:
        self._every = every  # Whether each head is measured on the second half too.
        self._share = SENTENCES / max(SENTENCES, sentences)
        self._generator = torch.Generator().manual_seed(seed)
        self._kept: list[Kept] = []
        self.first, self.counts, self.swapped = TreeCounts(), TreeCounts(), TreeCounts()
        self.best, self.chosen, self.offset = -1, (), ""

    def update(
        self,
        graph: Tensor,
        gold: GoldTrees,
        swapped: tuple[list[int], GoldTrees] | None,
        rollout: Tensor | None = None,
    ) -> None:
        """Add sentences of equally many words; ``swapped`` are some rows with other trees.

        Shapes: ``graph`` (sentences, n_heads, words, words); ``rollout``, the attention rollout and
        that of even attention, (sentences, 2, words, words).
        """
        trees = simple_trees(gold, self._generator)
        if rollout is not None:
            trees["rollout"] = gold.trees(candidates(rollout))
        if self._every or not self.chosen:
            trees["heads"] = gold.trees(candidates(graph))
        if self.chosen:
            self.counts.update(gold, {**trees, **self._chosen_trees(graph, gold)})
            if swapped is not None:
                rows, others = swapped
                self.swapped.update(others, self._chosen_trees(graph[rows], others))
            return
        self.first.update(gold, trees)
        # Sentences come by length: the first ones would be short.
        drawn = torch.rand(len(graph), generator=self._generator) < self._share
        if bool(drawn.any()):
            some = drawn.nonzero()[:, 0].to(graph.device)
            self._kept.append((GoldTrees(gold.heads[some], gold.scored[:, some]), graph[some]))

    def _chosen_trees(self, graph: Tensor, gold: GoldTrees) -> dict[str, Tensor]:
        return {
            "best": gold.trees(summed(graph, (self.best,))),
            "combination": gold.trees(summed(graph, self.chosen)),
        }

    def choose(self) -> None:
        """Choose the best head, combination and distance on what has been seen so far."""
        if self.first.words:
            hits = self.first.total("heads")
            self.best, self.chosen = int(hits.argmax()), choose_heads(self._kept, hits)
            names = [f"offset {r:+d}" for r in OFFSETS]
            self.offset = max(names, key=lambda name: float(self.first.total(name)[0]))
            self._kept.clear()

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


def choose_heads(kept: Sequence[Kept], hits: Array) -> tuple[int, ...]:
    """Add candidates one by one, always the one that helps most, until none helps.

    Shapes: ``hits`` (candidates,).
    """
    order = sorted(range(len(hits)), key=lambda c: (-hits[c], c))[:TRIED]
    scores = [widest(candidates(graph)[:, order]) for _, graph in kept]
    sums = [part[:, :1] * 0 for part in scores]
    chosen: list[int] = []
    best = -1.0
    while len(chosen) < min(MOST, len(order)):
        gained = np.zeros(len(order))
        for (gold, _), part, total in zip(kept, scores, sums, strict=True):
            gained += gold.hits(gold.trees(part + total))[:, 0].sum(0)
        gained[chosen] = -1.0
        new = int(gained.argmax())
        if gained[new] <= best:
            break
        best = float(gained[new])
        chosen.append(new)
        sums = [total + part[:, new : new + 1] for part, total in zip(scores, sums, strict=True)]
    return tuple(order[i] for i in chosen)


# --- Chu & Liu 1965, Edmonds 1967: many graphs at once ------------------------------------------

_NEVER = -torch.inf
_ENTRIES = 1 << 17  # Scores that are worked on at a time: they stay in the processor's cache.


def largest_trees(scores: Tensor, root: Tensor) -> Tensor:
    """Return the head of every word in the tree of largest total score, -1 at the root.

    Shapes: ``scores`` (graphs, n, n), ``root`` (graphs,); returns (graphs, n).
    """
    at_once = max(1, _ENTRIES // max(1, scores.shape[1] ** 2))
    parts = zip(torch.split(scores, at_once), torch.split(root, at_once), strict=True)
    heads = [_largest(part, top) for part, top in parts]
    return torch.cat(heads) if heads else root.new_zeros(scores.shape[:2])


def _largest(scores: Tensor, root: Tensor) -> Tensor:
    graphs = _Graphs.of(scores, root)
    source, target = torch.zeros(2, *scores.shape[:2], dtype=torch.long, device=root.device)
    #: What undoes each contraction: the graphs that had a cycle; (g, n) the component of each word
    #: before; (g, m) what became of each component, and which edge it had chosen.
    levels: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []
    while True:
        edge, from_word, to_word = graphs.best_edges()
        m = edge.shape[1]
        source[graphs.index, :m], target[graphs.index, :m] = from_word, to_word
        target[graphs.index, graphs.top] = root[graphs.index]
        leader = _leaders(edge, graphs.top)
        cyclic = (leader >= 0).any(1).nonzero()[:, 0]
        if not len(cyclic):
            break
        graphs, edge, leader = graphs.some(cyclic), edge[cyclic], leader[cyclic]
        here = torch.arange(m, device=leader.device).expand_as(leader)
        stands_for = torch.where(leader < 0, here, leader)
        label = ((stands_for == here).long().cumsum(1) - 1).gather(1, stands_for)
        levels.append((graphs.index, graphs.member, label, from_word[cyclic], to_word[cyclic]))
        graphs = graphs.contracted(edge, leader, label)
    # Last contraction first: each cycle loses the edge where it was entered.
    for index, member, label, own_source, own_target in reversed(levels):
        m = label.shape[1]
        entered = [x[index].gather(1, label) for x in (source, target)]  # (g, m)
        at = member.gather(1, entered[1])
        here = at == torch.arange(m, device=at.device)
        source[index, :m] = torch.where(here, entered[0], own_source)
        target[index, :m] = torch.where(here, entered[1], own_target)
    heads: Tensor = source.scatter_(1, root[:, None], -1)
    return heads


@dataclass(frozen=True)
class _Graphs:
    """Graphs whose vertices are components: words, or cycles that became one."""

    index: Tensor  # (g,): which of all graphs these are
    #: (g, m, m): the best edge from one component to another: its score, and the words it joins.
    weight: Tensor
    source: Tensor
    target: Tensor
    top: Tensor  # (g,): the component that holds the root
    member: Tensor  # (g, n): the component of each word

    @classmethod
    def of(cls, scores: Tensor, root: Tensor) -> _Graphs:
        g, n, _ = scores.shape
        word, index = torch.arange(n, device=root.device), torch.arange(g, device=root.device)
        weight = widest(scores).clone()
        weight.diagonal(dim1=1, dim2=2).fill_(_NEVER)
        source, target = (x.expand(g, n, n) for x in (word[:, None], word[None, :]))
        return cls(index, weight, source, target, root, word.expand(g, n))

    def some(self, rows: Tensor) -> _Graphs:
        return _Graphs(*(getattr(self, field)[rows] for field in self.__dataclass_fields__))

    def best_edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best head of every component, and the words that the edge joins: (g, m)."""
        edge = self.weight.argmax(1).scatter(1, self.top[:, None], self.top[:, None])
        at = edge[:, None]
        source, target = (x.gather(1, at).squeeze(1) for x in (self.source, self.target))
        return edge, source, target

    def contracted(self, edge: Tensor, leader: Tensor, label: Tensor) -> _Graphs:
        """Make one component of each cycle."""
        # To enter a cycle at a component costs what that component gets from the cycle.
        paid = self.weight.gather(1, edge[:, None]).masked_fill(leader[:, None] < 0, 0.0)
        weight, source, target = _merged(self.weight - paid, self.source, self.target, label)
        top = label.gather(1, self.top[:, None]).squeeze(1)
        unused = torch.arange(weight.shape[1], device=weight.device) > label.max(1).values[:, None]
        rows = torch.arange(len(weight), device=weight.device)
        weight[rows, top] = weight[rows, top].masked_fill(unused, 0.0)
        return _Graphs(self.index, weight, source, target, top, label.gather(1, self.member))


def _leaders(edge: Tensor, top: Tensor) -> Tensor:
    """Return the lowest component of the cycle that each component lies on, -1 where on none.

    ``edge`` (g, m) leads from every component to its head, from ``top`` to itself.
    """
    g, m = edge.shape
    here = torch.arange(m, device=edge.device).expand(g, m)
    # After m steps everything stands on a cycle, or at the top; what is stood on is the cycle.
    lowest, jump = here, edge
    for _ in range(max(1, (m - 1).bit_length())):
        lowest = torch.minimum(lowest, lowest.gather(1, jump))
        jump = jump.gather(1, jump)
    on = torch.zeros_like(edge, dtype=torch.bool).scatter_(1, jump, True)
    on.scatter_(1, top[:, None], False)
    return lowest.masked_fill(~on, -1)


def _merged(weight: Tensor, source: Tensor, target: Tensor, label: Tensor) -> tuple[Tensor, ...]:
    """Keep the best edge between every two new components: first by head, then by dependent."""
    size = int(label.max()) + 1
    for axis in (1, 2):
        shape = list(weight.shape)
        index = (label[:, :, None] if axis == 1 else label[:, None, :]).expand(shape)
        position = torch.arange(shape[axis], device=weight.device)
        position = (position[:, None] if axis == 1 else position).expand(shape)
        out = [*shape]
        out[axis] = size
        best = weight.new_full(out, _NEVER).scatter_reduce(axis, index, weight, "amax")
        wins = torch.where(weight == best.gather(axis, index), position, shape[axis])
        first = torch.full(out, shape[axis] - 1, device=weight.device)
        first = first.scatter_reduce(axis, index, wins, "amin")
        weight, source, target = (x.gather(axis, first) for x in (weight, source, target))
        # An index that no component has holds some other edge.
        empty = first.new_zeros(len(label), size).scatter_(1, label, 1) == 0
        weight = weight.masked_fill(empty[:, :, None] if axis == 1 else empty[:, None], _NEVER)
    weight.diagonal(dim1=1, dim2=2).fill_(_NEVER)
    return weight, source, target
