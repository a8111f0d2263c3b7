r"""Feed-forward networks: where a model has them, their neurons gated, and neurons removed.

A neuron j is a row of the first map, with its bias, and a column of the second::

    out = sum over j of activation(x W_in[j] + b_in[j]) W_out[j] + b_out

Gated networks have two first maps, ``activation(x W_gate) * (x W_up)``, which some families keep in
one tensor, row j beside row j + width. Which maps these are is not looked up by a family's names
but watched in a tiny run: a first map is followed by a second one that takes its width back, with
no attention between them; and where rows of the first put out zero, the second must be given zero.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headscope.core.errors import CheckpointError, InputError, UnsupportedModelError
from headscope.models.hooks import hooked
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.manifest import KeptParts
from headscope.models.neurons import (
    NEURON_IDS,
    WIDTH_BEFORE,
    Neurons,
    keep_neurons,
    lost_neurons,
    sizes_of,
)
from headscope.models.watched import Call, watch
from headscope.models.wrap import as_before, wrap


@dataclass(frozen=True)
class FeedForward(Neurons):
    """One feed-forward network: its maps, and the layer whose attention runs before it."""

    name: str  # Dotted path of its second map from the base model
    stack: str  # ``encoder`` or ``decoder``
    layer: int  # Zero-based, of its stack; the first that runs it where layers share it (ALBERT)
    layers: tuple[int, ...]  # All layers that run it


def feed_forwards(loaded: LoadedModel) -> tuple[FeedForward, ...]:
    """Find the feed-forward networks of a model, or of the stacks that a view shows, in order.

    Raises
    ------
    UnsupportedModelError
        If a layer has none that can be taken apart.
    """
    whole = loaded.whole or loaded
    found = _watched(whole)
    stacks = {"decoder" if site.stack == "cross" else site.stack for site in loaded.sites}
    missing = [
        site
        for site in loaded.sites
        if site.stack != "cross"
        and not any(f.stack == site.stack and site.layer in f.layers for f in found)
    ]
    if missing:
        raise UnsupportedModelError(
            f"The feed-forward network of layer {missing[0].layer} of {loaded.name} "
            f"({loaded.family}) cannot be taken apart into neurons: headscope knows two linear "
            "maps with an activation between them, gated or not; choose the units heads."
        )
    return tuple(item for item in found if item.stack in stacks)


def _watched(whole: LoadedModel) -> tuple[FeedForward, ...]:
    """List pairs of maps that behave like feed-forward networks."""
    pairs = _pairs(whole)
    kept = _elementwise(whole, pairs)
    names = {module: name for name, module in whole.model.named_modules()}
    items: list[FeedForward] = []
    for second in dict.fromkeys(pair.second for pair in kept):
        own = [pair for pair in kept if pair.second is second]
        width = sizes_of(second)[0]
        ids = getattr(second, NEURON_IDS, tuple(range(width)))
        layers = tuple(dict.fromkeys(pair.site.layer for pair in own))
        stack = "decoder" if own[0].site.stack == "cross" else own[0].site.stack
        before = getattr(second, WIDTH_BEFORE, width)
        items.append(
            FeedForward(own[0].first, second, ids, before, names[second], stack, layers[0], layers)
        )
    return tuple(items)


@dataclass(frozen=True)
class _Pair:
    site: AttentionSite  # the last attention that ran before it
    first: tuple[nn.Module, ...]
    second: nn.Module


def _pairs(whole: LoadedModel) -> list[_Pair]:
    """Watch one tiny run: maps that open a width and the map that closes it, after attention."""
    seen = watch(whole)
    inside = {m for site in whole.sites for m in _maps_of(site)}
    writes = sorted(((seen.writes[s.row].start, s) for s in whole.sites), key=lambda w: w[0])
    pairs: list[_Pair] = []
    opened: list[Call] = []
    for call in seen.calls:
        before = [site for start, site in writes if start < call.start]
        if not call.is_map:
            continue
        if call.place.module in inside or not before:
            opened = []
        elif opened and call.x is opened[0].x:
            opened.append(call)
        elif opened and _closes(call.place.module, [one.place.module for one in opened]):
            first = tuple(one.place.module for one in opened)
            pairs.append(_Pair(before[-1], first, call.place.module))
            opened = []
        else:
            opened = [call]
    return pairs


def _closes(second: nn.Module, first: Sequence[nn.Module]) -> bool:
    """Whether a map takes the width of the maps before it, or half of a fused one, back."""
    d_model, width = sizes_of(first[0])
    width_in, width_out = sizes_of(second)
    alike = all(sizes_of(module) == (d_model, width) for module in first)
    halves = len(first) == 1 and width == 2 * width_in
    return alike and width_out == d_model and (width == width_in or halves)


def _maps_of(site: AttentionSite) -> list[nn.Module]:
    """List every linear map of a site: its four, and any other that lies in its module."""
    p = site.projections
    return [*site.module.modules(), *(item.module for item in (p.q, p.k, p.v, p.out))]


def _elementwise(whole: LoadedModel, pairs: Sequence[_Pair]) -> list[_Pair]:
    """Keep the pairs between which every neuron goes its own way.

    Every other row of the first maps is made to put out zero; the second must be given zero there
    and not everywhere.
    """
    first = {module for pair in pairs for module in pair.first}
    widths = {pair.second: sizes_of(pair.second)[0] for pair in pairs}
    marked = {item.second for item in lost_neurons(whole.model).values()}  # proved already
    of = {module: widths[pair.second] for pair in pairs for module in pair.first}
    good = dict.fromkeys(widths, True)

    def silence(module: nn.Module, args: object, output: Tensor) -> Tensor:
        odd = torch.arange(output.shape[-1], device=output.device) % of[module] % 2 == 1
        return output.masked_fill(odd, 0.0)

    def check(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        odd, even = args[0][..., 1::2], args[0][..., 0::2]
        good[module] &= module in marked or (not bool(odd.any()) and bool(even.any()))

    hooks = [module.register_forward_hook(silence) for module in first]
    hooks += [module.register_forward_pre_hook(check) for module in widths]
    with hooked(hooks):
        whole.run_tiny()
    return [pair for pair in pairs if good[pair.second]]


# --- removing -------------------------------------------------------------------------------------


def remove_neurons(
    loaded: LoadedModel, neurons: Mapping[str, Sequence[int]], *, share: bool = False
) -> LoadedModel:
    """Copy a model without some neurons of its feed-forward networks.

    Parameters
    ----------
    loaded : LoadedModel
        Left as it is.
    neurons : mapping of str to sequence of int
        By the name of a feed-forward network (:attr:`FeedForward.name`): the original numbers of
        the neurons that go.
    share : bool
        Let the copy use the model's own weights elsewhere: less memory, for a copy that is measured
        or saved but never trained.

    Raises
    ------
    InputError
        If a network or neuron is not there, or none would be left in a network.
    UnsupportedModelError
        If a layer's network cannot be taken apart.
    """
    whole = loaded.whole or loaded
    known = {item.name: item for item in feed_forwards(whole)}
    kept = {}
    for name, numbers in neurons.items():
        if name not in known:
            raise InputError(
                f"{loaded.name} has no feed-forward network {name}; its first is "
                f"{next(iter(known))}."
            )
        there, gone = known[name].neuron_ids, set(numbers)
        if missing := sorted(gone.difference(there)):
            raise InputError(f"{name} of {loaded.name} has no neuron {missing[0]} (any more).")
        if len(gone) == len(there):
            raise InputError(
                f"That would remove every neuron of {name} of {loaded.name}; keep at least one, or "
                "remove the whole layer."
            )
        kept[name] = [number for number in there if number not in gone]
    tensors = (*loaded.network.parameters(), *loaded.network.buffers()) if share else ()
    network = copy.deepcopy(loaded.network, {id(tensor): tensor for tensor in tensors})
    base = getattr(network, "base_model", network)
    for name, left in kept.items():
        if len(left) < known[name].width:
            keep_neurons(_moved(known[name], whole.model, base), left)
    return as_before(wrap(network, loaded.tokenizer, name=loaded.name), loaded)


def _moved(item: FeedForward, old: nn.Module, new: nn.Module) -> FeedForward:
    """Return the same feed-forward network of a copy."""
    names = {module: name for name, module in old.named_modules()}
    first = tuple(new.get_submodule(names[module]) for module in item.first)
    return dataclasses.replace(item, first=first, second=new.get_submodule(item.name))


def check_neurons(loaded: LoadedModel, kept: KeptParts) -> None:
    """Compare the neurons that a file names with the feed-forward networks that were seen running.

    Raises
    ------
    CheckpointError
        If it names maps that are none.
    """
    if not kept.neurons:
        return
    names = {module: name for name, module in loaded.model.named_modules()}
    found = {item.name: tuple(names[m] for m in item.first) for item in _watched(loaded)}
    for name, own in kept.neurons.items():
        if found.get(name) != own.first:
            raise CheckpointError(
                f"{kept.path} names {name} with {' and '.join(own.first)} as a feed-forward "
                "network, which the model does not have."
            )


def removed_neurons(loaded: LoadedModel) -> dict[str, tuple[int, ...]]:
    """List the neurons that a model has lost, by the name of their feed-forward network."""
    base = (loaded.whole or loaded).model
    lost = {}
    for name, item in lost_neurons(base).items():
        there = set(item.neuron_ids)
        lost[name] = tuple(n for n in range(item.width_before) if n not in there)
    return lost
