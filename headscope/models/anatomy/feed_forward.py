"""Feed-forward networks: where a model has them, and which neurons they have.

A neuron j is a row of the first map, with its bias, and a column of the second::

    out = sum over j of activation(x W_in[j] + b_in[j]) W_out[j] + b_out

Gated networks have two first maps, ``activation(x W_gate) * (x W_up)``. Some families keep these in
one tensor of twice as many rows: neuron j then owns the rows j and j + width.

Which maps these are is not looked up by a family's names but watched in a tiny run of three tokens.
First, :func:`_pairs` lists maps that may be a network: first maps from d_model to the width, and a
second one from the width back to d_model, with no attention between them. Then
:func:`_elementwise` keeps those in which no neuron depends on another: where rows of the first maps
put out zero, the second must be given zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headscope.core.errors import UnsupportedModelError
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import HeadRows, columns_of_linear, rows_of_linear
from headscope.models.run.hooks import hooked
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.watched import Call, watch

#: Attributes that removing neurons leaves on a second map: the original numbers of the neurons that
#: it still has, how many there were, and the first maps.
NEURON_IDS = "headscope_neuron_ids"
WIDTH_BEFORE = "headscope_width_before"
FIRST_MAPS = "headscope_first_maps"


@dataclass(frozen=True)
class Neurons:
    """The maps of one feed-forward network, and the neurons that they have."""

    first: tuple[nn.Module, ...]  # One map, or two of a gated network; ``nn.Linear`` or ``Conv1D``
    second: Any  # The map that adds to the residual stream
    neuron_ids: tuple[int, ...]  # Original numbers of the neurons that it has
    width_before: int  # How many it had before any was removed

    @property
    def width(self) -> int:
        """Neurons that it has now."""
        return len(self.neuron_ids)

    @property
    def fits(self) -> bool:
        """Whether the stored maps have as many rows and columns as neurons are listed."""
        second_in, _ = sizes_of(self.second)
        first_outs = {sizes_of(first)[1] for first in self.first}
        gate_and_up_in_one = len(self.first) == 1 and first_outs == {2 * self.width}
        first_fits = first_outs == {self.width} or gate_and_up_in_one
        return second_in == self.width and first_fits

    def stored(self) -> list[HeadRows]:
        """List every stored tensor in which a neuron owns rows or columns."""
        _, first_out = sizes_of(self.first[0])
        stacked_maps = first_out // self.width  # 2 where one tensor holds gate and up
        rows: list[HeadRows] = []
        for first in self.first:
            rows += rows_of_linear(first, 1, stacked_maps=stacked_maps)
        return [*rows, columns_of_linear(self.second, 1)]


def sizes_of(module: Any) -> tuple[int, int]:
    """Return how many inputs and outputs a linear map has."""
    rows, columns = module.weight.shape
    return (rows, columns) if isinstance(module, Conv1D) else (columns, rows)


@dataclass(frozen=True)
class FeedForward(Neurons):
    """One feed-forward network: its maps, and the layer whose attention runs before it."""

    name: str  # Dotted path of its second map from the base model
    stack: str  # ``encoder`` or ``decoder``
    layer: int  # Zero-based, of its stack; the first that runs it where layers share it (ALBERT)
    layers: tuple[int, ...]  # All layers of its stack that run it


def feed_forwards(loaded: LoadedModel) -> tuple[FeedForward, ...]:
    """Find the feed-forward networks of a model, or of the stacks that a view shows, in order.

    Raises
    ------
    UnsupportedModelError
        If a layer has none that can be taken apart.
    """
    all_stacks = loaded.with_all_stacks
    pairs = _elementwise(all_stacks, _pairs(all_stacks))
    names = {module: name for name, module in all_stacks.model.named_modules()}
    # What every token passes beside its experts (Qwen2-MoE) is a part of a network, not the whole.
    mixtures = _mixtures(all_stacks.model)
    pairs = [pair for pair in pairs if not names[pair.second].startswith(mixtures)]
    networks: list[FeedForward] = []
    for second in dict.fromkeys(pair.second for pair in pairs):
        runs = [pair for pair in pairs if pair.second is second]  # several in ALBERT
        width = sizes_of(second)[0]
        layers = tuple(dict.fromkeys(pair.site.layer for pair in runs))
        networks.append(
            FeedForward(
                first=runs[0].first,
                second=second,
                neuron_ids=getattr(second, NEURON_IDS, tuple(range(width))),
                width_before=getattr(second, WIDTH_BEFORE, width),
                name=names[second],
                stack=_network_stack(runs[0].site),
                layer=layers[0],
                layers=layers,
            )
        )
    _refuse_missing(loaded, networks)
    stacks = set(map(_network_stack, loaded.sites))
    return tuple(network for network in networks if network.stack in stacks)


def _refuse_missing(loaded: LoadedModel, networks: Sequence[FeedForward]) -> None:
    """Refuse a model with a layer for which no network was found."""
    with_network: set[tuple[str, int]] = set()
    for network in networks:
        with_network.update((network.stack, layer) for layer in network.layers)
    mixtures = _mixtures(loaded.with_all_stacks.model)
    for site in loaded.sites:
        if site.stack != "cross" and (site.stack, site.layer) not in with_network:
            if mixtures:
                raise UnsupportedModelError(
                    f"The feed-forward network of layer {site.layer} of {loaded.name} "
                    f"({loaded.family}) is a mixture of experts, which headscope leaves whole; "
                    "remove heads instead."
                )
            raise UnsupportedModelError(
                f"The feed-forward network of layer {site.layer} of {loaded.name} "
                f"({loaded.family}) cannot be taken apart into neurons: headscope knows two linear "
                "maps with an activation between them, gated or not; remove heads instead."
            )


def has_experts(loaded: LoadedModel) -> bool:
    """Whether any feed-forward network of a model is a mixture of experts."""
    return bool(_mixtures(loaded.with_all_stacks.model))


def _mixtures(model: nn.Module) -> tuple[str, ...]:
    """List the paths of networks made of experts: of each, whatever its parts begin with."""
    names = [name for name, _ in model.named_modules()]
    return tuple(name.removesuffix("experts") for name in names if name.endswith(".experts"))


def _network_stack(site: AttentionSite) -> str:
    """Return the stack whose layers hold the network that runs after a site."""
    return "decoder" if site.stack == "cross" else site.stack


class _Pair(NamedTuple):
    """Maps that may be a feed-forward network."""

    site: AttentionSite  # The last attention that ran before them
    first: tuple[nn.Module, ...]  # One, or two that read the same state
    second: nn.Module  # Leads back from their width


def _pairs(loaded: LoadedModel) -> list[_Pair]:
    """List the maps that may be networks, from every call of a linear map in one tiny run.

    The calls ``gate(x), up(x), down(hidden)`` give the pair of first (gate, up) and second down.
    """
    seen = watch(loaded)
    in_attention: set[nn.Module] = set()
    for site in loaded.sites:
        in_attention.update(site.module.modules())
        in_attention.add(site.projections.out.module)
    write_starts = {site.row: seen.writes[site.row].start for site in loaded.sites}
    sites_in_order = sorted(loaded.sites, key=lambda site: write_starts[site.row])

    pairs: list[_Pair] = []
    first_calls: list[Call] = []  # Of maps that read one state, which a second map may follow
    for call in seen.calls:
        if not call.is_map:
            continue
        module = call.module_turn.module
        first = tuple(earlier.module_turn.module for earlier in first_calls)
        sites_before = [s for s in sites_in_order if write_starts[s.row] < call.start]
        if module in in_attention or not sites_before:
            first_calls = []
        elif first_calls and call.x is first_calls[0].x:  # gate and up read the same tensor
            first_calls.append(call)
        elif first_calls and _leads_back(module, first):
            pairs.append(_Pair(site=sites_before[-1], first=first, second=module))
            first_calls = []
        else:  # perhaps the first map of a network
            first_calls = [call]
    return pairs


def _leads_back(second: nn.Module, first: Sequence[nn.Module]) -> bool:
    """Whether a map takes what the first maps put out, and returns to the width that they read."""
    d_model, first_out = sizes_of(first[0])
    second_in, second_out = sizes_of(second)
    if any(sizes_of(module) != (d_model, first_out) for module in first):
        return False
    gate_and_up_in_one = len(first) == 1 and first_out == 2 * second_in
    takes_all = second_in == first_out or gate_and_up_in_one
    return takes_all and second_out == d_model


def _elementwise(loaded: LoadedModel, pairs: Sequence[_Pair]) -> list[_Pair]:
    """Keep the pairs of maps between which no neuron depends on another.

    In one run, the first maps' outputs of every other neuron are set to zero. The second map must
    then be given zero for these neurons, and something else for the others.
    """
    n_neurons: dict[nn.Module, int] = {}  # By first map
    for pair in pairs:
        width, _ = sizes_of(pair.second)
        for module in pair.first:
            n_neurons[module] = width
    # Networks that have lost neurons passed before, and may be left with too few to tell.
    proven = {network.second for network in lost_neurons(loaded.model).values()}
    independent = {pair.second: True for pair in pairs}

    def silence_odd(module: nn.Module, args: object, output: Tensor) -> Tensor:
        """Set outputs of neurons 1, 3, 5, ... to zero, in both halves where two maps are one."""
        rows = torch.arange(output.shape[-1], device=output.device)
        neurons = rows % n_neurons[module]
        return output.masked_fill(neurons % 2 == 1, 0.0)

    def check(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        """Note whether the second map is given zero for these neurons, and not for all."""
        hidden = args[0]  # (batch, pos, neurons)
        odd_silent = not bool(hidden[..., 1::2].any())
        even_silent = not bool(hidden[..., 0::2].any())
        if module not in proven and (even_silent or not odd_silent):
            independent[module] = False

    hooks = [module.register_forward_hook(silence_odd) for module in n_neurons]
    hooks += [module.register_forward_pre_hook(check) for module in independent]
    with hooked(hooks):
        loaded.run_tiny()
    return [pair for pair in pairs if independent[pair.second]]


def lost_neurons(base: nn.Module) -> dict[str, Neurons]:
    """Find the networks that have lost neurons, by the name of their second map."""
    lost = {}
    for name, module in base.named_modules():
        attributes = vars(module)  # its own: a wrapper may answer for the module that it wraps
        neuron_ids = attributes.get(NEURON_IDS, ())
        width_before = attributes.get(WIDTH_BEFORE, 0)
        if len(neuron_ids) < width_before:
            lost[name] = Neurons(attributes[FIRST_MAPS], module, neuron_ids, width_before)
    return lost
