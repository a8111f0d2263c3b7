"""Random sets of heads to compare a set of heads with: as many heads in the same layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

HeadIndex = tuple[int, int]  # Row of the site (layer), and index of the head in it
RANDOM = 19  # Random sets that a set is compared with, at most
FEWEST_SETS = 7  # And at least: as many as a single head in a layer of eight has
#: Largest share of a set's heads that a random set may be expected to contain too.
SHARED = 0.75
TRIES = 20  # Draws for each set that is needed, since some sets come up again


def random_sets(
    removed: Sequence[HeadIndex], heads: Sequence[HeadIndex], seed: int
) -> list[list[HeadIndex]]:
    """Draw :data:`RANDOM` different sets of as many heads in the same layers, or all there are.

    Returns no set if there are too few, or if most of a set would be the removed heads again. The
    number of removed heads is part of the seed, so that another number draws other sets.
    """
    heads_in_layer = Counter(row for row, _ in heads)
    removed_in_layer = Counter(row for row, _ in removed)
    # Of n heads in a layer, a random set of k shares k * k / n with another one on average.
    shared = sum(count * count / heads_in_layer[row] for row, count in removed_in_layer.items())
    if shared > SHARED * len(removed):
        return []
    sets = matched_sets(removed, heads, RANDOM, seed * len(heads) + len(removed))
    return sets if len(sets) >= FEWEST_SETS else []


def matched_sets(
    chosen: Sequence[HeadIndex], heads: Sequence[HeadIndex], draws: int, seed: int
) -> list[list[HeadIndex]]:
    """Draw different random sets with as many heads in each layer as ``chosen`` has there.

    The set ``chosen`` itself is left out. Returns fewer than ``draws`` if there are no more sets.
    """
    rng = np.random.default_rng(abs(seed))
    counts = Counter(row for row, _ in chosen)
    heads_of_row = {row: [head for head in heads if head[0] == row] for row in counts}
    sets: dict[frozenset[HeadIndex], None] = {}
    for _ in range(TRIES * draws):
        drawn: list[HeadIndex] = []
        for row, count in counts.items():
            in_layer = heads_of_row[row]
            drawn += [in_layer[i] for i in rng.choice(len(in_layer), size=count, replace=False)]
        heads_drawn = frozenset(drawn)
        if heads_drawn != frozenset(chosen) and len(sets) < draws:
            sets[heads_drawn] = None
    return [sorted(drawn_set) for drawn_set in sets]
