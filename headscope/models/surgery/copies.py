"""Copies of a model: without heads, in another dtype, or with random weights."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from headscope.core.errors import InputError
from headscope.core.heads import head_name
from headscope.core.memory import release_memory
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.devices import DTYPES
from headscope.models.run.fingerprints import FileWeights, fingerprint
from headscope.models.run.implementation import quiet_transformers
from headscope.models.run.intervene import shared_layers
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.wrapping import as_before, copied_network, wrap
from headscope.models.surgery.cutting import cut_modules
from headscope.models.surgery.layers import (
    drop_layers,
    kept_layers,
    numbered_layers,
    removed_layers,
    restore,
    settings_before,
)
from headscope.models.surgery.neurons import cut_neurons, record_of

Head = tuple[int, int]  # (row of its site, original index)


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
    to_remove = with_shared(loaded.sites, [_row_of(loaded, address) for address in heads])
    for row, head in to_remove:
        site = loaded.sites[row]
        if head not in site.head_ids:
            name = head_name(site.layer, head, site.stack)
            raise InputError(f"{name} has been removed from {loaded.name} already.")
    if len(to_remove) == sum(site.n_heads for site in loaded.sites):
        raise InputError(f"That would remove every head of {loaded.name}; keep at least one.")
    remaining = {
        site.name: [head for head in site.head_ids if (site.row, head) not in to_remove]
        for site in loaded.sites
    }
    # Cutting gives every attention map weights of its own in either case.
    network = copied_network(loaded, share=share)
    cut_modules(network, lambda _, item: remaining.get(item.name))
    return as_before(wrap(network, loaded.tokenizer, name=loaded.name), loaded)


def _row_of(loaded: LoadedModel, address: Sequence[int | str]) -> Head:
    """Translate (layer, head) or (stack, layer, head) to (row, head)."""
    if isinstance(address, str) or len(address) not in (2, 3):
        raise InputError(f"{address!r} names no head; give one as (layer, head), such as (0, 2).")
    *stack, layer, head = address
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
    all_stacks = loaded.with_all_stacks
    remaining = {site.name: site.head_ids for site in all_stacks.sites}
    if removed_layers(all_stacks):
        drop_layers(network, kept_layers(all_stacks))
    cut_modules(network, lambda _, item: remaining.get(item.name))
    cut_neurons(getattr(network, "base_model", network), record_of(all_stacks.model))


def with_shared(sites: Sequence[AttentionSite], heads: Iterable[Head]) -> tuple[Head, ...]:
    """Add to each head the heads that share its weights in other layers (ALBERT), sorted."""
    group_of_row: dict[int, Sequence[int]] = {}
    for group in shared_layers(sites):
        group_of_row |= dict.fromkeys(group, group)
    shared: set[Head] = set()
    for row, head in heads:
        shared |= {(sharing, head) for sharing in group_of_row.get(row, (row,))}
    return tuple(sorted(shared))


def removed_heads(loaded: LoadedModel) -> tuple[Head, ...]:
    """List the heads that a model has lost: row of their site, and original index."""
    removed: list[Head] = []
    for site in loaded.sites:
        missing = (head for head in range(site.heads_before) if head not in site.head_ids)
        removed += [(site.row, head) for head in missing]
    return tuple(removed)


def original_heads(loaded: LoadedModel) -> int:
    """Return how many heads the layer with most heads had before any was removed."""
    return max((site.heads_before for site in loaded.sites), default=0)


def cast(loaded: LoadedModel, dtype: str) -> LoadedModel:
    """Return a copy that computes in ``dtype``; the model itself where it does so already.

    It has to be validated anew: the certificate is of one type.
    """
    if loaded.dtype == dtype:
        return loaded
    sha256 = loaded.weights_sha256
    torch_dtype = DTYPES[dtype]
    # deepcopy takes these in place of the tensors with these ids: so none is held a third time.
    converted: dict[int, Any] = {}
    for parameter in loaded.network.parameters():
        if parameter.is_floating_point():
            tensor = parameter.detach().to(torch_dtype)
            converted[id(parameter)] = nn.Parameter(tensor, parameter.requires_grad)
    for buffer in loaded.network.buffers():
        if buffer.is_floating_point():
            converted[id(buffer)] = buffer.to(torch_dtype)
    network = copy.deepcopy(loaded.network, converted)
    copied = dataclasses.replace(
        wrap(network, loaded.tokenizer, name=loaded.name),
        revision=loaded.revision,
        file=None if sha256 is None else FileWeights(sha256, fingerprint(network)),
        origin=loaded.origin,
        stored_dtype=loaded.stored_dtype,
        pooling=loaded.pooling,
    )
    return copied if loaded.view_of is None else copied.only(loaded.stacks[0])


def random_twin(loaded: LoadedModel, seed: int, *, instead: bool = False) -> LoadedModel:
    """Initialise the architecture of ``loaded`` afresh, as a control.

    What ``loaded`` has lost, the twin lacks too. The global random state is left as it was. With
    ``instead`` the weights of ``loaded`` are freed first, so that only one model is in memory.
    """
    all_stacks = loaded.with_all_stacks
    parameter = next(all_stacks.model.parameters())
    device = parameter.device
    dtype = parameter.dtype
    if instead:
        all_stacks.network.to("meta")
        release_memory()
    # On the CPU, so that the twin is the same whatever device the model is on.
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.default_generator.manual_seed(seed)
        # The class itself, not what the configuration stands for: it may be a T5's encoder alone.
        config = copy.deepcopy(all_stacks.model.config)
        restore(config, settings_before(all_stacks.model))
        network = type(all_stacks.model)(config).float()
    network = network.to(device=device, dtype=dtype)
    cut_like(network, all_stacks)  # where parts have been removed
    twin = wrap(network, loaded.tokenizer, name=f"{loaded.name} with random weights")
    twin = dataclasses.replace(twin, revision=loaded.revision, pooling=loaded.pooling)
    return twin if loaded.view_of is None else twin.only(loaded.stacks[0])
