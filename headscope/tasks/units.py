"""What can be removed on its own, and reading heads as people write them: ``L0H1,L3H*``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from headscope.core.errors import InputError
from headscope.models.run.intervene import shared_layers
from headscope.models.run.loaded import LoadedModel

_HEAD = re.compile(r"(?:(encoder|decoder|cross):)?L(\d{1,9})H(\d{1,9}|\*)", re.IGNORECASE)
Head = tuple[int, int]  # (layer, head), zero-based, as the loaded model counts them.


class Units:
    """The removable units of a model, and the conversion between them and its grid of heads.

    In most models a unit is a head; in ALBERT, which runs one module in every layer, the same head
    of all layers. ``n_heads`` are those of each layer, ``shared`` groups layers by their module.
    """

    def __init__(self, n_heads: Sequence[int], shared: Sequence[Sequence[int]]) -> None:
        self.shape = (len(n_heads), max(n_heads, default=0))
        groups = sorted(shared, key=min)
        #: The heads of each unit.
        self.members: tuple[tuple[Head, ...], ...] = tuple(
            tuple((layer, head) for layer in sorted(group))
            for group in groups
            for head in range(n_heads[min(group)])
        )
        #: The first layer of each unit.
        self.layers = torch.tensor([heads[0][0] for heads in self.members], dtype=torch.long)
        self._of = {head: unit for unit, heads in enumerate(self.members) for head in heads}
        self._matrix = torch.zeros(self.shape[0] * self.shape[1], len(self.members))
        for (layer, head), unit in self._of.items():
            self._matrix[layer * self.shape[1] + head, unit] = 1.0

    def __len__(self) -> int:
        return len(self.members)

    @property
    def shared(self) -> bool:
        """Whether any decision holds for several layers."""
        return any(len(heads) > 1 for heads in self.members)

    def contract(self, grid: Tensor) -> Tensor:
        """Sum (..., n_layers, n_heads) over the heads of each unit: (..., n_units).

        The derivative by a unit's gate is the sum of the derivatives by its heads' gates.
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
        return self._of[head]

    def heads(self, units: Iterable[int]) -> tuple[Head, ...]:
        """List the heads of some units in the order of layer and head."""
        return tuple(sorted(head for unit in units for head in self.members[unit]))


def units_of(loaded: LoadedModel) -> Units:
    """List what can be removed from a model on its own."""
    return Units([site.n_heads for site in loaded.sites], shared_layers(loaded.sites))


def parse_heads(
    text: str, heads: Mapping[tuple[str, int], Sequence[int]]
) -> list[tuple[str, int, int]]:
    """Read heads as (stack, layer, head), each once and sorted; ``L3H*`` is all of layer 3.

    Where the heads lie in several stacks an item names its own: ``cross:L3H5``. ``heads`` are those
    that each (stack, layer) has, by their original numbers.
    """
    names = set[tuple[str, int, int]]()
    stacks = list(dict.fromkeys(stack for stack, _ in heads))
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise InputError("No head is named; write heads as L0H1,L3H* (counted from zero).")
    for item in items:
        match = _HEAD.fullmatch(item)
        if match is None:
            raise InputError(f"{item!r} is not a head; write L0H1, or L3H* for all of layer 3.")
        if match[1] is None and len(stacks) > 1:
            raise InputError(
                f"{item}: the model has several stacks; write {stacks[-1]}:{item} "
                f"({', '.join(stacks)})."
            )
        stack = stacks[0] if match[1] is None else match[1].lower()
        layer = int(match[2])
        head = match[3]
        if stack not in stacks:
            raise InputError(f"{item}: heads are removed from {' and '.join(stacks)} here.")
        if (stack, layer) not in heads:
            layers = [number for name, number in heads if name == stack]
            last = f"L0 to L{max(layers)}"
            if len(layers) <= max(layers):  # layers were removed
                last = ", ".join(f"L{number}" for number in layers)
            raise InputError(f"{item}: there is no layer {layer}; the model has {last}.")
        numbers = heads[stack, layer]
        if head != "*" and int(head) not in numbers:
            known = ", ".join(f"H{number}" for number in numbers) or "none left"
            if len(numbers) > 1 and list(numbers) == list(range(len(numbers))):
                known = f"H0 to H{len(numbers) - 1}"
            raise InputError(f"{item}: layer {layer} has no head {head}; it has {known}.")
        names |= {(stack, layer, number) for number in (numbers if head == "*" else [int(head)])}
    return sorted(names)
