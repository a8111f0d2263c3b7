"""Models without some of their heads: removing them for real, and filling the gaps with zeros."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from torch import nn

from headscope.errors import InputError
from headscope.models.cutting import cut_module, fill_module
from headscope.models.gating import shared_layers
from headscope.models.layouts import AttentionSite
from headscope.models.loading import LoadedModel, wrap
from headscope.results.heads import head_name

__all__ = ["cut_like", "expand_all", "origin_of", "remove_heads", "removed_heads", "with_shared"]

Place = tuple[int, int]


def remove_heads(
    loaded: LoadedModel, heads: Iterable[Place], *, share: bool = False
) -> LoadedModel:
    """Copy a model without some of its heads: smaller weights, the same function as gates of zero.

    Parameters
    ----------
    loaded : LoadedModel
        Left as it is.
    heads : iterable of (layer, head)
        By their original indices. A layer may lose all its heads: b_O is what it then adds. Where
        layers share their weights (ALBERT), a head goes in all of them.
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
    wanted = with_shared(loaded.sites, heads)
    for layer, head in wanted:
        _check_place(loaded, layer, head)
    if len(wanted) == sum(site.n_heads for site in loaded.sites):
        raise InputError(f"That would remove every head of {loaded.name}; keep at least one.")
    network = _copied(loaded.network, share)
    kept = [[h for h in site.head_ids if (site.layer, h) not in wanted] for site in loaded.sites]
    for site in wrap(network).sites:
        cut_module(site.module, site.projections, kept[site.layer])
    return dataclasses.replace(
        wrap(network, loaded.tokenizer, name=loaded.name),
        revision=loaded.revision,
        origin=origin_of(loaded),
    )


def _copied(network: nn.Module, share: bool) -> nn.Module:
    """Copy a network; cutting gives every attention map weights of its own in either case."""
    tensors = (*network.parameters(), *network.buffers()) if share else ()
    return copy.deepcopy(network, {id(tensor): tensor for tensor in tensors})


def origin_of(loaded: LoadedModel) -> dict[str, Any]:
    """Say which model this is, or which one it was made from."""
    return loaded.origin or {
        "id": loaded.name,
        "revision": loaded.revision,
        "weights_sha256": loaded.weights_sha256,
    }


def cut_like(network: nn.Module, loaded: LoadedModel) -> None:
    """Cut a full network of the same architecture down, in place, to the heads of ``loaded``."""
    for site, like in zip(wrap(network).sites, loaded.sites, strict=True):
        cut_module(site.module, site.projections, like.head_ids)


def with_shared(sites: Sequence[AttentionSite], heads: Iterable[Place]) -> tuple[Place, ...]:
    """Add to each head the heads that share its weights in other layers (ALBERT), sorted."""
    group_of = {layer: group for group in shared_layers(sites) for layer in group}
    places = {(other, head) for layer, head in heads for other in group_of.get(layer, (layer,))}
    return tuple(sorted(places))


def removed_heads(loaded: LoadedModel) -> tuple[Place, ...]:
    """List the heads that a model has lost, by their original indices."""
    places = product(loaded.sites, range(original_heads(loaded)))
    return tuple((site.layer, head) for site, head in places if head not in site.head_ids)


def original_heads(loaded: LoadedModel) -> int:
    """Return how many heads each layer had before any was removed."""
    stated = getattr(loaded.model.config, "num_attention_heads", 0)
    seen = (max(site.head_ids, default=-1) + 1 for site in loaded.sites)
    return max(int(stated), *seen, 0)


def expand_all(loaded: LoadedModel) -> Any:
    """Copy the network in its original shape; heads that were removed are zeros there."""
    total = original_heads(loaded)
    network = copy.deepcopy(loaded.network)
    for site in {site.module: site for site in wrap(network).sites}.values():
        fill_module(site.module, site.projections, total)
    return network


def _check_place(loaded: LoadedModel, layer: int, head: int) -> None:
    total = original_heads(loaded)
    if not (0 <= layer < loaded.n_layers and 0 <= head < total):
        raise InputError(
            f"There is no head {head_name(layer, head)}: {loaded.name} has layers 0 to "
            f"{loaded.n_layers - 1} with heads 0 to {total - 1}."
        )
    if head not in loaded.sites[layer].head_ids:
        raise InputError(f"{head_name(layer, head)} has been removed from {loaded.name} already.")
