"""Which heads' attention, added up, has the best trees: chosen greedily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from headscope.core.widest import widest
from headscope.measures.accumulator import Array
from headscope.measures.flow.trees import GoldTrees, candidates

__all__ = ["Kept", "choose_heads", "summed"]

#: Sentences that heads are chosen on, about; their attention is kept in memory.
SENTENCES = 256
#: Candidates that are tried: those whose own trees are best.
TRIED = 16
#: Heads that are added up, at most.
MOST = 8


@dataclass(frozen=True)
class Kept:
    """Sentences with equally many words, kept to choose on.

    Attributes
    ----------
    gold : GoldTrees
        Their trees.
    graph : Tensor, (sentences, n_heads, words, words)
        Attention from word to word.
    """

    gold: GoldTrees
    graph: Tensor


def summed(graph: Tensor, chosen: Sequence[int]) -> Tensor:
    """Add up the scores of some candidates: (sentences, 1, words, words)."""
    n_heads = graph.shape[1]
    parts = [graph[:, c].mT if c < n_heads else graph[:, c - n_heads] for c in chosen]
    total: Tensor = sum(parts[1:], start=parts[0])
    return total[:, None]


def choose_heads(kept: Sequence[Kept], hits: Array) -> tuple[int, ...]:
    """Add candidates one by one, always the one that helps most, until none helps.

    Parameters
    ----------
    kept : sequence of Kept
        What is chosen on.
    hits : array, (candidates,)
        How many words each candidate's own trees attach rightly.

    Returns
    -------
    tuple of int
        Candidates as :func:`candidates` orders them, at least one.
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
