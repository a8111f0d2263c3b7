"""Halves of examples that share no sentence: what is chosen on one is confirmed on the other."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

import numpy as np

from headscope.core.accumulator import Keys


def halve(
    sentences: Sequence[Sequence[Hashable]], seed: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split examples at random into two halves.

    ``sentences`` are those of each example. Examples that share one, directly or through others, go
    to the same half: ("a", "b"), ("c",), ("b", "d"), ("e",) become (0, 2) and (1, 3). A group of
    more than half of all examples is split: its members are dealt out one by one.
    """
    intact_groups: list[list[int]] = []
    single_examples: list[list[int]] = []
    for group in _sharing_groups(sentences):
        if 2 * len(group) <= len(sentences):
            intact_groups.append(group)
        else:
            single_examples += [[example] for example in group]
    groups = intact_groups + single_examples
    random.Random(seed).shuffle(groups)
    halves: tuple[list[int], list[int]] = ([], [])
    # The largest first, so that single examples make both halves equally long.
    for group in sorted(groups, key=len, reverse=True):
        shorter_half = min(halves, key=len)
        shorter_half.extend(group)
    return tuple(sorted(halves[0])), tuple(sorted(halves[1]))


def _sharing_groups(sentences: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Group examples that share a sentence, directly or through others.

    The groups are the connected parts of a graph in which each example is linked to its sentences.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # Nodes 0 to n_examples - 1 are the examples, those behind them the different sentences.
    n_examples = len(sentences)
    numbers = Keys[Hashable]()  # Numbers sentences in the order in which they come
    edges = []
    for example, texts in enumerate(sentences):
        edges += [(example, n_examples + numbers.index(text)) for text in texts]
    n_nodes = max(1, n_examples + len(numbers))
    example_nodes, text_nodes = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    ones = np.ones(len(edges))
    graph = coo_array((ones, (example_nodes, text_nodes)), shape=(n_nodes, n_nodes))
    _, component_of_node = connected_components(graph, directed=False)
    groups: dict[int, list[int]] = {}
    for example, component in enumerate(component_of_node[:n_examples].tolist()):
        groups.setdefault(component, []).append(example)
    return list(groups.values())
