"""What can be removed on its own, and reading heads as people write them: ``L0H1,L3H*``.

:class:`Units` serves those who choose heads to remove, :func:`parse_heads` the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from headscope.core.errors import InputError
from headscope.models.run.intervene import shared_layers
from headscope.models.run.loaded import LoadedModel

_HEAD = re.compile(r"(?:(encoder|decoder|cross):)?L(\d{1,9})H(\d{1,9}|\*)", re.IGNORECASE)
Head = tuple[int, int]  # (layer, head), zero-based: indices in the model as it is loaded.


class Units:
    """The removable units of a model, and the conversion between them and its grid of heads.

    In most models a unit is a head; in ALBERT, which runs one module in every layer, the same head
    of all layers. ``n_heads`` has the number of heads of each layer, ``shared`` groups the layers
    that run one module:

    * n_heads [2, 1], shared [[0], [1]] -> units ((0, 0),), ((0, 1),), ((1, 0),)
    * n_heads [2, 2], shared [[0, 1]] -> units ((0, 0), (1, 0)), ((0, 1), (1, 1))

    A *grid* of heads has an entry for every layer and head: (n_layers, most heads of a layer).
    """

    def __init__(self, n_heads: Sequence[int], shared: Sequence[Sequence[int]]) -> None:
        n_layers = len(n_heads)
        most_heads = max(n_heads, default=0)
        self.shape = (n_layers, most_heads)
        members: list[tuple[Head, ...]] = []
        for layers in sorted(map(sorted, shared)):
            heads_of_first = range(n_heads[layers[0]])
            members += [tuple((layer, head) for layer in layers) for head in heads_of_first]
        self.members = tuple(members)  # The heads of each unit
        first_layers = [heads[0][0] for heads in members]
        self.layers = torch.tensor(first_layers, dtype=torch.long)  # The first layer of each unit
        self._unit_of: dict[Head, int] = {}
        #: (entries of the flattened grid, units): 1 where the head belongs to the unit.
        self._matrix = torch.zeros(n_layers * most_heads, len(members))
        for unit, heads in enumerate(members):
            for layer, head in heads:
                self._unit_of[layer, head] = unit
                self._matrix[layer * most_heads + head, unit] = 1.0

    def __len__(self) -> int:
        return len(self.members)

    @property
    def shared(self) -> bool:
        """Whether a unit has heads of several layers."""
        return any(len(heads) > 1 for heads in self.members)

    def contract(self, grid: Tensor) -> Tensor:
        """Sum a grid over the heads of each unit: (..., n_layers, n_heads) -> (..., n_units).

        So the derivatives by the gates of heads become those by the gates of units.
        """
        return grid.flatten(-2) @ self._matrix.to(grid)

    def expand(self, values: Tensor) -> Tensor:
        """Give every head the value of its unit: (..., n_units) -> (..., n_layers, n_heads)."""
        flat = values @ self._matrix.to(values).t()
        return flat.reshape(*values.shape[:-1], *self.shape)

    def gates(self, removed: Iterable[int]) -> Tensor:
        """Return gates (n_units,) that are 0 at removed units and 1 elsewhere."""
        gates = torch.ones(len(self))
        gates[list(removed)] = 0.0
        return gates

    def unit(self, head: Head) -> int:
        """Return the unit that a head belongs to."""
        return self._unit_of[head]

    def heads(self, units: Iterable[int]) -> tuple[Head, ...]:
        """List the heads of some units in the order of layer and head."""
        return tuple(sorted(chain.from_iterable(self.members[unit] for unit in units)))


def units_of(loaded: LoadedModel) -> Units:
    """List what can be removed from a model on its own."""
    return Units([site.n_heads for site in loaded.sites], shared_layers(loaded.sites))


def parse_heads(
    text: str, heads: Mapping[tuple[str, int], Sequence[int]]
) -> list[tuple[str, int, int]]:
    """Read heads as (stack, layer, head), each once and sorted; ``L3H*`` is all of layer 3.

    "L0H1, L3H*" -> [("encoder", 0, 1), ("encoder", 3, 0), ("encoder", 3, 1), ...]. Where the model
    has several stacks each name says its own: ``cross:L3H5``. ``heads`` has the numbers of the
    heads that each (stack, layer) has, as they were before any pruning.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("No head is named; write heads as L0H1,L3H* (counted from zero).")
    parsed: set[tuple[str, int, int]] = set()
    for name in names:
        stack, layer, head = _parse_head(name, heads)
        if head == "*":
            parsed |= {(stack, layer, number) for number in heads[stack, layer]}
        else:
            parsed.add((stack, layer, int(head)))
    return sorted(parsed)


def _parse_head(name: str, heads: Mapping[tuple[str, int], Sequence[int]]) -> tuple[str, int, str]:
    """Read one name as stack, layer and head (or ``*``); refuse what the model does not have."""
    stacks = list(dict.fromkeys(stack for stack, _ in heads))
    match = _HEAD.fullmatch(name)
    if match is None:
        raise InputError(f"{name!r} is not a head; write L0H1, or L3H* for all of layer 3.")
    if match[1] is None and len(stacks) > 1:
        raise InputError(
            f"{name}: the model has several stacks; write {stacks[-1]}:{name} "
            f"({', '.join(stacks)})."
        )
    stack = stacks[0] if match[1] is None else match[1].lower()
    layer = int(match[2])
    head = match[3]
    if stack not in stacks:
        raise InputError(f"{name}: heads are removed from {' and '.join(stacks)} here.")
    if (stack, layer) not in heads:
        layers = [number for name_of_stack, number in heads if name_of_stack == stack]
        known = ", ".join(f"L{number}" for number in layers)
        if len(layers) > max(layers):  # none was removed
            known = f"L0 to L{max(layers)}"
        raise InputError(f"{name}: there is no layer {layer}; the model has {known}.")
    numbers = heads[stack, layer]
    if head != "*" and int(head) not in numbers:
        known = ", ".join(f"H{number}" for number in numbers) or "none left"
        if len(numbers) > 1 and list(numbers) == list(range(len(numbers))):
            known = f"H0 to H{len(numbers) - 1}"
        raise InputError(f"{name}: layer {layer} has no head {head}; it has {known}.")
    return stack, layer, head
