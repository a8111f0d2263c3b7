"""What a mix is compared with: each kind of unit alone, whole layers, random units, int8 alone.

All are brought to the cost of the mix where that is possible, and refitted the same way; a kind of
unit that cannot save so much alone ends where nothing is left to go.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headscope.core.errors import HeadscopeError
from headscope.models.layers import Layer, remove_layers
from headscope.models.loaded import LoadedModel
from headscope.pruning.mix.build import build
from headscope.pruning.mix.choose import Choice, Shrinking
from headscope.pruning.mix.sublayers import HEADS, NEURONS, Sublayer

KINDS = (HEADS, NEURONS)
STAGES = 3  # Points of each curve
DRAWS = 3  # Random mixes


@dataclass(frozen=True)
class Control:
    """One model to compare with."""

    name: str
    curve: str
    model: LoadedModel
    counts: tuple[int, ...]  # Units left of each sublayer that it was chosen from
    layers: tuple[Sublayer, ...]
    detail: str = ""


def on_the_way(
    loaded: LoadedModel, every: Shrinking, budget: float, kinds: Sequence[str]
) -> Iterator[Control]:
    """Yield larger mixes, and models that lose heads alone and neurons alone, up to the budget.

    ``every`` shrinks ``loaded``, and begins anew for each.
    """
    costs = every.costs
    whole = costs.total(every.layers, [item.n_units for item in every.layers])
    curves = {"mix": tuple(kinds)} if len(kinds) > 1 else {}
    for curve, own_kinds in {**curves, **{kind: (kind,) for kind in kinds}}.items():
        shrinking = every.whole(own_kinds)
        start = costs.total(shrinking.layers, shrinking.counts)
        own = budget - (whole - start)  # the units of the other kinds stay
        before: list[int] = []
        # The last point of all kinds together is the mix itself.
        for stage in range(STAGES - (own_kinds == tuple(kinds))):
            choices = shrinking.to(start + (own - start) * (stage + 1) / STAGES, rounds=1)
            if shrinking.counts == before or not _can_build(choices):
                break  # nothing is left to go
            before = list(shrinking.counts)
            model = build(loaded, choices)
            counts = tuple(shrinking.counts)
            name = "a larger mix" if curve == "mix" else curve
            yield Control(name, curve, model, counts, shrinking.layers, _left(choices))


def _can_build(choices: Sequence[Choice]) -> bool:
    return any(c.kept for c in choices)


def _left(choices: Sequence[Choice]) -> str:
    parts = []
    for kind in dict.fromkeys(c.item.kind for c in choices):
        own = [c for c in choices if c.item.kind == kind]
        left, n = sum(len(c.kept) for c in own), sum(c.item.n_units for c in own)
        parts.append(f"{left:,} of {n:,} {kind} left")
    return "; ".join(parts)


def random_mixes(
    loaded: LoadedModel, every: Shrinking, choices: Sequence[Choice], seed: int
) -> Iterator[Control]:
    """Yield models that keep as many units in every layer as the mix, drawn at random.

    ``every`` shrinks ``loaded``, and begins anew for each.
    """
    for draw in range(DRAWS):
        rng = random.Random(seed * 1_000 + draw)
        shrinking = every.whole()
        kept = [
            tuple(sorted(rng.sample(range(item.n_units), len(c.kept))))
            for item, c in zip(shrinking.layers, choices, strict=True)
        ]
        chosen = shrinking.keep(kept)
        counts = tuple(map(len, kept))
        yield Control("random", "random", build(loaded, chosen), counts, shrinking.layers)


def fewer_layers(
    loaded: LoadedModel,
    quality: Callable[[LoadedModel], float],
    enough: Callable[[LoadedModel], bool],
    did: Callable[[], object],
) -> Iterator[tuple[LoadedModel, tuple[Layer, ...]]]:
    """Yield models that lose whole layers, each time the one whose removal costs least.

    ``quality`` is measured on calibration text, less is better; ends when ``enough`` is reached, or
    at once for a family whose layers cannot be removed.
    """
    gone: tuple[Layer, ...] = ()
    model = loaded
    while not enough(model):
        tried = []
        for layer in _layers(model):
            try:
                smaller = remove_layers(model, [layer])
            except HeadscopeError:
                continue
            tried.append((quality(smaller), layer, smaller))
            did()
        if not tried:
            return
        _, layer, model = min(tried, key=lambda item: item[0])
        gone = (*gone, layer)
        yield model, gone


def _layers(model: LoadedModel) -> list[Layer]:
    """List the layers of what is pruned; cross-attention goes with its decoder layer."""
    sites = [site for site in model.sites if site.stack != "cross"]
    if not model.encoder_decoder:
        return list(dict.fromkeys(site.layer for site in sites))
    return [(site.stack, site.layer) for site in sites]
