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
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.analyses.flow.recovery import Clustered
from headscope.core.accumulator import Array, numpy
from headscope.core.widest import widest, widest_type
from headscope.data.files import Sentence

DIRECTIONS = ("dep->head", "head->dep")
#: Trees that need no attention; ``offset`` attaches words at the best distance of OFFSETS.
BASELINES = ("previous", "next", "offset", "root", "random")
OFFSETS = tuple(r for r in range(-5, 6) if r != 0)
SENTENCES = 256  # Sentences, about, that heads are chosen on; their attention is kept in memory.
TRIED = 16  # Candidates that may be combined: those whose own trees are best.
MOST = 8  # Heads that are added up, at most.


#: Trees, and scores or attention (sentences, trees or n_heads, words, words).
Kept = tuple["GoldTrees", Tensor]


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


def trees_of(parts: Sequence[Kept]) -> list[Tensor]:
    """Return the tree of largest total score for each of some scores, the gold root given.

    Sentences of different lengths share a search where possible: shorter ones are padded with words
    that can only attach to the root, which changes no other edge.

    Shapes: each part's scores (sentences, trees, words, words); returns (sentences, trees, words).
    """
    found: list[Tensor] = [torch.zeros(0)] * len(parts)
    by_length = sorted(range(len(parts)), key=lambda i: parts[i][1].shape[-1])
    while by_length:
        together, graphs = list[int](), 0
        for i in by_length:
            graphs += parts[i][1].shape[:2].numel()
            if together and graphs * parts[i][1].shape[-1] ** 2 > _ENTRIES:
                break
            together.append(i)
        del by_length[: len(together)]
        n, scores, roots = parts[together[-1]][1].shape[-1], list[Tensor](), list[Tensor]()
        for i in together:
            gold, own = parts[i]
            more = n - own.shape[-1]
            root = gold.root[:, None].expand(own.shape[:2]).flatten()
            wide = F.pad(own.flatten(0, 1), (0, more, 0, more), value=_NEVER)
            if more:
                wide[torch.arange(len(root), device=root.device), root, n - more :] = 0.0
            scores.append(wide)
            roots.append(root)
        heads = largest_trees(torch.cat(scores), torch.cat(roots))
        for i, own in zip(together, torch.split(heads, [len(root) for root in roots]), strict=True):
            shape = parts[i][1].shape[:3]
            found[i] = own[:, : shape[2]].view(shape)
    return found


def candidates(graph: Tensor) -> Tensor:
    """Return every head's scores in both directions, (sentences, 2 * n_heads, words, words)."""
    return torch.cat([graph.mT, graph], dim=1)


def simple_trees(gold: GoldTrees) -> dict[str, Tensor]:
    """Return trees that know nothing but the root: (sentences, words) each, by name.

    ``previous`` and ``next`` attach every word to its neighbour (right- and left-branching chains),
    ``offset r`` to the word r positions away, ``root`` to the root; where there is no such word, to
    the root.
    """
    n_sentences, n = gold.heads.shape
    root, position = gold.root[:, None], torch.arange(n, device=gold.heads.device)
    trees = {"root": root.expand(-1, n)}
    for r in OFFSETS:
        target = (position + r).expand(n_sentences, n)
        trees[f"offset {r:+d}"] = torch.where((target >= 0) & (target < n), target, root)
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


