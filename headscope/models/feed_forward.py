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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headscope.core.errors import InputError, UnsupportedModelError
from headscope.models.hooks import hooked
from headscope.models.layouts import AttentionSite
from headscope.models.layouts.layout import HeadRows, columns_of_linear, rows_of_linear
from headscope.models.loaded import LoadedModel
from headscope.models.surgery import replace_stored, with_rows, without_rows

#: Attributes of a second map: the original numbers of the neurons it has, and how many there were.
NEURON_IDS, WIDTH_BEFORE = "headscope_neuron_ids", "headscope_width_before"
#: A number that config.json may state for the width, by family.
WIDTH_SETTINGS = ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "ffn_dim")


@dataclass(frozen=True)
class FeedForward:
    """One feed-forward network: its maps, and the layer whose attention runs before it."""

    name: str  # Dotted path of its second map from the base model
    stack: str  # ``encoder`` or ``decoder``
    layer: int  # Zero-based, of its stack; the first that runs it where layers share it (ALBERT)
    layers: tuple[int, ...]  # All layers that run it
    first: tuple[nn.Module, ...]  # One map, or two of a gated network; ``nn.Linear`` or ``Conv1D``
    second: Any  # The map that adds to the residual stream
    neuron_ids: tuple[int, ...]  # Original numbers of the neurons that it has
    width_before: int  # How many it had before any was removed

    @property
    def width(self) -> int:
        """Neurons that it has now."""
        return len(self.neuron_ids)

    @property
    def fused(self) -> bool:
        """Whether one tensor holds both first maps."""
        return _sizes(self.first[0])[1] == 2 * self.width

    @property
    def second_weight(self) -> Tensor:
        """The second map, (width, d_model): a view of what is stored."""
        weight: Tensor = self.second.weight
        return weight if isinstance(self.second, Conv1D) else weight.t()

    def stored(self) -> list[HeadRows]:
        """List every stored tensor in which a neuron owns rows or columns."""
        parts = 2 if self.fused else 1
        rows = [row for first in self.first for row in rows_of_linear(first, 1, parts=parts)]
        return [*rows, columns_of_linear(self.second, 1)]

    @property
    def numbers_per_neuron(self) -> int:
        """Stored numbers that one neuron owns."""
        tensors = [(rows, rows.tensor) for rows in self.stored()]
        return sum(
            t.numel() * rows.parts // t.shape[rows.axis] for rows, t in tensors if t is not None
        )


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
        width = _sizes(second)[0]
        ids = getattr(second, NEURON_IDS, tuple(range(width)))
        layers = tuple(dict.fromkeys(pair.site.layer for pair in own))
        stack = "decoder" if own[0].site.stack == "cross" else own[0].site.stack
        before = getattr(second, WIDTH_BEFORE, width)
        items.append(
            FeedForward(names[second], stack, layers[0], layers, own[0].first, second, ids, before)
        )
    return tuple(items)


@dataclass(frozen=True)
class _Pair:
    site: AttentionSite  # the last attention that ran before it
    first: tuple[nn.Module, ...]
    second: nn.Module


def _pairs(whole: LoadedModel) -> list[_Pair]:
    """Watch one tiny run: maps that open a width and the map that closes it, after attention."""
    inside = {m for site in whole.sites for m in _maps_of(site)}
    maps = [m for m in whole.model.modules() if isinstance(m, nn.Linear | Conv1D)]
    turns = {site.module: _Turns(whole.sites, site.module) for site in whole.sites}
    pairs: list[_Pair] = []
    last: AttentionSite | None = None
    opened: list[nn.Module] = []
    given: Tensor | None = None

    def attention(module: nn.Module, args: object, output: object) -> None:
        nonlocal last
        last = turns[module].next()

    def entered(module: nn.Module, args: tuple[Any, ...]) -> None:
        nonlocal opened, given
        if module in inside or last is None:
            opened = []
            return
        width_in, width_out = _sizes(module)
        if opened and args[0] is given:
            opened.append(module)
            return
        if opened:
            d_model, width = _sizes(opened[0])
            alike = all(_sizes(m) == (d_model, width) for m in opened)
            halves = len(opened) == 1 and width == 2 * width_in
            if alike and width_out == d_model and (width == width_in or halves):
                pairs.append(_Pair(last, tuple(opened), module))
                opened = []
                return
        opened, given = [module], args[0]

    hooks = [module.register_forward_hook(attention) for module in turns]
    hooks += [module.register_forward_pre_hook(entered) for module in maps]
    with hooked(hooks):
        whole.run_tiny()
    return pairs


