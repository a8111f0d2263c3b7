"""Which layers go: sets of layers, by how near the outputs stay to the whole model's without them.

:func:`nearest_subsets` measures every set where there are few, else it removes one layer at a time.
:func:`spread_evenly` leaves layers evenly from the first to the last, as DistilBERT did (Sanh et
al. 2019, arXiv:1910.01108). :mod:`~headscope.shrinking.making` trains the nearest sets and this one
for a short time, since what is nearest at first need not be so after some minutes.

A *stack* is an encoder or a decoder. ``count`` says how many layers are left of the longest stack;
a shorter one keeps about the same share of its layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations, product

from headscope.core.errors import HeadscopeError, InputError
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.layer_stacks import Layer
from headscope.models.surgery.layers import remove_layers

MOST_SUBSETS = 500  # Up to so many sets, all are measured

Stacks = Mapping[str, Sequence[Layer]]  # The layers of each stack
#: The distance to the whole model's outputs without some layers; infinite if the family refuses.
Cost = Callable[[tuple[Layer, ...]], float]
Tell = Callable[[int, int], object]  # Is told how many sets, of how many, are measured


def layers_of(loaded: LoadedModel) -> dict[str, list[Layer]]:
    """List the layers of each stack, as :func:`remove_layers` takes them.

    ``{"encoder": [0, 1]}``, or of an encoder-decoder ``{"encoder": [("encoder", 0), ...], ...}``.
    """
    all_stacks = loaded.with_all_stacks
    names = [name for name in ("encoder", "decoder") if name in all_stacks.stacks]
    stacks: dict[str, list[Layer]] = {name: [] for name in names}
    for site in all_stacks.sites:  # places where attention runs; those of cross-attention aside
        if site.stack in stacks:
            layer = (site.stack, site.layer) if len(names) > 1 else site.layer
            stacks[site.stack].append(layer)
    return stacks


def longest_stack(loaded: LoadedModel) -> int:
    """Return how many layers the longest stack has."""
    return max(map(len, layers_of(loaded).values()))


def smaller_counts(loaded: LoadedModel) -> list[int]:
    """Return the numbers of layers of the longest stack that may be left, most first."""
    return list(range(longest_stack(loaded) - 1, 0, -1))


def counts_by_stack(loaded: LoadedModel, count: int) -> dict[str, int]:
    """Return how many layers of each stack are left if ``count`` of the longest stack are.

    Of 12 and 6 layers, 4 -> ``{"encoder": 4, "decoder": 2}``.
    """
    longest = longest_stack(loaded)
    return {
        name: max(1, round(count * len(layers) / longest))
        for name, layers in layers_of(loaded).items()
    }


def first_layers(loaded: LoadedModel, count: int) -> LoadedModel:
    """Return a model that keeps the first layers of each stack.

    It costs what any other ``count`` layers cost, but its outputs mean nothing: it is timed.
    """
    counts = counts_by_stack(loaded, count)
    removed: list[Layer] = []
    for stack, layers in layers_of(loaded).items():
        removed += layers[counts[stack] :]
    return remove_layers(loaded, removed, share=True) if removed else loaded


def nearest_subsets(
    loaded: LoadedModel,
    count: int,
    distance: Callable[[LoadedModel], float],
    tell: Tell,
) -> list[tuple[Layer, ...]]:
    """List sets of layers to remove that leave ``count`` in the longest stack, nearest first.

    ``distance`` measures how far a shorter model's outputs are from the whole model's.

    Raises
    ------
    InputError
        If none of these sets can be removed.
    """
    refused: list[HeadscopeError] = []

    def cost(removed: tuple[Layer, ...]) -> float:
        try:
            return distance(remove_layers(loaded, removed, share=True))
        except HeadscopeError as error:
            refused.append(error)
            return math.inf

    # all sets where they are few, else those that removing one layer at a time leads to
    stacks = layers_of(loaded)
    counts = counts_by_stack(loaded, count)
    n_removed = {name: len(layers) - counts[name] for name, layers in stacks.items()}
    n_subsets = math.prod(math.comb(len(stacks[name]), n) for name, n in n_removed.items())
    if n_subsets <= MOST_SUBSETS:
        costs = _costs_of_all(stacks, n_removed, cost, tell)
    else:
        costs = _costs_one_by_one(stacks, n_removed, cost, tell)
    evenly = spread_evenly(loaded, count)
    if not any(set(removed) == set(evenly) for removed in costs):  # in whatever order
        costs[evenly] = cost(evenly)

    # the nearest first
    possible = [removed for removed in costs if costs[removed] < math.inf]
    if not possible:
        raise InputError(f"No layers of {loaded.name} can be removed: {refused[0]}")
    return sorted(possible, key=costs.__getitem__)


def _costs_of_all(
    stacks: Stacks, n_removed: Mapping[str, int], cost: Cost, tell: Tell
) -> dict[tuple[Layer, ...], float]:
    """Measure every set with ``n_removed`` layers of each stack."""
    sets_of_stacks = [combinations(stacks[name], n) for name, n in n_removed.items()]
    candidates = [tuple(chain.from_iterable(sets)) for sets in product(*sets_of_stacks)]
    costs: dict[tuple[Layer, ...], float] = {}
    for i, removed in enumerate(candidates):
        tell(i, len(candidates))
        costs[removed] = cost(removed)
    return costs


def _costs_one_by_one(
    stacks: Stacks, n_removed: Mapping[str, int], cost: Cost, tell: Tell
) -> dict[tuple[Layer, ...], float]:
    """Remove the layer that costs least, again and again; return the sets of the last step.

    So all sets that are returned have ``n_removed`` layers, and differ in the last one.
    """
    costs: dict[tuple[Layer, ...], float] = {}
    removed: tuple[Layer, ...] = ()
    n_steps = sum(n_removed.values())
    for step in range(n_steps):
        tell(step, n_steps)
        costs = {}
        for name, layers in stacks.items():
            present = [layer for layer in layers if layer not in removed]
            if len(layers) - len(present) == n_removed[name]:
                continue  # this stack is short enough
            for layer in present:
                costs[*removed, layer] = cost((*removed, layer))
        removed = min(costs, key=costs.__getitem__)
    return costs


def spread_evenly(loaded: LoadedModel, count: int) -> tuple[Layer, ...]:
    """Return which layers to remove so that the rest lies evenly from the first to the last.

    Of six layers, ``count`` 3 keeps 0, 2, 5 and removes ``(1, 3, 4)``.
    """
    removed: list[Layer] = []
    counts = counts_by_stack(loaded, count)
    for name, layers in layers_of(loaded).items():
        last = len(layers) - 1
        n_stay = counts[name]
        n_gaps = max(1, n_stay - 1)
        staying = {i * last // n_gaps for i in range(n_stay)}
        removed += [layer for index, layer in enumerate(layers) if index not in staying]
    return tuple(removed)
