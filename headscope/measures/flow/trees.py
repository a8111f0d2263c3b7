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

from headscope.measures.accumulator import Array, numpy
from headscope.measures.flow.arborescence import largest_trees
from headscope.measures.flow.clustered import Clustered

__all__ = ["DIRECTIONS", "OFFSETS", "GoldTrees", "TreeCounts", "candidates", "simple_trees"]

DIRECTIONS = ("dep->head", "head->dep")
#: Distances at which a baseline looks for every word's head.
OFFSETS = tuple(r for r in range(-5, 6) if r != 0)


@dataclass(frozen=True)
class GoldTrees:
    """Gold trees of sentences with equally many words.

    Attributes
    ----------
    heads : Tensor of int, (sentences, words)
        Head of each word, -1 at the root.
    scored : Tensor of bool, (2, sentences, words)
        Words that count: all but the root; and without punctuation.
    """

    heads: Tensor
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

        Parameters
        ----------
        scores : Tensor, (sentences, trees, words, words)
            From a head (third axis) to a dependent (last axis).

        Returns
        -------
        Tensor of int, (sentences, trees, words)
            The head of each word, -1 at the root.
        """
        root = self.root[:, None].expand(scores.shape[:2])
        return largest_trees(scores.flatten(0, 1), root.flatten()).view(scores.shape[:3])


def candidates(graph: Tensor) -> Tensor:
    """Return the scores of every head in both directions.

    Parameters
    ----------
    graph : Tensor, (sentences, n_heads, words, words)
        Attention from a word (third axis) to a word (last axis).

    Returns
    -------
    Tensor, (sentences, 2 * n_heads, words, words)
        From a head to a dependent, in the order of :data:`DIRECTIONS`.
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
    """Hits of some trees, sentence by sentence.

    Attributes
    ----------
    words : list of array, (2,)
        Words of every sentence that are scored: all, and without punctuation.
    hits : dict of str to list of array
        By name: of every sentence (2, trees).
    """

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
