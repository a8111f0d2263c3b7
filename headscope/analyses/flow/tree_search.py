"""Trees on two halves of a corpus: chosen on the first, measured on the second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.flow.recovery import Clustered
from headscope.analyses.flow.trees import OFFSETS, GoldTrees, TreeCounts, candidates, simple_trees
from headscope.core.accumulator import Array
from headscope.core.widest import widest

__all__ = ["BASELINES", "TreeSearch", "Kept", "choose_heads", "summed"]

#: What needs no attention; ``offset`` is the best distance.
BASELINES = ("previous", "next", "offset", "root", "random")


class TreeSearch:
    """Counts the trees of every head, and of what :meth:`choose` chooses."""

    def __init__(self, seed: int, sentences: int = 0, *, every: bool = True) -> None:
        self._every = every
        self._share = SENTENCES / max(SENTENCES, sentences)
        self._generator = torch.Generator().manual_seed(seed)
        self._kept: list[Kept] = []
        self.first, self.counts, self.swapped = TreeCounts(), TreeCounts(), TreeCounts()
        self.best, self.chosen, self.offset = -1, (), ""

    chosen: tuple[int, ...]  # Candidates whose attention is added up.

    def update(
        self, graph: Tensor, gold: GoldTrees, swapped: tuple[list[int], GoldTrees] | None
    ) -> None:
        """Add sentences of equally many words.

        Shapes: ``graph`` (sentences, n_heads, words, words).
        """
        found = simple_trees(gold, self._generator)
        if self._every or not self.chosen:
            found["heads"] = gold.trees(candidates(graph))
        if not self.chosen:
            self.first.update(gold, found)
            # Sentences come by length: the first ones would be short.
            drawn = torch.rand(len(graph), generator=self._generator) < self._share
            if bool(drawn.any()):
                some = drawn.nonzero()[:, 0].to(graph.device)
                part = GoldTrees(gold.heads[some], gold.scored[:, some])
                self._kept.append(Kept(part, graph[some]))
            return
        self.counts.update(gold, {**found, **self._chosen_trees(graph, gold)})
        if swapped is not None:
            places, others = swapped
            self.swapped.update(others, self._chosen_trees(graph[places], others))

    def _chosen_trees(self, graph: Tensor, gold: GoldTrees) -> dict[str, Tensor]:
        return {
            "best": gold.trees(summed(graph, (self.best,))),
            "combination": gold.trees(summed(graph, self.chosen)),
        }

    def choose(self) -> None:
        """Choose the best head, combination and distance on what has been seen so far."""
        if not self.first.words:
            return
        hits = self.first.total("heads")
        self.best = int(hits.argmax())
        self.chosen = choose_heads(self._kept, hits)
        self.offset = self.first.best([f"offset {r:+d}" for r in OFFSETS])
        self._kept.clear()

    def baseline(self, name: str, *, punctuation: bool = True) -> Clustered:
        """Return the attachment of one of :data:`BASELINES` on the second half."""
        name = self.offset if name == "offset" else name
        return self.counts.attachment(name, punctuation=punctuation)

    @property
    def strongest(self) -> str:
        """The baseline with most words attached rightly on the second half."""
        total = {name: float(self.baseline(name).value[0]) for name in BASELINES}
        return max(BASELINES, key=lambda name: total[name])


SENTENCES = 256  # Sentences that heads are chosen on, about; their attention is kept in memory.
TRIED = 16  # Candidates that are tried: those whose own trees are best.
MOST = 8  # Heads that are added up, at most.


@dataclass(frozen=True)
class Kept:
    """Sentences with equally many words, kept to choose on."""

    gold: GoldTrees  # Their trees.
    graph: Tensor  # (sentences, n_heads, words, words). Attention from word to word.


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
    tried = [(item, widest(candidates(item.graph)[:, order])) for item in kept]
    sums = [scores[:, :1] * 0 for _, scores in tried]
    chosen: list[int] = []
    best = -1.0
    while len(chosen) < min(MOST, len(order)):
        gained = np.zeros(len(order))
        for (item, scores), total in zip(tried, sums, strict=True):
            gained += item.gold.hits(item.gold.trees(scores + total))[:, 0].sum(0)
        gained[chosen] = -1.0
        place = int(gained.argmax())
        if gained[place] <= best:
            break
        best = float(gained[place])
        chosen.append(place)
        sums = [
            t + scores[:, place : place + 1] for (_, scores), t in zip(tried, sums, strict=True)
        ]
    return tuple(order[place] for place in chosen)