class SameLength(NamedTuple):
    """Sentences of equally many words, and the attention between these."""

    graph: Tensor  # (sentences, n_heads, words, words)
    gold: GoldTrees
    swapped: tuple[list[int], GoldTrees] | None = None  # Some rows, and other trees for them


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

    def update(self, groups: Sequence[SameLength]) -> None:
        """Add sentences, those of equally many words together."""
        #: The gold trees of each group, and the scores by name whose largest trees are compared.
        every: list[tuple[GoldTrees, dict[str, Tensor]]] = []
        kept: list[Kept] = []
        for graph, gold, _ in groups:
            drawn = torch.rand(len(graph), 1, *graph.shape[2:], generator=self._generator)
            scores = {"random": drawn.to(graph)}  # the largest trees of random scores
            if self._every or not self.chosen:
                scores["heads"] = candidates(graph)
            every.append((gold, {**scores, **self._chosen_scores(graph)}))
            if not self.chosen:
                # Sentences come by length: the first ones would be short.
                taken = torch.rand(len(graph), generator=self._generator) < self._share
                some = taken.nonzero()[:, 0].to(graph.device)
                kept.append((GoldTrees(gold.heads[some], gold.scored[:, some]), graph[some]))
        if self.chosen:
            for group in groups:
                if group.swapped is not None:
                    rows, others = group.swapped
                    every.append((others, self._chosen_scores(group.graph[rows])))
        self._kept += [(gold, graph) for gold, graph in kept if len(graph)]
        counts = self.counts if self.chosen else self.first
        found = trees_of([(gold, torch.cat([*of.values()], 1)) for gold, of in every])
        for i, ((gold, of), heads) in enumerate(zip(every, found, strict=True)):
            parts = torch.split(heads, [part.shape[1] for part in of.values()], dim=1)
            trees = dict(zip(of, parts, strict=True))
            if i < len(groups):
                counts.update(gold, {**simple_trees(gold), **trees})
            else:
                self.swapped.update(gold, trees)

    def _chosen_scores(self, graph: Tensor) -> dict[str, Tensor]:
        if not self.chosen:
            return {}
        return {"best": summed(graph, (self.best,)), "combination": summed(graph, self.chosen)}

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
        parts = [
            (gold, part + total) for (gold, _), part, total in zip(kept, scores, sums, strict=True)
        ]
        for (gold, _), trees in zip(parts, trees_of(parts), strict=True):
            gained += gold.hits(trees)[:, 0].sum(0)
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
_ENTRIES = 1 << 19  # Scores that are worked on at a time: they stay in the processor's cache.


def largest_trees(scores: Tensor, root: Tensor) -> Tensor:
    """Return the head of every word in the tree of largest total score, -1 at the root.

    Shapes: ``scores`` (graphs, n, n), ``root`` (graphs,); returns (graphs, n).
    """
    at_once = max(1, _ENTRIES // max(1, scores.shape[1] ** 2))
    parts = zip(torch.split(scores, at_once), torch.split(root, at_once), strict=True)
    heads = [_largest(part, top) for part, top in parts]
    return torch.cat(heads) if heads else root.new_zeros(scores.shape[:2])


def _largest(scores: Tensor, root: Tensor) -> Tensor:
    """Contract cycles until none is left; a component is named by its lowest word.

    Scores between components never change: what it costs to enter a component depends only on the
    word at which it is entered.
    """
    weight = scores.clone()
    weight.diagonal(dim1=1, dim2=2).fill_(_NEVER)
    index, here = torch.arange(len(root), device=root.device), torch.arange(weight.shape[1])
    here = here.to(root.device).expand(weight.shape[:2])
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
        # The root, and words that no longer name a component, get no edge of their own.
        edge = label.gather(1, from_word)
        edge = torch.where((label == here[index]) & (here[index] != top), edge, top)
        leader = _leaders(edge, top[:, 0])
        cyclic = (leader >= 0).any(1).nonzero()[:, 0]
        if not len(cyclic):
            break
        index, leader = index[cyclic], leader[cyclic]
        weight = weight.index_select(0, cyclic)  # several times as fast as an index
        paid, label, best = paid[cyclic], label[cyclic], best[cyclic]
        whole = torch.where(leader < 0, here[index], leader)
        levels.append((index, label, from_word[cyclic], to_word[cyclic], whole))
        # Entering a cycle at a component costs the edge that this component has in the cycle.
        paid = paid + best.masked_fill(leader < 0, 0.0).gather(1, label)
        label = whole.gather(1, label)
        order = (label * label.shape[1] + order[cyclic]).argsort(1).argsort(1)
        weight.masked_fill_(label[:, :, None] == label[:, None, :], _NEVER)
    # Last contraction first: each cycle loses the edge where it was entered.
    for index, label, own_source, own_target, whole in reversed(levels):
        entered = [x[index].gather(1, whole) for x in (source, target)]
        at = label.gather(1, entered[1]) == here[index]
        source[index] = torch.where(at, entered[0], own_source)
        target[index] = torch.where(at, entered[1], own_target)
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
