"""Trees in the attention: unlabelled attachment of the largest tree of each head to gold trees.

Every tree has the gold root. A *candidate* is a head in one of two directions: ``dep->head`` (a
dependent attends to its head) or ``head->dep``.

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

__all__ = [
    "DIRECTIONS",
    "OFFSETS",
    "GoldTrees",
    "TreeCounts",
    "candidates",
    "simple_trees",
    "largest_trees",
]

DIRECTIONS = ("dep->head", "head->dep")
#: Distances at which a baseline looks for every word's head.
OFFSETS = tuple(r for r in range(-5, 6) if r != 0)


@dataclass(frozen=True)
class GoldTrees:
    """Gold trees of sentences with equally many words."""

    heads: Tensor  # (sentences, words). Head of each word, -1 at the root.
    #: (2, sentences, words). Words that count: all but the root; and without punctuation.
    scored: Tensor

    @property
    def root(self) -> Tensor:
        """The word without a head, (sentences,)."""
        return (self.heads < 0).long().argmax(1)

    def hits(self, found: Tensor) -> Array:
        """Count the words whose head is found, (sentences, 2, trees).

        ``found`` (sentences, trees, words) holds one or more trees of every sentence.
        """
        right = found == self.heads[:, None]
        return numpy(torch.einsum("sgw,nsw->sng", right.float(), self.scored.float()))

    def words(self) -> Array:
        """Count the words that are scored, (sentences, 2)."""
        return numpy(self.scored.sum(-1).T)

    def trees(self, scores: Tensor) -> Tensor:
        """Return the largest tree of each of some scores, the gold root given.

        Shapes: ``scores`` (sentences, trees, words, words); returns (sentences, trees, words).
        """
        root = self.root[:, None].expand(scores.shape[:2])
        return largest_trees(scores.flatten(0, 1), root.flatten()).view(scores.shape[:3])


def candidates(graph: Tensor) -> Tensor:
    """Return the scores of every head in both directions.

    Shapes: ``graph`` (sentences, n_heads, words, words); returns (sentences, 2 * n_heads, words,
    words).
    """
    return torch.cat([graph.mT, graph], dim=1)


def simple_trees(gold: GoldTrees, generator: torch.Generator) -> dict[str, Tensor]:
    """Return trees that know nothing but the root: (sentences, words) each, by name.

    ``previous`` and ``next`` hang every word on its neighbour (right- and left-branching chains),
    ``offset r`` on the word r places away, ``root`` all of them on the root; where there is no such
    word, on the root. ``random`` is the largest tree of random scores.
    """
    n_sentences, n = gold.heads.shape
    root, place = gold.root[:, None], torch.arange(n, device=gold.heads.device)
    found = {"root": root.expand(-1, n)}
    for r in OFFSETS:
        target = (place + r).expand(n_sentences, n)
        found[f"offset {r:+d}"] = torch.where((target >= 0) & (target < n), target, root)
    found["previous"], found["next"] = found["offset -1"], found["offset +1"]
    scores = torch.rand(n_sentences, 1, n, n, generator=generator)
    found["random"] = gold.trees(scores.to(gold.heads.device))[:, 0]
    return found


class TreeCounts:
    """Hits of some trees, sentence by sentence."""

    def __init__(self) -> None:
        self.words: list[Array] = []
        self.hits: dict[str, list[Array]] = {}

    def update(self, gold: GoldTrees, found: dict[str, Tensor]) -> None:
        """Add sentences; ``found`` holds (sentences, trees, words) or (sentences, words)."""
        self.words += list(gold.words())
        for name, trees in found.items():
            trees = trees[:, None] if trees.dim() == 2 else trees
            self.hits.setdefault(name, []).extend(gold.hits(trees))

    def attachment(self, name: str, *, punctuation: bool = True) -> Clustered:
        """Return the unlabelled attachment score of every tree of that name."""
        side = 0 if punctuation else 1
        hits = np.stack(self.hits[name])[:, side]
        return Clustered.ratio(hits, np.stack(self.words)[:, side, None])

    def total(self, name: str) -> Array:
        """Return how many words each tree of that name attaches rightly, punctuation included."""
        return np.asarray(np.stack(self.hits[name])[:, 0].sum(0))

    def best(self, names: Sequence[str]) -> str:
        """Return the one of some names with most hits; the first where several have."""
        return max(names, key=lambda name: float(self.total(name)[0]))


_NEVER = -torch.inf


_ENTRIES = 1 << 17  # Scores that are worked on at a time: they stay in the processor's cache.


@dataclass(frozen=True)
class _Level:
    """One step of contraction: what is needed to undo it.

    ``graphs`` (g,) are the graphs that had a cycle; ``member`` (g, n) says to which component each
    word belonged before the step, ``label`` (g, m) what became of each component, ``source`` and
    ``target`` (g, m) which edge between words each component had chosen.
    """

    graphs: Tensor
    member: Tensor
    label: Tensor
    source: Tensor
    target: Tensor


def largest_trees(scores: Tensor, root: Tensor) -> Tensor:
    """Return the head of every word in the tree of largest total score.

    Shapes: ``scores`` (graphs, n, n), ``root`` (graphs,); returns (graphs, n).
    """
    at_once = max(1, _ENTRIES // max(1, scores.shape[1] ** 2))
    parts = zip(torch.split(scores, at_once), torch.split(root, at_once), strict=True)
    found = [_largest(part, top) for part, top in parts]
    return torch.cat(found) if found else root.new_zeros(scores.shape[:2])


def _largest(scores: Tensor, root: Tensor) -> Tensor:
    graphs = _Graphs.of(scores, root)
    source, target = torch.zeros(2, *scores.shape[:2], dtype=torch.long, device=root.device)
    levels: list[_Level] = []
    while True:
        edge, from_word, to_word = graphs.best_edges()
        m = edge.shape[1]
        source[graphs.place, :m], target[graphs.place, :m] = from_word, to_word
        target[graphs.place, graphs.top] = root[graphs.place]
        leader = _leaders(edge, graphs.top)
        cyclic = (leader >= 0).any(1).nonzero()[:, 0]
        if not len(cyclic):
            break
        graphs, edge, leader = graphs.some(cyclic), edge[cyclic], leader[cyclic]
        label = _relabelled(leader)
        levels.append(
            _Level(graphs.place, graphs.member, label, from_word[cyclic], to_word[cyclic])
        )
        graphs = graphs.contracted(edge, leader, label)
    _expand(levels, source, target)
    found: Tensor = source.scatter_(1, root[:, None], -1)
    return found


@dataclass(frozen=True)
class _Graphs:
    """Graphs whose vertices are components: words, or cycles that became one."""

    place: Tensor  # (g,). Which of all graphs these are.
    #: (g, m, m). The best edge from one component to another: its score, and the words that it
    #: joins.
    weight: Tensor
    source: Tensor
    target: Tensor
    top: Tensor  # (g,). The component that holds the root.
    member: Tensor  # (g, n). The component of each word.

    @classmethod
    def of(cls, scores: Tensor, root: Tensor) -> _Graphs:
        g, n, _ = scores.shape
        word, place = torch.arange(n, device=root.device), torch.arange(g, device=root.device)
        weight = widest(scores).clone()
        weight.diagonal(dim1=1, dim2=2).fill_(_NEVER)
        source, target = (x.expand(g, n, n) for x in (word[:, None], word[None, :]))
        return cls(place, weight, source, target, root, word.expand(g, n))

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
        return _Graphs(
            self.place,
            weight,
            source,
            target,
            top,
            label.gather(1, self.member),
        )


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


def _relabelled(leader: Tensor) -> Tensor:
    """Number the components that there are after contraction."""
    m = leader.shape[1]
    here = torch.arange(m, device=leader.device).expand_as(leader)
    stands_for = torch.where(leader < 0, here, leader)
    rank = (stands_for == here).long().cumsum(1) - 1
    return rank.gather(1, stands_for)


def _merged(weight: Tensor, source: Tensor, target: Tensor, label: Tensor) -> tuple[Tensor, ...]:
    """Keep the best edge between every two new components: first by head, then by dependent."""
    size = int(label.max()) + 1
    for axis in (1, 2):
        shape = list(weight.shape)
        index = (label[:, :, None] if axis == 1 else label[:, None, :]).expand(shape)
        places = torch.arange(shape[axis], device=weight.device)
        place = (places[:, None] if axis == 1 else places).expand(shape)
        out = [*shape]
        out[axis] = size
        best = weight.new_full(out, _NEVER).scatter_reduce(axis, index, weight, "amax")
        wins = torch.where(weight == best.gather(axis, index), place, shape[axis])
        first = torch.full(out, shape[axis] - 1, device=weight.device)
        first = first.scatter_reduce(axis, index, wins, "amin")
        weight, source, target = (x.gather(axis, first) for x in (weight, source, target))
        # A place that no component was put at holds some other edge.
        empty = first.new_zeros(len(label), size).scatter_(1, label, 1) == 0
        weight = weight.masked_fill(empty[:, :, None] if axis == 1 else empty[:, None], _NEVER)
    weight.diagonal(dim1=1, dim2=2).fill_(_NEVER)
    return weight, source, target


def _expand(levels: list[_Level], source: Tensor, target: Tensor) -> None:
    """Undo the contractions, last one first: each cycle loses the edge where it was entered."""
    for level in reversed(levels):
        m = level.label.shape[1]
        entered = [x[level.graphs].gather(1, level.label) for x in (source, target)]  # (g, m)
        at = level.member.gather(1, entered[1])
        here = at == torch.arange(m, device=at.device)
        source[level.graphs, :m] = torch.where(here, entered[0], level.source)
        target[level.graphs, :m] = torch.where(here, entered[1], level.target)
