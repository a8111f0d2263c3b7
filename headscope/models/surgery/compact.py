"""Models without some of their heads: removing them for real, and filling gaps with zeros."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from headscope.core.errors import InputError
from headscope.core.heads import head_name
from headscope.models.anatomy.feed_forward import lost_neurons
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.sites import attention_modules
from headscope.models.run.intervene import shared_layers
from headscope.models.run.loaded import LoadedModel, as_before, copied_network, wrap
from headscope.models.surgery.cutting import cut_modules, fill_module
from headscope.models.surgery.layers import (
    drop_layers,
    kept_layers,
    numbered_layers,
    removed_layers,
)
from headscope.models.surgery.neurons import cut_neurons, fill_neurons, record_of

Place = tuple[int, int]


def remove_heads(
    loaded: LoadedModel, heads: Iterable[Sequence[int | str]], *, share: bool = False
) -> LoadedModel:
    """Copy a model without some of its heads: smaller weights, the same function as gates of zero.

    Parameters
    ----------
    loaded : LoadedModel
        Left as it is.
    heads : iterable of (layer, head) or (stack, layer, head)
        By their original indices; the stack where the model has several. A layer may lose all its
        heads: b_O is what it then adds. Where layers share their weights (ALBERT), a head goes in
        all of them.
    share : bool
        Let the copy use the model's own weights outside attention: less memory and time, for a copy
        that is measured or saved but never trained.

    Returns
    -------
    LoadedModel
        Its sites remember the original index of each head that is left.

    Raises
    ------
    InputError
        If a head does not exist or is gone already, or if none would be left.
    """
    wanted = with_shared(loaded.sites, [_row_of(loaded, place) for place in heads])
    for row, head in wanted:
        site = loaded.sites[row]
        if head not in site.head_ids:
            name = head_name(site.layer, head, site.stack)
            raise InputError(f"{name} has been removed from {loaded.name} already.")
    if len(wanted) == sum(site.n_heads for site in loaded.sites):
        raise InputError(f"That would remove every head of {loaded.name}; keep at least one.")
    # Cutting gives every attention map weights of its own in either case.
    network = copied_network(loaded, share=share)
    kept = {s.name: [h for h in s.head_ids if (s.row, h) not in wanted] for s in loaded.sites}
    cut_modules(network, lambda _, item: kept.get(item.name))
    return as_before(wrap(network, loaded.tokenizer, name=loaded.name), loaded)


def _row_of(loaded: LoadedModel, place: Sequence[int | str]) -> Place:
    """Translate (layer, head) or (stack, layer, head) to (row, head)."""
    *stack, layer, head = place
    if not stack and len(loaded.stacks) > 1:
        raise InputError(
            f"{loaded.name} has several stacks: name a head as (stack, layer, head), where stack "
            f"is {' or '.join(loaded.stacks)}."
        )
    layers = [site for site in loaded.sites if not stack or site.stack == stack[0]]
    if not layers:
        raise InputError(
            f"{loaded.name} has no stack {stack[0]!r}; it has {' and '.join(loaded.stacks)}."
        )
    for site in layers:
        if site.layer == layer and 0 <= int(head) < site.heads_before:
            return site.row, int(head)
    most = max(site.heads_before for site in layers)
    raise InputError(
        f"There is no head {head_name(int(layer), int(head), layers[0].stack)}: {loaded.name} has "
        f"{numbered_layers(layers)} with heads 0 to {most - 1}."
    )


def cut_like(network: nn.Module, loaded: LoadedModel) -> None:
    """Cut a full network of the same architecture down, in place, to the parts of ``loaded``."""
    whole = loaded.whole or loaded
    kept = {site.name: site.head_ids for site in whole.sites}
    if removed_layers(whole):
        drop_layers(network, kept_layers(whole))
    cut_modules(network, lambda _, item: kept.get(item.name))
    cut_neurons(getattr(network, "base_model", network), record_of(whole.model))


def with_shared(sites: Sequence[AttentionSite], heads: Iterable[Place]) -> tuple[Place, ...]:
    """Add to each head the heads that share its weights in other layers (ALBERT), sorted."""
    group_of = {row: group for group in shared_layers(sites) for row in group}
    places = {(other, head) for row, head in heads for other in group_of.get(row, (row,))}
    return tuple(sorted(places))


def removed_heads(loaded: LoadedModel) -> tuple[Place, ...]:
    """List the heads that a model has lost: row of their site, and original index."""
    every = ((site, head) for site in loaded.sites for head in range(site.heads_before))
    return tuple((site.row, head) for site, head in every if head not in site.head_ids)


def original_heads(loaded: LoadedModel) -> int:
    """Return how many heads the layer with most heads had before any was removed."""
    return max((site.heads_before for site in loaded.sites), default=0)


def expand_all(loaded: LoadedModel) -> Any:
    """Copy the network in its original shape; heads and neurons that were removed are zeros there.

    Layers that were removed stay so: no weights make a layer return its input.
    """
    network = copy.deepcopy(loaded.network)
    base = getattr(network, "base_model", network)
    for item in attention_modules(base):
        if item.n_heads < item.heads_before:
            fill_module(item)
    for network_of_neurons in lost_neurons(base).values():
        fill_neurons(network_of_neurons)
    return network
