"""Copies of a model: without heads, in another dtype, or with random weights.

A model's ``sites`` list where attention runs: one site for each layer of each stack. A site's row
is its place in that list. Heads are named by their original indices, which they keep when others
go.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from headscope.core.errors import InputError
from headscope.core.heads import head_name
from headscope.core.memory import release_memory
from headscope.models.layouts.layout import AttentionModule, AttentionSite
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

#: Row of a head's site, and the head's original index: (8, 2) is head 2 of layer 2 of a decoder
#: that follows an encoder of six layers.
Head = tuple[int, int]


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
    UnsupportedModelError
        If it is not known where the heads' weights are.
    """
    need_weights(loaded)
    to_remove = with_shared(loaded.sites, [_head_at(loaded, address) for address in heads])
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
    _cut_to(network, remaining)
    return as_before(wrap(network, loaded.tokenizer, name=loaded.name), loaded)


def has_all_weights(loaded: LoadedModel) -> bool:
    """Whether it is known where every head's weights are."""
    return all(site.has_weights for site in loaded.sites)


def need_weights(loaded: LoadedModel) -> None:
    """Refuse a model of which that is not known."""
    for site in loaded.sites:
        site.stored()


def _head_at(loaded: LoadedModel, address: Sequence[int | str]) -> Head:
    """Translate (layer, head) or (stack, layer, head) to (row, head)."""
    if isinstance(address, str) or len(address) not in (2, 3):
        raise InputError(f"{address!r} names no head; give one as (layer, head), such as (0, 2).")
    stack = address[0] if len(address) == 3 else None
    layer, head = address[-2:]
    if stack is None and len(loaded.stacks) > 1:
        raise InputError(
            f"{loaded.name} has several stacks: name a head as (stack, layer, head), where stack "
            f"is {' or '.join(loaded.stacks)}."
        )
    sites = [site for site in loaded.sites if stack is None or site.stack == stack]
    if not sites:
        raise InputError(
            f"{loaded.name} has no stack {stack!r}; it has {' and '.join(loaded.stacks)}."
        )
    for site in sites:
        if site.layer == layer and 0 <= int(head) < site.heads_before:
            return site.row, int(head)
    most_heads = max(site.heads_before for site in sites)
    raise InputError(
        f"There is no head {head_name(int(layer), int(head), sites[0].stack)}: {loaded.name} has "
        f"{numbered_layers(sites)} with heads 0 to {most_heads - 1}."
    )


def _cut_to(network: nn.Module, remaining: Mapping[str, Sequence[int]]) -> None:
    """Leave only some heads of each attention module, by its name, in place."""

    def heads_of(index: int, module: AttentionModule) -> Sequence[int] | None:
        return remaining.get(module.name)

    cut_modules(network, heads_of)


def cut_like(network: nn.Module, loaded: LoadedModel) -> None:
    """Cut a full network of the same architecture down, in place, to the parts of ``loaded``."""
    all_stacks = loaded.with_all_stacks
    remaining = {site.name: site.head_ids for site in all_stacks.sites}
    if removed_layers(all_stacks):
        drop_layers(network, kept_layers(all_stacks))
    _cut_to(network, remaining)
    cut_neurons(getattr(network, "base_model", network), record_of(all_stacks.model))


def with_shared(sites: Sequence[AttentionSite], heads: Iterable[Head]) -> tuple[Head, ...]:
    """Add to each head the heads that share its weights in other layers (ALBERT), sorted.

    Where three layers run one module: ``[(1, 2)] -> ((0, 2), (1, 2), (2, 2))``.
    """
    rows_that_share: dict[int, Sequence[int]] = {}
    for rows in shared_layers(sites):
        for row in rows:
            rows_that_share[row] = rows
    all_heads: set[Head] = set()
    for row, head in heads:
        all_heads.update((sharing_row, head) for sharing_row in rows_that_share.get(row, (row,)))
    return tuple(sorted(all_heads))


def removed_heads(loaded: LoadedModel) -> tuple[Head, ...]:
    """List the heads that a model has lost."""
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

    The copy has no certificate: a certificate holds for one dtype.
    """
    if loaded.dtype == dtype:
        return loaded
    sha256 = loaded.weights_sha256
    torch_dtype = DTYPES[dtype]
    # deepcopy's memo of objects that are copied already, by the id of the original: it takes the
    # converted tensors, in place of copies in the old dtype that would take memory too.
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

    The twin lacks the heads, neurons and layers that ``loaded`` has lost. torch's global random
    state is left as it was. With ``instead`` the weights of ``loaded`` are freed first, so that
    only one model is in memory; ``loaded`` can then no longer run.
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
        # The model's own class: the auto class would make a whole T5 where this is its encoder.
        config = copy.deepcopy(all_stacks.model.config)
        restore(config, settings_before(all_stacks.model))
        network = type(all_stacks.model)(config).float()
    network = network.to(device=device, dtype=dtype)
    cut_like(network, all_stacks)
    twin = wrap(network, loaded.tokenizer, name=f"{loaded.name} with random weights")
    twin = dataclasses.replace(twin, revision=loaded.revision, pooling=loaded.pooling)
    return twin if loaded.view_of is None else twin.only(loaded.stacks[0])
