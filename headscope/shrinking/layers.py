"""Which layers stay: a few sets that are trained briefly, the nearest of which is trained on.

Among them are the sets whose outputs are nearest to the whole model's before any training (all are
tried where there are few, else layers go one at a time), and layers spread evenly from the first to
the last, as DistilBERT took them (Sanh et al. 2019, arXiv:1910.01108): what is nearest at first
need not be so after some minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain, combinations, product
from typing import Any

from headscope.core.errors import HeadscopeError, InputError
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.layers import remove_layers

MOST_SUBSETS = 500


def layers_of(loaded: LoadedModel) -> dict[str, list[Any]]:
    """List the layers of each stack, as :func:`remove_layers` takes them."""
    all_stacks = loaded.whole or loaded
    stacks: dict[str, list[Any]] = {s: [] for s in ("encoder", "decoder") if s in all_stacks.stacks}
    for site in all_stacks.sites:
        name = (site.stack, site.layer) if len(stacks) > 1 else site.layer
        if site.stack in stacks and name not in stacks[site.stack]:
            stacks[site.stack].append(name)
    return stacks


def counts_of(loaded: LoadedModel) -> list[int]:
    """Return the numbers of layers of the longest stack that may be left, most first."""
    return list(range(max(map(len, layers_of(loaded).values())) - 1, 0, -1))


def kept_of_each(loaded: LoadedModel, count: int) -> dict[str, int]:
    """Return how many layers of each stack are left if ``count`` of the longest are."""
    stacks = layers_of(loaded)
    longest = max(map(len, stacks.values()))
    return {name: max(1, round(count * len(layers) / longest)) for name, layers in stacks.items()}


def first_layers(loaded: LoadedModel, count: int) -> LoadedModel:
    """Return a model of the right size, to be timed only: its first layers."""
    counts = kept_of_each(loaded, count)
    gone = [name for stack, layers in layers_of(loaded).items() for name in layers[counts[stack] :]]
    return remove_layers(loaded, gone, share=True) if gone else loaded


def nearest_subsets(
    loaded: LoadedModel,
    count: int,
    distance: Callable[[LoadedModel], float],
    tell: Callable[[int, int], object],
) -> list[tuple[Any, ...]]:
    """List sets of layers to remove that leave ``count`` in the longest stack, nearest first.

    Raises
    ------
    InputError
        If the family can do without none of these layers.
    """
    stacks = layers_of(loaded)
    left = kept_of_each(loaded, count)
    leaving = {name: len(layers) - left[name] for name, layers in stacks.items()}
    n_subsets = math.prod(math.comb(len(stacks[name]), n) for name, n in leaving.items())
    refused: list[HeadscopeError] = []
    costs: dict[tuple[Any, ...], float] = {}
    removed: tuple[Any, ...] = ()

    def cost(removed: tuple[Any, ...]) -> float:
        try:
            return distance(remove_layers(loaded, removed, share=True))
        except HeadscopeError as error:
            refused.append(error)
            return math.inf

    if n_subsets <= MOST_SUBSETS:
        of_stacks = (combinations(stacks[name], n) for name, n in leaving.items())
        for i, parts in enumerate(product(*of_stacks)):
            tell(i, n_subsets)
            removed = tuple(chain.from_iterable(parts))
            costs[removed] = cost(removed)
    else:  # the layer that costs least goes, again and again; the last step's sets count
        steps = sum(leaving.values())
        for step in range(steps):
            tell(step, steps)
            costs = {
                (*removed, layer): cost((*removed, layer))
                for name, layers in stacks.items()
                for layer in layers
                if layer not in removed and sum(map(layers.__contains__, removed)) < leaving[name]
            }
            removed = min(costs, key=costs.__getitem__)
    even = spread_evenly(loaded, count)
    if set(even) not in map(set, costs):
        costs[even] = cost(even)
    possible = [removed for removed in costs if costs[removed] < math.inf]
    if not possible:
        raise InputError(f"No layers of {loaded.name} can be removed: {refused[0]}")
    return sorted(possible, key=costs.__getitem__)


def spread_evenly(loaded: LoadedModel, count: int) -> tuple[Any, ...]:
    """Return what to remove so that the rest lies evenly from the first layer to the last."""
    gone: list[Any] = []
    counts = kept_of_each(loaded, count)
    for name, layers in layers_of(loaded).items():
        last = len(layers) - 1
        stays = counts[name]
        indices = {i * last // max(1, stays - 1) for i in range(stays)}
        gone += [layer for index, layer in enumerate(layers) if index not in indices]
    return tuple(gone)
