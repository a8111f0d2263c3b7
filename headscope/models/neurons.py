"""Cut feed-forward networks of a transformers model down to some of their neurons, or fill them.

What :mod:`~headscope.models.cutting` is for heads: it knows the maps of a network and the numbers
of its neurons, and nothing of layers; :mod:`~headscope.models.feed_forward` finds them in a model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headscope.models.layouts.maps import HeadRows, columns_of_linear, rows_of_linear
from headscope.models.surgery import replace_stored, with_rows, without_rows

#: Attributes of a second map that has lost neurons: the original numbers of those it has, how many
#: there were, and the first maps.
NEURON_IDS, WIDTH_BEFORE = "headscope_neuron_ids", "headscope_width_before"
_FIRST = "headscope_first_maps"


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
    def fused(self) -> bool:
        """Whether one tensor holds both first maps."""
        return sizes_of(self.first[0])[1] == 2 * self.width

    @property
    def fits(self) -> bool:
        """Whether the stored maps have the neurons that are listed."""
        widths = {sizes_of(first)[1] for first in self.first}
        doubled = {2 * self.width} if len(self.first) == 1 else set()
        return sizes_of(self.second)[0] == self.width and (
            widths == {self.width} or widths == doubled
        )

    @property
    def W_out(self) -> Tensor:  # noqa: N802
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


@dataclass(frozen=True)
class KeptNeurons:
    """What a file says of one feed-forward network that has lost neurons."""

    first: tuple[str, ...]  # Names of its first maps
    before: int  # How many neurons it had
    kept: tuple[int, ...]  # Original numbers of those that are left


def sizes_of(module: Any) -> tuple[int, int]:
    """Return (inputs, outputs) of a linear map."""
    shape = module.weight.shape
    return (shape[0], shape[1]) if isinstance(module, Conv1D) else (shape[1], shape[0])


def keep_neurons(item: Neurons, kept: Collection[int]) -> None:
    """Leave only the neurons ``kept``, by original number, in place."""
    chosen = set(kept)
    there = {number: place for place, number in enumerate(item.neuron_ids)}
    gone = [place for number, place in there.items() if number not in chosen]
    for stored in item.stored():
        if (tensor := stored.tensor) is not None:
            rows = stored.rows(range(len(there)), gone)
            replace_stored(stored.module, stored.name, without_rows(tensor, rows, stored.axis))
    second = item.second
    if second.bias is not None:  # a repair changes it: a copy that shares weights needs its own
        replace_stored(second, "bias", second.bias.detach())
    vars(second)[NEURON_IDS] = tuple(n for n in item.neuron_ids if n in chosen)
    vars(second)[WIDTH_BEFORE], vars(second)[_FIRST] = item.width_before, item.first


def fill_neurons(item: Neurons) -> None:
    """Give a network all its neurons back, in place; those that it lacks are zeros."""
    every = range(item.width_before)
    missing = sorted(set(every).difference(item.neuron_ids))
    stored_of = item.stored()  # before the widths change
    for stored in stored_of:
        if (tensor := stored.tensor) is not None:
            full = with_rows(tensor, stored.rows(every, missing), stored.axis)
            replace_stored(stored.module, stored.name, full)
    vars(item.second)[NEURON_IDS] = tuple(every)


def lost_neurons(base: nn.Module) -> dict[str, Neurons]:
    """Find the networks that have lost neurons, by the name of their second map."""
    lost = {}
    for name, module in base.named_modules():
        marks = vars(module)
        ids, before = marks.get(NEURON_IDS, ()), marks.get(WIDTH_BEFORE, 0)
        if len(ids) < before:
            lost[name] = Neurons(marks[_FIRST], module, ids, before)
    return lost


def record_of(base: nn.Module) -> dict[str, KeptNeurons]:
    """Say which networks have lost neurons, and which are left, for a file."""
    names = {module: name for name, module in base.named_modules()}
    return {
        name: KeptNeurons(tuple(names[m] for m in item.first), item.width_before, item.neuron_ids)
        for name, item in lost_neurons(base).items()
    }


def whole_neurons(base: nn.Module, name: str, kept: KeptNeurons) -> Neurons | None:
    """Find a network that has all its neurons by what a file says; None where there is none."""
    modules = dict(base.named_modules())
    found = [modules.get(each) for each in (*kept.first, name)]
    maps = [module for module in found if isinstance(module, nn.Linear | Conv1D)]
    if len(maps) != len(found) or len(found) < 2:
        return None
    item = Neurons(tuple(maps[:-1]), maps[-1], tuple(range(kept.before)), kept.before)
    return item if item.fits else None


def cut_neurons(base: nn.Module, kept: Mapping[str, KeptNeurons]) -> None:
    """Cut the networks of a whole base model, in place; all were found before."""
    for name, own in kept.items():
        item = whole_neurons(base, name, own)
        assert item is not None
        keep_neurons(item, own.kept)
