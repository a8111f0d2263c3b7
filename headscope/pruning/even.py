"""The same number of heads from every layer, in the order of any ranking."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from headscope.pruning.method import Ranking


class EvenRanking(Ranking):
    """A ranking whose sets take equally many units of every layer.

    Inside a layer the units go in the order in which the other ranking removes them: those of the
    lowest values first, or those of its own order that still have room in their layer. Where its
    sets are not nested, a unit's place is the smallest set that holds it.

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
        self.free = free
        self._by_layer: dict[int, list[int]] = {layer: [] for layer in layers.tolist()}
        for unit in _order(free, len(layers)):
            self._by_layer[int(layers[unit])].append(unit)

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go; a multiple of the number of layers."""
        each = count // len(self._by_layer)
        return tuple(sorted(unit for units in self._by_layer.values() for unit in units[:each]))


def _order(ranking: Ranking, n: int) -> Iterator[int]:
    """Yield all units, those of smaller sets first; of one set the lowest values first."""
    seen = set[int]()
    for count in range(1, n + 1):
        new = set(ranking.remove(count)) - seen
        seen |= new
        yield from sorted(new, key=lambda unit: (float(ranking.values[unit]), -unit))
