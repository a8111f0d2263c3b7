"""Random sets of heads to compare a set of heads with: as many heads in the same layers.

Where hardly any others are left there, as with all heads of a layer, the sets have as many heads
from all layers of the same stacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

#: A head: the row of its layer in arrays of all layers, and its index in the layer.
HeadIndex = tuple[int, int]
RANDOM = 19  # Random sets that a set is compared with, at most
#: The fewest random sets to compare with: as many as there are for one head in a layer of eight.
FEWEST_SETS = 7
#: Largest share of a set's heads that a random set may be expected to contain too.
SHARED = 0.75
TRIES = 20  # Draws for each set that is needed, since some sets come up again


class RandomSets(NamedTuple):
    """Sets of heads to compare with; none if there are too few that differ enough."""

    sets: list[list[HeadIndex]]
    anywhere: bool = False  # Whether their heads are of all layers, not of the same ones


def random_sets(
    removed: Sequence[HeadIndex],
    heads: Sequence[HeadIndex],
    seed: int,
    stacks: Mapping[int, str],
) -> RandomSets:
    """Draw :data:`RANDOM` different sets of as many heads in the same layers, or all there are.

    If these are too few, or if most of a set would be the removed heads again, the heads are drawn
    from all layers of the same stacks; ``stacks`` names the stack of each layer's row.
    """
    # Another number of removed heads draws other sets.
    seed_of_size = seed * len(heads) + len(removed)
    same_layers = {layer: layer for layer, _ in heads}
    sets = _sets_in(same_layers, removed, heads, seed_of_size)
    if sets:
        return RandomSets(sets)
    return RandomSets(_sets_in(stacks, removed, heads, seed_of_size), anywhere=True)


def _sets_in(
    groups: Mapping[int, object],
    removed: Sequence[HeadIndex],
    heads: Sequence[HeadIndex],
    seed: int,
) -> list[list[HeadIndex]]:
    """Draw sets with as many heads in each group of layers; none if they would be too alike."""
    heads_in_group = Counter(groups[layer] for layer, _ in heads)
    removed_in_group = Counter(groups[layer] for layer, _ in removed)
    # Of n heads in a group, a random set of k shares k * k / n with another one on average.
    shared = sum(k * k / heads_in_group[group] for group, k in removed_in_group.items())
    if shared > SHARED * len(removed):
        return []
    sets = matched_sets(removed, heads, RANDOM, seed, groups)
    return sets if len(sets) >= FEWEST_SETS else []


def matched_sets(
    chosen: Sequence[HeadIndex],
    heads: Sequence[HeadIndex],
    draws: int,
    seed: int,
    groups: Mapping[int, object] | None = None,
) -> list[list[HeadIndex]]:
    """Draw different random sets with as many heads in each group of layers as ``chosen`` has.

    ``groups`` names the group of each layer's row; by default every layer is one. The set
    ``chosen`` itself is left out. Returns fewer than ``draws`` if there are no more sets.
    """
    if groups is None:
        groups = {layer: layer for layer, _ in heads}
    rng = np.random.default_rng(abs(seed))
    counts = Counter(groups[layer] for layer, _ in chosen)
    heads_of_group = {
        group: [head for head in heads if groups[head[0]] == group] for group in counts
    }
    sets: dict[frozenset[HeadIndex], None] = {}  # a set that remembers its order
    for _ in range(TRIES * draws):
        drawn: list[HeadIndex] = []
        for group, count in counts.items():
            candidates = heads_of_group[group]
            drawn += [candidates[i] for i in rng.choice(len(candidates), count, replace=False)]
        drawn_set = frozenset(drawn)
        if drawn_set != frozenset(chosen) and len(sets) < draws:
            sets[drawn_set] = None
    return [sorted(heads_drawn) for heads_drawn in sets]
