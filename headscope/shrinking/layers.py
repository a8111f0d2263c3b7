"""Which layers stay: a few sets that are trained briefly, the nearest of which is trained on.

Among them are the sets whose outputs are nearest to the whole model's before any training (all are
tried where there are few, else layers go one at a time), and layers spread evenly from the first to
the last, as DistilBERT took them (Sanh et al. 2019, arXiv:1910.01108): what is nearest at first
need not be so after some minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from headscope.core.errors import HeadscopeError, InputError
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.layers import remove_layers

MOST_SUBSETS = 500


def layers_of(loaded: LoadedModel) -> dict[str, list[Any]]:
    """List the layers of each stack, as :func:`remove_layers` takes them."""
    whole = loaded.whole or loaded
    stacks: dict[str, list[Any]] = {s: [] for s in ("encoder", "decoder") if s in whole.stacks}
    for site in whole.sites:
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
    return {name: max(1, round(count * len(own) / longest)) for name, own in stacks.items()}


def first_layers(loaded: LoadedModel, count: int) -> LoadedModel:
    """Return a model of the right size, to be timed only: its first layers."""
    kept = kept_of_each(loaded, count)
    gone = [name for stack, own in layers_of(loaded).items() for name in own[kept[stack] :]]
    return remove_layers(loaded, gone, share=True) if gone else loaded


def nearest_subsets(
    loaded: LoadedModel,
    count: int,
    distance: Callable[[LoadedModel], float],
    tell: Callable[[int, int], object],
) -> list[tuple[Any, ...]]:
    """List what may go so that ``count`` layers of the longest stack are left, nearest first.

    Raises
    ------
    InputError
        If the family can do without none of these layers.
    """
    stacks, kept = layers_of(loaded), kept_of_each(loaded, count)
    subsets = math.prod(math.comb(len(own), kept[name]) for name, own in stacks.items())
    refused: list[HeadscopeError] = []

    def looked(gone: tuple[Any, ...]) -> float:
        try:
            return distance(remove_layers(loaded, gone, share=True))
        except HeadscopeError as error:
            refused.append(error)
            return math.inf

    if subsets <= MOST_SUBSETS:
        every = list(_subsets(stacks, kept))
        found = []
        for i, gone in enumerate(every):
            tell(i, len(every))
            found.append((looked(gone), gone))
    else:
        found = _one_at_a_time(stacks, kept, looked, tell)
    even = spread_evenly(loaded, count)
    if set(even) not in (set(gone) for _, gone in found):
        found.append((looked(even), even))
    found = sorted((item for item in found if item[0] < math.inf), key=lambda item: item[0])
    if not found:
        raise InputError(f"No layers of {loaded.name} can be removed: {refused[0]}")
    return [gone for _, gone in found]


def spread_evenly(loaded: LoadedModel, count: int) -> tuple[Any, ...]:
    """Return what goes if the layers that stay lie evenly from the first to the last."""
    gone: list[Any] = []
    kept = kept_of_each(loaded, count)
    for name, own in layers_of(loaded).items():
        last, stays = len(own) - 1, kept[name]
        places = {i * last // max(1, stays - 1) for i in range(stays)}
        gone += [layer for place, layer in enumerate(own) if place not in places]
    return tuple(gone)


def _subsets(stacks: dict[str, list[Any]], kept: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    """Yield every set of layers that may go."""
    first, *others = stacks
    for gone in combinations(stacks[first], len(stacks[first]) - kept[first]):
        if not others:
            yield gone
        else:
            rest = {name: stacks[name] for name in others}
            yield from ((*gone, *more) for more in _subsets(rest, kept))


def _one_at_a_time(
    stacks: dict[str, list[Any]],
    kept: dict[str, int],
    looked: Callable[[tuple[Any, ...]], float],
    tell: Callable[[int, int], object],
) -> list[tuple[float, tuple[Any, ...]]]:
    """Remove the layer that costs least, again and again; the last step's sets."""
    gone: tuple[Any, ...] = ()
    steps = sum(len(own) - kept[name] for name, own in stacks.items())
    found: list[tuple[float, tuple[Any, ...]]] = []
    for step in range(steps):
        tell(step, steps)
        found = [
            (looked((*gone, layer)), (*gone, layer))
            for name, own in stacks.items()
            for layer in own
            if layer not in gone and sum(item in gone for item in own) < len(own) - kept[name]
        ]
        gone = min(found, key=lambda item: item[0])[1]
    return found
