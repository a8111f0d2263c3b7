"""The same number from every layer, for rankings by value, by order, and without nested sets."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from headscope.pruning.even import EvenRanking
from headscope.pruning.joint import JointRanking
from headscope.pruning.method import Ranking

LAYERS = torch.tensor([0] * 5 + [1] * 5 + [2] * 5)
VALUES = torch.randperm(15, generator=torch.Generator().manual_seed(1)).double()


class Unnested(Ranking):
    """Sets of even size leave out the unit that sets of odd size begin with."""

    def remove(self, count: int) -> tuple[int, ...]:
        order = [int(i) for i in self.values.argsort()]
        kept = order[1 : count + 1] if count % 2 == 0 and count < len(order) else order[:count]
        return tuple(sorted(kept))


@pytest.mark.parametrize("each", range(6))
def test_the_lowest_or_the_first_of_each_layer_go(each: int) -> None:
    found = EvenRanking(Ranking(VALUES), LAYERS).remove(3 * each)
    layers = [range(5 * layer, 5 * layer + 5) for layer in range(3)]
    lowest = [sorted(layer, key=VALUES.__getitem__)[:each] for layer in layers]
    assert set(found) == {unit for units in lowest for unit in units}
    assert len(found) == 3 * each
    # By an order; the values would say something else.
    order = torch.randperm(15, generator=torch.Generator().manual_seed(2)).tolist()
    found = EvenRanking(Ranking(VALUES, order), LAYERS).remove(3 * each)
    first = [[unit for unit in order if unit in layer][:each] for layer in layers]
    assert set(found) == {unit for units in first for unit in units}


def test_sets_that_are_not_nested_still_fill_every_layer() -> None:
    even = EvenRanking(Unnested(VALUES), LAYERS)
    for each in range(6):
        sizes = Counter(unit // 5 for unit in even.remove(3 * each))
        assert sizes == Counter({layer: each for layer in range(3) if each})
    # Of two sizes the one that leaves the lowest unit out keeps it where its layer has other units.
    lowest = int(VALUES.argmin())
    assert lowest in even.remove(3)
    assert lowest not in even.remove(6)


def test_a_layer_that_every_unit_belongs_to_loses_what_the_ranking_says() -> None:
    """ALBERT's layers share one module."""
    free = Ranking(VALUES)
    even = EvenRanking(free, torch.zeros(15, dtype=torch.long))
    assert [even.remove(n) for n in range(16)] == [free.remove(n) for n in range(16)]


def test_fisher_joint_eliminates_while_there_is_room() -> None:
    """At every step the removal among the allowed that raises the minimum least, by brute force."""
    n, each, ridge = 9, 2, 0.1
    rows = torch.randn(30, n, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    matrix, layers = rows.t() @ rows, torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    strength = ridge * float(matrix.diagonal().mean())

    def minimum(removed: list[int]) -> float:
        kept = [u for u in range(n) if u not in removed]
        padded = matrix[kept][:, kept] + strength * torch.eye(len(kept), dtype=torch.float64)
        pull = matrix[kept][:, removed].sum(dim=1)
        gap = torch.linalg.solve(padded, -pull)  # 1 - xi of the kept
        return float(matrix[removed][:, removed].sum() + pull @ gap)

    removed: list[int] = []
    while len(removed) < 3 * each:
        room = [
            u
            for u in range(n)
            if u not in removed and sum(int(layers[v] == layers[u]) for v in removed) < each
        ]
        removed.append(min(room, key=lambda u: minimum([*removed, u])))
    ranking = JointRanking(matrix, ridge, {})
    even = EvenRanking(ranking, layers)
    assert even.remove(3 * each) == tuple(sorted(removed))
    assert set(even.remove(3 * each)) != set(ranking.remove(3 * each)), "planted so that it matters"
    assert even.remove(0) == ()
    assert even.remove(n) == tuple(range(n))
