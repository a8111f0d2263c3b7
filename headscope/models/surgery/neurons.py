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


def keep_neurons(feed_forward: Neurons, numbers: Collection[int]) -> None:
    """Leave only the neurons with these original numbers, in place."""
    chosen = set(numbers)
    removed = [
        index for index, number in enumerate(feed_forward.neuron_ids) if number not in chosen
    ]
    remove_rows(feed_forward.stored(), range(len(feed_forward.neuron_ids)), removed)
    second = feed_forward.second
    if second.bias is not None:  # a repair changes it: a copy that shares weights needs its own
        replace_stored(second, "bias", second.bias.detach())
    vars(second)[NEURON_IDS] = tuple(n for n in feed_forward.neuron_ids if n in chosen)
    vars(second)[WIDTH_BEFORE] = feed_forward.width_before
    vars(second)[FIRST_MAPS] = feed_forward.first


def record_of(base: nn.Module) -> dict[str, KeptNeurons]:
    """Say which networks have lost neurons, and which are left, for a file."""
    names = {module: name for name, module in base.named_modules()}
    records: dict[str, KeptNeurons] = {}
    for name, feed_forward in lost_neurons(base).items():
        first = tuple(names[module] for module in feed_forward.first)
        records[name] = KeptNeurons(first, feed_forward.width_before, feed_forward.neuron_ids)
    return records


def whole_neurons(base: nn.Module, name: str, record: KeptNeurons) -> Neurons | None:
    """Find an uncut network by its record in a file; None where there is none that fits."""
    modules = dict(base.named_modules())
    candidates = [modules.get(each) for each in (*record.first, name)]
    maps = [module for module in candidates if isinstance(module, nn.Linear | Conv1D)]
    if len(maps) != len(candidates) or len(candidates) < 2:
        return None
    *first, second = maps
    feed_forward = Neurons(tuple(first), second, tuple(range(record.before)), record.before)
    return feed_forward if feed_forward.fits else None


def cut_neurons(base: nn.Module, records: Mapping[str, KeptNeurons]) -> None:
    """Cut the feed-forward networks of an uncut base model, in place; all of them exist."""
    for name, record in records.items():
        feed_forward = whole_neurons(base, name, record)
        assert feed_forward is not None
        keep_neurons(feed_forward, record.ids)


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
    by_name = {feed_forward.name: feed_forward for feed_forward in feed_forwards(all_stacks)}
    for name, numbers in neurons.items():
        if name not in by_name:
            first_name = next(iter(by_name))
            raise InputError(
                f"{loaded.name} has no feed-forward network {name}; its first is {first_name}."
            )
        _check_numbers(loaded, by_name[name], numbers)
    network = copied_network(loaded, share=share)
    base = getattr(network, "base_model", network)
    for name, numbers in neurons.items():
        if len(numbers):
            copied = _same_of_copy(by_name[name], all_stacks.model, base)
            keep_neurons(copied, set(copied.neuron_ids).difference(numbers))
    return as_before(wrap(network, loaded.tokenizer, name=loaded.name), loaded)


def _check_numbers(loaded: LoadedModel, feed_forward: FeedForward, numbers: Sequence[int]) -> None:
    """Refuse to remove neurons that are not there, or all of them."""
    removed = set(numbers)
    if missing := sorted(removed.difference(feed_forward.neuron_ids)):
        raise InputError(
            f"{feed_forward.name} of {loaded.name} has no neuron {missing[0]} (any more)."
        )
    if len(removed) == len(feed_forward.neuron_ids):
        raise InputError(
            f"That would remove every neuron of {feed_forward.name} of {loaded.name}; keep at "
            "least one, or remove the whole layer."
        )


def _same_of_copy(feed_forward: FeedForward, original: nn.Module, copied: nn.Module) -> FeedForward:
    """Return the same feed-forward network of a copy."""
    names = {module: name for name, module in original.named_modules()}
    first = tuple(copied.get_submodule(names[module]) for module in feed_forward.first)
    return dataclasses.replace(
        feed_forward, first=first, second=copied.get_submodule(feed_forward.name)
    )


def removed_neurons(loaded: LoadedModel) -> dict[str, tuple[int, ...]]:
    """List the neurons that a model has lost, by the name of their feed-forward network."""
    base = loaded.with_all_stacks.model
    removed: dict[str, tuple[int, ...]] = {}
    for name, feed_forward in lost_neurons(base).items():
        present = set(feed_forward.neuron_ids)
        removed[name] = tuple(n for n in range(feed_forward.width_before) if n not in present)
    return removed
