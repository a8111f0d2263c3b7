"""Random sets of heads that a set is compared with: as many heads in the same layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

HeadIndex = tuple[int, int]  # Row of the site, and index of the head in it.
RANDOM = 19  # Sets that a set is compared with, or all there are,
FEWEST_SETS = 7  # where there are at least so many: the others of one head in a layer of eight.
#: Largest share of the heads of a set which a random set may be expected to hold as well.
SHARED = 0.75
TRIES = 20  # Sets that are drawn for each that is asked for, since some come up again.


def random_sets(
    removed: Sequence[HeadIndex], heads: Sequence[HeadIndex], seed: int
) -> list[list[HeadIndex]]:
    """Draw RANDOM different sets of as many heads in the same layers, or all there are.

    None where there are few, or where most of a set would be the removed heads again. Another
    number of heads draws other sets.
    """
    in_layer = Counter(row for row, _ in heads)
    removed_in_layer = Counter(row for row, _ in removed)
    shared = sum(count * count / in_layer[row] for row, count in removed_in_layer.items())
    if shared > SHARED * len(removed):
        return []
    sets = matched_sets(removed, heads, RANDOM, seed * len(heads) + len(removed))
    return sets if len(sets) >= FEWEST_SETS else []


def matched_sets(
    chosen: Sequence[HeadIndex], heads: Sequence[HeadIndex], draws: int, seed: int
) -> list[list[HeadIndex]]:
    """Draw different random sets of as many of the heads in the same layers as ``chosen`` has.

    The set itself is left out. There are fewer than ``draws`` where the layers have no more sets.
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
