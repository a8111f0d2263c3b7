"""Trees on two halves of a corpus: chosen on the first, measured on the second."""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.measures.flow.clustered import Clustered
from headscope.measures.flow.combination import SENTENCES, Kept, choose_heads, summed
from headscope.measures.flow.trees import OFFSETS, GoldTrees, TreeCounts, candidates, simple_trees

__all__ = ["BASELINES", "TreeSearch"]

#: What needs no attention; ``offset`` is the best distance.
BASELINES = ("previous", "next", "offset", "root", "random")


class TreeSearch:
    """Counts the trees of every head, and of what :meth:`choose` chooses.

    Parameters
    ----------
    seed : int
        Of the random trees.
    sentences : int
        How many there will be on the first half, about; of many more than
        :data:`~.combination.SENTENCES` some are drawn at random to choose the combination on.
    every : bool
        Count the trees of every head on the second half too, not only those that are chosen.

    Attributes
    ----------
    first, counts, swapped : TreeCounts
        On the first half, on the second, and on the second with trees of other sentences.
    best : int
        The chosen candidate.
    chosen : tuple of int
        Candidates whose attention is added up.
    offset : str
        The chosen distance.
    """

    def __init__(self, seed: int, sentences: int = 0, *, every: bool = True) -> None:
        self._every = every
        self._share = SENTENCES / max(SENTENCES, sentences)
        self._generator = torch.Generator().manual_seed(seed)
        self._kept: list[Kept] = []
        self.first, self.counts, self.swapped = TreeCounts(), TreeCounts(), TreeCounts()
        self.best, self.chosen, self.offset = -1, (), ""

    chosen: tuple[int, ...]

    def update(
        self, graph: Tensor, gold: GoldTrees, swapped: tuple[list[int], GoldTrees] | None
    ) -> None:
        """Add sentences of equally many words.

        Parameters
        ----------
        graph : Tensor, (sentences, n_heads, words, words)
            Attention from word to word.
        gold : GoldTrees
            Their trees.
        swapped : tuple or None
            Places of sentences for which there is another sentence's tree, and those trees.
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
