"""The same number of heads from every layer, in the order of any ranking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from torch import Tensor

from headscope.measures.rounding import tied
from headscope.pruning.method import Ranking


@runtime_checkable
class Evenly(Protocol):
    """A ranking that chooses anew where every layer is to lose equally many units."""

    def remove_evenly(self, layers: Tensor, each: int) -> tuple[int, ...]:
        """Return ``each`` units of every layer."""


class EvenRanking(Ranking):
    """A ranking whose sets take equally many units of every layer.

    A ranking that can choose anew does so (:class:`Evenly`). Otherwise the units of a layer go in
    the order in which the other ranking removes them: those of the lowest values first, or those of
    its own order that still have room in their layer. Where its sets are not nested, the units of
    the set of the same size come first; among them, and among the others, the smallest set that
    holds a unit is its place.

    Parameters
    ----------
    free : Ranking
        What the order comes from.
    layers : Tensor, (n_units,)
        The layer of each unit; every layer has equally many.

    Attributes
    ----------
    free : Ranking
        As given.
    """

    def __init__(self, free: Ranking, layers: Tensor) -> None:
        super().__init__(free.values, passes=free.passes)
        self.free, self._layers = free, layers
        self._by_layer: dict[int, list[int]] = {layer: [] for layer in layers.tolist()}
        for unit in _order(free, len(layers)):
            self._by_layer[int(layers[unit])].append(unit)

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go; a multiple of the number of layers."""
        each = count // len(self._by_layer)
        if isinstance(self.free, Evenly):
            return self.free.remove_evenly(self._layers, each)
        wanted = set(self.free.remove(count))
        found = list[int]()
        for units in self._by_layer.values():
            found += sorted(units, key=lambda unit: unit not in wanted)[:each]
        return tuple(sorted(found))


def _order(ranking: Ranking, n: int) -> Iterator[int]:
    """Yield all units, those of smaller sets first; of one set the lowest values first."""
    seen, level = set[int](), tied(ranking.values.numpy())
    for count in range(1, n + 1):
        new = set(ranking.remove(count)) - seen
        seen |= new
        yield from sorted(new, key=lambda unit: (level[unit], -unit))
