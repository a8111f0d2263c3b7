"""Random sets of heads to compare a set of heads with: as many heads in the same layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

#: A head: the row of its layer in arrays of all layers, and its index in the layer.
HeadIndex = tuple[int, int]
RANDOM = 19  # Random sets that a set is compared with, at most
#: The fewest random sets to compare with: as many as there are for one head in a layer of eight.
FEWEST_SETS = 7
#: Largest share of a set's heads that a random set may be expected to contain too.
SHARED = 0.75
TRIES = 20  # Draws for each set that is needed, since some sets come up again


def random_sets(
    removed: Sequence[HeadIndex], heads: Sequence[HeadIndex], seed: int
) -> list[list[HeadIndex]]:
    """Draw :data:`RANDOM` different sets of as many heads in the same layers, or all there are.

    Returns no set if there are too few, or if most of a set would be the removed heads again.
    """
    heads_in_layer = Counter(layer for layer, _ in heads)
    removed_in_layer = Counter(layer for layer, _ in removed)
    # Of n heads in a layer, a random set of k shares k * k / n with another one on average.
    shared = sum(k * k / heads_in_layer[layer] for layer, k in removed_in_layer.items())
    if shared > SHARED * len(removed):
        return []
    # Another number of removed heads draws other sets.
    seed_of_size = seed * len(heads) + len(removed)
    sets = matched_sets(removed, heads, RANDOM, seed_of_size)
    return sets if len(sets) >= FEWEST_SETS else []


def matched_sets(
    chosen: Sequence[HeadIndex], heads: Sequence[HeadIndex], draws: int, seed: int
) -> list[list[HeadIndex]]:
    """Draw different random sets with as many heads in each layer as ``chosen`` has there.

    The set ``chosen`` itself is left out. Returns fewer than ``draws`` if there are no more sets.
    """
    rng = np.random.default_rng(abs(seed))
    counts = Counter(layer for layer, _ in chosen)
    heads_of_layer = {layer: [head for head in heads if head[0] == layer] for layer in counts}
    sets: dict[frozenset[HeadIndex], None] = {}  # a set that remembers its order
    for _ in range(TRIES * draws):
        drawn: list[HeadIndex] = []
        for layer, count in counts.items():
            candidates = heads_of_layer[layer]
            drawn += [candidates[i] for i in rng.choice(len(candidates), count, replace=False)]
        drawn_set = frozenset(drawn)
        if drawn_set != frozenset(chosen) and len(sets) < draws:
            sets[drawn_set] = None
    return [sorted(heads_drawn) for heads_drawn in sets]
