r"""Feed-forward networks: where a model has them, and which neurons they have.

A neuron j is a row of the first map, with its bias, and a column of the second::

    out = sum over j of activation(x W_in[j] + b_in[j]) W_out[j] + b_out

Gated networks have two first maps, ``activation(x W_gate) * (x W_up)``, which some families keep in
one tensor, row j beside row j + width. Which maps these are is not looked up by a family's names
but watched in a tiny run: a first map is followed by a second one that takes its width back, with
no attention between them; and where rows of the first put out zero, the second must be given zero.
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

#: Attributes of a second map that has lost neurons: the original numbers of those it has, how many
#: there were, and the first maps.
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
        """Whether the stored maps have the neurons that are listed."""
        widths = {sizes_of(first)[1] for first in self.first}
        both_in_one = len(self.first) == 1 and widths == {2 * self.width}
        return sizes_of(self.second)[0] == self.width and (widths == {self.width} or both_in_one)

    def stored(self) -> list[HeadRows]:
        """List every stored tensor in which a neuron owns rows or columns."""
        stacked_maps = sizes_of(self.first[0])[1] // self.width  # 2 where one tensor holds both
        rows: list[HeadRows] = []
        for first in self.first:
            rows += rows_of_linear(first, 1, stacked_maps=stacked_maps)
        return [*rows, columns_of_linear(self.second, 1)]


def sizes_of(module: Any) -> tuple[int, int]:
    """Return (inputs, outputs) of a linear map."""
    shape = module.weight.shape
    return (shape[0], shape[1]) if isinstance(module, Conv1D) else (shape[1], shape[0])


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
    all_stacks = loaded.with_all_stacks
    pairs = _elementwise(all_stacks, _pairs(all_stacks))
    names = {module: name for name, module in all_stacks.model.named_modules()}
    networks: list[FeedForward] = []
    for second in dict.fromkeys(pair.second for pair in pairs):
        runs = [pair for pair in pairs if pair.second is second]
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
    for site in loaded.sites:
        if site.stack != "cross" and (site.stack, site.layer) not in with_network:
            raise UnsupportedModelError(
                f"The feed-forward network of layer {site.layer} of {loaded.name} "
                f"({loaded.family}) cannot be taken apart into neurons: headscope knows two linear "
                "maps with an activation between them, gated or not; remove heads instead."
            )


def _network_stack(site: AttentionSite) -> str:
    """Return the stack whose layers hold the network that runs after a site."""
    return "decoder" if site.stack == "cross" else site.stack


class _Pair(NamedTuple):
    """First maps that read one state, and the second map that takes their width back."""

    site: AttentionSite  # The last attention that ran before them
    first: tuple[nn.Module, ...]
    second: nn.Module


def _pairs(loaded: LoadedModel) -> list[_Pair]:
    """List, from one tiny run, the maps that widen the state and the map that leads back."""
    seen = watch(loaded)
    in_attention: set[nn.Module] = set()
    for site in loaded.sites:
        in_attention.update(site.module.modules())
        in_attention.add(site.projections.out.module)
    sites_in_order = sorted(loaded.sites, key=lambda site: seen.writes[site.row].start)
    pairs: list[_Pair] = []
    opened: list[Call] = []  # Maps that read one state, which a second map may follow
    for call in seen.calls:
        if not call.is_map:
            continue
        sites_before = [s for s in sites_in_order if seen.writes[s.row].start < call.start]
        first = tuple(earlier.module_turn.module for earlier in opened)
        if call.module_turn.module in in_attention or not sites_before:
            opened = []
        elif opened and call.x is opened[0].x:
            opened.append(call)
        elif opened and _leads_back(call.module_turn.module, first):
            pairs.append(_Pair(sites_before[-1], first, call.module_turn.module))
            opened = []
        else:
            opened = [call]
    return pairs


def _leads_back(second: nn.Module, first: Sequence[nn.Module]) -> bool:
    """Whether a map leads back from the width of the maps before it, or half of a fused one."""
    d_model, width = sizes_of(first[0])
    width_in, width_out = sizes_of(second)
    alike = all(sizes_of(module) == (d_model, width) for module in first)
    halves = len(first) == 1 and width == 2 * width_in
    return alike and width_out == d_model and (width == width_in or halves)


def _elementwise(loaded: LoadedModel, pairs: Sequence[_Pair]) -> list[_Pair]:
    """Keep the pairs of maps between which no neuron depends on another.

    Every other row of the first maps is made to put out zero; the second must be given zero there
    and not everywhere.
    """
    neurons_of: dict[nn.Module, int] = {}  # Neurons, by each first map
    for pair in pairs:
        for module in pair.first:
            neurons_of[module] = sizes_of(pair.second)[0]
    second_maps = {pair.second for pair in pairs}
    proven = {network.second for network in lost_neurons(loaded.model).values()}
    independent = dict.fromkeys(second_maps, True)

    def silence_odd(module: nn.Module, args: object, output: Tensor) -> Tensor:
        neurons = torch.arange(output.shape[-1], device=output.device) % neurons_of[module]
        return output.masked_fill(neurons % 2 == 1, 0.0)

    def check(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        odd = args[0][..., 1::2]
        even = args[0][..., 0::2]
        odd_alone_silent = not bool(odd.any()) and bool(even.any())
        if module not in proven and not odd_alone_silent:
            independent[module] = False

    hooks = [module.register_forward_hook(silence_odd) for module in neurons_of]
    hooks += [module.register_forward_pre_hook(check) for module in second_maps]
    with hooked(hooks):
        loaded.run_tiny()
    return [pair for pair in pairs if independent[pair.second]]


def lost_neurons(base: nn.Module) -> dict[str, Neurons]:
    """Find the networks that have lost neurons, by the name of their second map."""
    lost = {}
    for name, module in base.named_modules():
        marks = vars(module)
        ids = marks.get(NEURON_IDS, ())
        before = marks.get(WIDTH_BEFORE, 0)
        if len(ids) < before:
            lost[name] = Neurons(marks[FIRST_MAPS], module, ids, before)
    return lost
