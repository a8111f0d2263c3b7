"""What can be removed on its own: a head, or one head of every layer that shares a module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from headscope.models.intervene import shared_layers
from headscope.models.loaded import LoadedModel

Head = tuple[int, int]  # (layer, head), zero-based, as the loaded model counts them.


class Units:
    """The removable units of a model, and the way between them and its grid of heads.

    In most models a unit is a head. ALBERT runs one module in every layer, so its unit is the same
    head of all layers. ``n_heads`` is the number of heads of each layer, ``shared`` groups layers
    by the module that they run.
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