class _Turns:
    """The sites of one module, in the order in which it serves them."""

    def __init__(self, sites: Sequence[AttentionSite], module: nn.Module) -> None:
        self._sites = [site for site in sites if site.module is module]
        self._calls = 0

    def next(self) -> AttentionSite:
        self._calls += 1
        return self._sites[(self._calls - 1) % len(self._sites)]


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
    widths = {pair.second: _sizes(pair.second)[0] for pair in pairs}
    of = {module: widths[pair.second] for pair in pairs for module in pair.first}
    good = dict.fromkeys(widths, True)

    def silence(module: nn.Module, args: object, output: Tensor) -> Tensor:
        odd = torch.arange(output.shape[-1], device=output.device) % of[module] % 2 == 1
        return output.masked_fill(odd, 0.0)

    def check(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        odd, even = args[0][..., 1::2], args[0][..., 0::2]
        good[module] &= not bool(odd.any()) and bool(even.any())

    hooks = [module.register_forward_hook(silence) for module in first]
    hooks += [module.register_forward_pre_hook(check) for module in widths]
    with hooked(hooks):
        whole.run_tiny()
    return [pair for pair in pairs if good[pair.second]]


def _sizes(module: Any) -> tuple[int, int]:
    """Return (inputs, outputs) of a linear map."""
    shape = module.weight.shape
    return (shape[0], shape[1]) if isinstance(module, Conv1D) else (shape[1], shape[0])


# --- gates ----------------------------------------------------------------------------------------


@contextmanager
def gated_neurons(gates: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Multiply neurons by gates in every pass of the block, by the second map they enter.

    Gates are (width,), or (batch, 1, width) so that one backward pass gives each example's
    derivative. A gate of zero equals the neuron's removal.
    """

    def multiply(gate: Tensor) -> Callable[..., tuple[Tensor, ...]]:
        return lambda _, args: (args[0] * gate.to(args[0]), *args[1:])

    with hooked(m.register_forward_pre_hook(multiply(gate)) for m, gate in gates.items()):
        yield


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
    from headscope.models.compact import as_before
    from headscope.models.loading import wrap

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


def keep_neurons(item: FeedForward, kept: Sequence[int]) -> None:
    """Leave only the neurons ``kept``, by original number, in place."""
    chosen = set(kept)
    gone = [number for number in item.neuron_ids if number not in chosen]
    for stored in item.stored():
        if (tensor := stored.tensor) is not None:
            rows = stored.rows(item.neuron_ids, gone)
            replace_stored(stored.module, stored.name, without_rows(tensor, rows, stored.axis))
    second = item.second
    if second.bias is not None:  # a repair changes it: a copy that shares weights needs its own
        replace_stored(second, "bias", second.bias.detach())
    vars(second)[NEURON_IDS] = tuple(n for n in item.neuron_ids if n in chosen)
    vars(second)[WIDTH_BEFORE] = item.width_before


def fill_neurons(item: FeedForward) -> None:
    """Give a network all its neurons back, in place; those that it lacks are zeros."""
    every = range(item.width_before)
    missing = sorted(set(every).difference(item.neuron_ids))
    for stored in item.stored():
        if (tensor := stored.tensor) is not None:
            full = with_rows(tensor, stored.rows(every, missing), stored.axis)
            replace_stored(stored.module, stored.name, full)
    vars(item.second)[NEURON_IDS] = tuple(every)


def removed_neurons(loaded: LoadedModel) -> dict[str, tuple[int, ...]]:
    """List the neurons that a model has lost, by the name of their feed-forward network."""
    lost = {}
    for name, module in (loaded.whole or loaded).model.named_modules():
        if (ids := vars(module).get(NEURON_IDS)) is not None:
            there = set(ids)
            every = range(vars(module)[WIDTH_BEFORE])
            lost[name] = tuple(number for number in every if number not in there)
    return {name: numbers for name, numbers in lost.items() if numbers}
