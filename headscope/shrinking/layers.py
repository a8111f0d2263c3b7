"""Which layers stay: a few sets that are trained briefly, the nearest of which is trained on.

Among them are the sets whose outputs are nearest to the whole model's before any training (all are
tried where there are few, else layers go one at a time), and layers spread evenly from the first to
the last, as DistilBERT took them (Sanh et al. 2019, arXiv:1910.01108): what is nearest at first
need not be so after some minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations, product
from typing import Any

from headscope.core.errors import HeadscopeError, InputError
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.layers import remove_layers

MOST_SUBSETS = 500

Stacks = Mapping[str, Sequence[Any]]  # The layers of each stack
Cost = Callable[[tuple[Any, ...]], float]  # The distance without some layers; infinite if refused
Tell = Callable[[int, int], object]  # Is told how many sets, of how many, are measured


def layers_of(loaded: LoadedModel) -> dict[str, list[Any]]:
    """List the layers of each stack, as :func:`remove_layers` takes them."""
    all_stacks = loaded.with_all_stacks
    stacks: dict[str, list[Any]] = {s: [] for s in ("encoder", "decoder") if s in all_stacks.stacks}
    for site in all_stacks.sites:
        name = (site.stack, site.layer) if len(stacks) > 1 else site.layer
        if site.stack in stacks and name not in stacks[site.stack]:
            stacks[site.stack].append(name)
    return stacks


def longest_stack(loaded: LoadedModel) -> int:
    """Return how many layers the longest stack has."""
    return max(map(len, layers_of(loaded).values()))


def counts_of(loaded: LoadedModel) -> list[int]:
    """Return the numbers of layers of the longest stack that may be left, most first."""
    return list(range(longest_stack(loaded) - 1, 0, -1))


def kept_of_each(loaded: LoadedModel, count: int) -> dict[str, int]:
    """Return how many layers of each stack are left if ``count`` of the longest are."""
    longest = longest_stack(loaded)
    return {
        name: max(1, round(count * len(layers) / longest))
        for name, layers in layers_of(loaded).items()
    }


def first_layers(loaded: LoadedModel, count: int) -> LoadedModel:
    """Return a model of the right size, to be timed only: its first layers."""
    counts = kept_of_each(loaded, count)
    removed: list[Any] = []
    for stack, layers in layers_of(loaded).items():
        removed += layers[counts[stack] :]
    return remove_layers(loaded, removed, share=True) if removed else loaded


def nearest_subsets(
    loaded: LoadedModel,
    count: int,
    distance: Callable[[LoadedModel], float],
    tell: Tell,
) -> list[tuple[Any, ...]]:
    """List sets of layers to remove that leave ``count`` in the longest stack, nearest first.

    Raises
    ------
    InputError
        If the family can do without none of these layers.
    """
    refused: list[HeadscopeError] = []

    def cost(removed: tuple[Any, ...]) -> float:
        try:
            return distance(remove_layers(loaded, removed, share=True))
        except HeadscopeError as error:
            refused.append(error)
            return math.inf

    # which sets are tried
    stacks = layers_of(loaded)
    stays = kept_of_each(loaded, count)
    n_removed = {name: len(layers) - stays[name] for name, layers in stacks.items()}
    n_subsets = math.prod(math.comb(len(stacks[name]), n) for name, n in n_removed.items())
    if n_subsets <= MOST_SUBSETS:
        costs = _costs_of_all(stacks, n_removed, cost, tell)
    else:
        costs = _costs_one_by_one(stacks, n_removed, cost, tell)
    evenly = spread_evenly(loaded, count)
    if set(evenly) not in map(set, costs):
        costs[evenly] = cost(evenly)

    # the nearest first
    possible = [removed for removed in costs if costs[removed] < math.inf]
    if not possible:
        raise InputError(f"No layers of {loaded.name} can be removed: {refused[0]}")
    return sorted(possible, key=costs.__getitem__)


def _costs_of_all(
    stacks: Stacks, n_removed: Mapping[str, int], cost: Cost, tell: Tell
) -> dict[tuple[Any, ...], float]:
    """Measure every set with ``n_removed`` layers of each stack."""
    sets_of_stacks = [combinations(stacks[name], n) for name, n in n_removed.items()]
    candidates = [tuple(chain.from_iterable(sets)) for sets in product(*sets_of_stacks)]
    costs: dict[tuple[Any, ...], float] = {}
    for i, removed in enumerate(candidates):
        tell(i, len(candidates))
        costs[removed] = cost(removed)
    return costs


def _costs_one_by_one(
    stacks: Stacks, n_removed: Mapping[str, int], cost: Cost, tell: Tell
) -> dict[tuple[Any, ...], float]:
    """Remove the layer that costs least, again and again; return the sets of the last step."""
    costs: dict[tuple[Any, ...], float] = {}
    removed: tuple[Any, ...] = ()
    n_steps = sum(n_removed.values())
    for step in range(n_steps):
        tell(step, n_steps)
        costs = {}
        for name, layers in stacks.items():
            n_gone = len(set(layers).intersection(removed))
            if n_gone == n_removed[name]:
                continue
            for layer in layers:
                if layer not in removed:
                    costs[*removed, layer] = cost((*removed, layer))
        removed = min(costs, key=costs.__getitem__)
    return costs


def spread_evenly(loaded: LoadedModel, count: int) -> tuple[Any, ...]:
    """Return what to remove so that the rest lies evenly from the first layer to the last."""
    removed: list[Any] = []
    counts = kept_of_each(loaded, count)
    for name, layers in layers_of(loaded).items():
        last = len(layers) - 1
        n_stay = counts[name]
        indices = {i * last // max(1, n_stay - 1) for i in range(n_stay)}
        removed += [layer for index, layer in enumerate(layers) if index not in indices]
    return tuple(removed)
