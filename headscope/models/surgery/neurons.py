"""Cut feed-forward networks down to some of their neurons.

In place, as :mod:`~headscope.models.surgery.cutting` does it to heads, and as a copy of a model, as
:mod:`~headscope.models.surgery.copies` does. :mod:`~headscope.models.anatomy.feed_forward` finds
the networks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import nn
from transformers.pytorch_utils import Conv1D

from headscope.core.errors import InputError
from headscope.models.anatomy.feed_forward import (
    FIRST_MAPS,
    NEURON_IDS,
    WIDTH_BEFORE,
    FeedForward,
    Neurons,
    feed_forwards,
    lost_neurons,
)
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.wrapping import as_before, copied_network, wrap
from headscope.models.surgery.cutting import remove_rows, replace_stored


@dataclass(frozen=True)
class KeptNeurons:
    """What a file says of one feed-forward network that has lost neurons."""

    first: tuple[str, ...]  # Names of its first maps
    before: int  # How many neurons it had
    ids: tuple[int, ...]  # Original numbers of those that are left


def keep_neurons(item: Neurons, numbers: Collection[int]) -> None:
    """Leave only the neurons with these original numbers, in place."""
    chosen = set(numbers)
    removed = [index for index, number in enumerate(item.neuron_ids) if number not in chosen]
    remove_rows(item.stored(), range(len(item.neuron_ids)), removed)
    second = item.second
    if second.bias is not None:  # a repair changes it: a copy that shares weights needs its own
        replace_stored(second, "bias", second.bias.detach())
    vars(second)[NEURON_IDS] = tuple(n for n in item.neuron_ids if n in chosen)
    vars(second)[WIDTH_BEFORE] = item.width_before
    vars(second)[FIRST_MAPS] = item.first


def record_of(base: nn.Module) -> dict[str, KeptNeurons]:
    """Say which networks have lost neurons, and which are left, for a file."""
    names = {module: name for name, module in base.named_modules()}
    records: dict[str, KeptNeurons] = {}
    for name, item in lost_neurons(base).items():
        first = tuple(names[module] for module in item.first)
        records[name] = KeptNeurons(first, item.width_before, item.neuron_ids)
    return records


def whole_neurons(base: nn.Module, name: str, record: KeptNeurons) -> Neurons | None:
    """Find a network that has all its neurons by its record in a file; None where there is none."""
    modules = dict(base.named_modules())
    candidates = [modules.get(each) for each in (*record.first, name)]
    maps = [module for module in candidates if isinstance(module, nn.Linear | Conv1D)]
    if len(maps) != len(candidates) or len(candidates) < 2:
        return None
    *first, second = maps
    item = Neurons(tuple(first), second, tuple(range(record.before)), record.before)
    return item if item.fits else None


def cut_neurons(base: nn.Module, records: Mapping[str, KeptNeurons]) -> None:
    """Cut the feed-forward networks of an uncut base model, in place; all of them exist."""
    for name, record in records.items():
        item = whole_neurons(base, name, record)
        assert item is not None
        keep_neurons(item, record.ids)


# --- copies of a model ----------------------------------------------------------------------------


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
    all_stacks = loaded.with_all_stacks
    items = {item.name: item for item in feed_forwards(all_stacks)}
    for name, numbers in neurons.items():
        if name not in items:
            raise InputError(
                f"{loaded.name} has no feed-forward network {name}; its first is "
                f"{next(iter(items))}."
            )
        _check_numbers(loaded, items[name], numbers)
    network = copied_network(loaded, share=share)
    base = getattr(network, "base_model", network)
    for name, numbers in neurons.items():
        if len(numbers):
            copied = _same_of_copy(items[name], all_stacks.model, base)
            keep_neurons(copied, set(copied.neuron_ids).difference(numbers))
    return as_before(wrap(network, loaded.tokenizer, name=loaded.name), loaded)


def _check_numbers(loaded: LoadedModel, item: FeedForward, numbers: Sequence[int]) -> None:
    """Refuse to remove neurons that are not there, or all of them."""
    removed = set(numbers)
    if missing := sorted(removed.difference(item.neuron_ids)):
        raise InputError(f"{item.name} of {loaded.name} has no neuron {missing[0]} (any more).")
    if len(removed) == len(item.neuron_ids):
        raise InputError(
            f"That would remove every neuron of {item.name} of {loaded.name}; keep at least one, "
            "or remove the whole layer."
        )


def _same_of_copy(item: FeedForward, original: nn.Module, copied: nn.Module) -> FeedForward:
    """Return the same feed-forward network of a copy."""
    names = {module: name for name, module in original.named_modules()}
    first = tuple(copied.get_submodule(names[module]) for module in item.first)
    return dataclasses.replace(item, first=first, second=copied.get_submodule(item.name))


def removed_neurons(loaded: LoadedModel) -> dict[str, tuple[int, ...]]:
    """List the neurons that a model has lost, by the name of their feed-forward network."""
    base = loaded.with_all_stacks.model
    lost = {}
    for name, item in lost_neurons(base).items():
        present = set(item.neuron_ids)
        lost[name] = tuple(n for n in range(item.width_before) if n not in present)
    return lost
