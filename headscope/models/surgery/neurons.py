"""Cut feed-forward networks down to some of their neurons: in place, and as a copy of a model.

:mod:`~headscope.models.anatomy.feed_forward` finds the networks. A :class:`FeedForward` holds the
first map of one (two if it is gated), its second map, and the neurons that it has by their original
numbers. A cut network's second map is marked with these numbers.
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
    """What a saved model's files say of one feed-forward network that has lost neurons."""

    first: tuple[str, ...]  # Dotted paths of its first maps
    before: int  # How many neurons it had
    ids: tuple[int, ...]  # Original numbers of the neurons that are left


def keep_neurons(feed_forward: Neurons, numbers: Collection[int]) -> None:
    """Leave only the neurons with these original numbers, in place."""
    kept = set(numbers)
    ids_before = feed_forward.neuron_ids
    removed = [index for index, number in enumerate(ids_before) if number not in kept]
    remove_rows(feed_forward.stored(), range(len(ids_before)), removed)
    second = feed_forward.second
    if second.bias is not None:  # a repair changes it: a copy that shares weights needs its own
        replace_stored(second, "bias", second.bias.detach())
    setattr(second, NEURON_IDS, tuple(number for number in ids_before if number in kept))
    setattr(second, WIDTH_BEFORE, feed_forward.width_before)
    setattr(second, FIRST_MAPS, feed_forward.first)


def record_of(base: nn.Module) -> dict[str, KeptNeurons]:
    """Describe the networks that have lost neurons, by the name of their second map, for a file."""
    names = {module: name for name, module in base.named_modules()}
    records: dict[str, KeptNeurons] = {}
    for name, feed_forward in lost_neurons(base).items():
        first = tuple(names[module] for module in feed_forward.first)
        records[name] = KeptNeurons(first, feed_forward.width_before, feed_forward.neuron_ids)
    return records


def whole_neurons(base: nn.Module, name: str, record: KeptNeurons) -> Neurons | None:
    """Find an uncut network by its record in a file, which may be damaged; None if nothing fits.

    ``name`` is the dotted path of its second map.
    """
    modules = dict(base.named_modules())
    first_maps = [modules.get(first_name) for first_name in record.first]
    second_map = modules.get(name)
    all_linear = all(isinstance(m, nn.Linear | Conv1D) for m in (*first_maps, second_map))
    if not first_maps or not all_linear:
        return None
    feed_forward = Neurons(
        first=tuple(module for module in first_maps if module is not None),
        second=second_map,
        neuron_ids=tuple(range(record.before)),
        width_before=record.before,
    )
    return feed_forward if feed_forward.fits else None


def cut_neurons(base: nn.Module, records: Mapping[str, KeptNeurons]) -> None:
    """Cut feed-forward networks of an uncut base model, in place, by their second map's name."""
    for name, record in records.items():
        feed_forward = whole_neurons(base, name, record)
        assert feed_forward is not None  # the caller has checked the records
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
    # what is asked for
    all_stacks = loaded.with_all_stacks
    by_name = {feed_forward.name: feed_forward for feed_forward in feed_forwards(all_stacks)}
    for name, numbers in neurons.items():
        if name not in by_name:
            first_name = next(iter(by_name))
            raise InputError(
                f"{loaded.name} has no feed-forward network {name}; its first is {first_name}."
            )
        _check_numbers(loaded, by_name[name], numbers)

    # a copy without these neurons
    network = copied_network(loaded, share=share)
    base = getattr(network, "base_model", network)
    for name, numbers in neurons.items():
        if len(numbers) > 0:
            copied = _same_in_copy(by_name[name], all_stacks.model, base)
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


def _same_in_copy(feed_forward: FeedForward, original: nn.Module, copied: nn.Module) -> FeedForward:
    """Return the same feed-forward network of a copy of the model, by the names of its modules."""
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
