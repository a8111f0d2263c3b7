"""The search on planted costs: every unit costs each example a known amount."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from headscope.core.errors import InputError
from headscope.data.token_rows import Row
from headscope.pruning.max_drop import Candidate, Search, choose, confirm, halves_of, smaller
from headscope.pruning.options import Repair
from headscope.pruning.ranking import EvenRanking, Ranking
from headscope.stats.metrics import mean_of
from headscope.tasks.units import Units

UNITS = Units([6, 6], [(0,), (1,)])
N = 200
#: What the loss of n units costs, and how much more than that it costs in an example.
Cost = Callable[[int], float]


class Planted:
    """Stands for a run whose models cost what a table says; counts what is made and measured."""

    def __init__(
        self, *, higher: bool = False, noise: float = 0.0, even: bool = False, **costs: Cost
    ) -> None:
        rows = [Row(i, (i, i + 1), None, (0, 1)) for i in range(N)]
        named = {"data": SimpleNamespace(name="planted"), "table": {"value": mean_of("x")}}
        named |= {"metric": "value", "higher_is_better": higher}
        task = SimpleNamespace(rows_of_examples=[(r,) for r in rows], n_examples=N, **named)
        self.inputs = SimpleNamespace(evaluation=task)
        self.options = SimpleNamespace(seed=7, even=even)
        self.units = UNITS
        self.steps = SimpleNamespace(did=lambda _: None)
        self.measure = SimpleNamespace(full={"x": np.zeros(N)}, outputs=self.outputs)
        self.made: list[tuple[str, int]] = []
        self._costs, self._sign = costs or {"none": lambda n: n / 10}, -1.0 if higher else 1.0
        self._noise = noise * np.random.default_rng(0).normal(size=N)
        self.halves = halves_of(task, 7)
        for part in (self.halves.choosing, self.halves.confirming):
            self._noise[part] -= self._noise[part].mean()
        #: Added to the cost of each unit on the confirming half.
        self.surcharge = 0.0

    def repaired(self, kind: Repair, removed: tuple[int, ...]) -> Any:
        self.made.append((kind.value, len(removed)))
        return SimpleNamespace(removed=removed, kind=kind.value)

    def outputs(self, made: Any, all_metrics: bool) -> dict[str, Any]:
        n = len(made.removed)
        cost = self._costs[made.kind](n) + self._noise * np.sqrt(n)
        cost[self.halves.confirming] += self.surcharge * n
        return {"x": self._sign * cost}


def candidates(planted: Planted) -> list[Candidate]:
    ranking = Ranking(torch.arange(12.0))
    even = EvenRanking(ranking, UNITS.layers) if planted.options.even else ranking
    return [Candidate("fisher", kind, even) for kind in Repair if kind.value in planted._costs]


def search(planted: Planted, wanted: float) -> tuple[Search, Any, Any]:
    tries = Search(planted, wanted)
    chosen = choose(tries, candidates(planted))
    return tries, chosen, confirm(tries, chosen)


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize(
    ("wanted", "count"), [(0.5, 5), (0.4999, 4), (0.5001, 5), (0.1, 1), (99.0, 11)]
)
def test_both_sides_of_the_bound(higher, wanted, count):
    """Each unit costs 0.1, so five cost exactly half a point."""
    planted = Planted(higher=higher)
    tries, chosen, confirmed = search(planted, wanted)
    assert (chosen.number, confirmed.number) == (count, count)
    assert confirmed.judged.lost == pytest.approx(count / 10)
    assert confirmed.judged.change.difference == pytest.approx((-count if higher else count) / 10)
    assert len(planted.made) == len(set(planted.made)), "a model was made twice"
    assert [look.part for look in tries.looks].count("confirming") == 1


def test_the_interval_counts_and_not_the_value():
    """A noise that says nothing on average makes fewer units allowed than the value would."""
    planted = Planted(noise=0.5)
    _, chosen, _ = search(planted, 0.5)
    half = 1.96 * 0.5 / np.sqrt(N / 2)
    expected = max(n for n in range(12) if n / 10 + half * np.sqrt(n) <= 0.5)
    assert abs(chosen.number - expected) <= 1
    assert chosen.number < 5
    assert chosen.judged.lost < chosen.judged.most_lost <= 0.5


def test_choices_between_numbers_and_repairs():
    table = [0, 1, 1, 9, 1, 9, 9, 9, 9, 9, 9, 9, 9]
    _, chosen, _ = search(Planted(none=lambda n: table[n]), 2.0)
    assert chosen.number == 4, "a dip above the first refusal is found"
    # The better repair is chosen and the worse one is not followed.
    planted = Planted(none=lambda n: n / 10, scale=lambda n: n / 20, refit=lambda n: n)
    tries, chosen, _ = search(planted, 0.35)
    assert (chosen.candidate.repair, chosen.number) == (Repair.scale, 7)
    assert [look.heads for look in tries.looks if look.repair == "refit"] == [7, 8]
    assert tries.looks[0].repair == "none", "what costs least is tried first"
    # Of equal numbers the smaller loss is chosen.
    _, chosen, _ = search(Planted(none=lambda n: n / 10, scale=lambda n: 0.09 * n), 0.3)
    assert (chosen.candidate.repair, chosen.number) == (Repair.scale, 3)
    # No loss at all can be asked for.
    _, chosen, _ = search(Planted(none=lambda n: 0.0 if n <= 3 else 1.0), 0.0)
    assert chosen.number == 3


def test_what_is_not_confirmed_goes_down_a_fixed_list_at_a_higher_level():
    planted = Planted(noise=0.02)
    planted.surcharge = 0.05
    tries, chosen, confirmed = search(planted, 0.85)
    assert chosen.number == 8
    # 8, 7, 6 and 4 cost 1.2, 1.05, 0.9 and 0.6 on the other half.
    assert smaller(8) == (7, 6, 4)
    assert (confirmed.number, confirmed.planned) == (4, 3)
    looks = [look for look in tries.looks if look.part == "confirming"]
    assert [look.heads for look in looks] == [8, 7, 6, 4]
    assert [look.allowed for look in looks] == [False, False, False, True]
    assert looks[0].level == 0.95
    assert [look.level for look in looks[1:]] == pytest.approx([1 - 0.05 / 3] * 3)
    assert confirmed.judged.change.level == pytest.approx(1 - 0.05 / 3)
    assert confirmed.first.lost == pytest.approx(1.2)


def test_a_search_that_nothing_confirms_says_how_far_off_it_is():
    planted = Planted(noise=0.3)
    planted.surcharge = 0.4
    with pytest.raises(InputError, match="does not confirm") as refused:
        search(planted, 0.45)
    assert "give a larger max_drop" in str(refused.value)
    assert str(refused.value).count(". ") == 0, "one sentence"


def test_no_head_at_all_says_how_many_examples_would_do():
    planted = Planted(noise=1.0)
    with pytest.raises(InputError, match="No head can go") as refused:
        search(planted, 0.2)
    # 0.1 is lost and 0.1 is left; the interval reaches about 1.96 / sqrt(100) beyond the loss.
    needed = int(str(refused.value).split("about ")[1].split(" ")[0].replace(",", ""))
    assert needed == pytest.approx(N * (0.196 / 0.1) ** 2, rel=0.3)
    with pytest.raises(InputError, match=r"No head can go .*give a larger max_drop"):
        search(planted, 0.05)


def test_even_counts_heads_of_every_layer():
    planted = Planted(even=True)
    tries, chosen, _ = search(planted, 0.7)
    assert (tries.step, tries.most, chosen.number) == (2, 5, 3)
    removed = tries.model(chosen.candidate, 3).removed
    assert removed == (0, 1, 2, 6, 7, 8)
    assert tries.heads(chosen.candidate, 3) == 6


def test_an_interval_is_of_one_half_only():
    """What happens on the other half does not touch the choice."""
    quiet, loud = Planted(noise=0.1), Planted(noise=0.1)
    loud.surcharge = 5.0
    first, second = (choose(Search(p, 0.5), candidates(p)) for p in (quiet, loud))
    assert (first.number, first.judged) == (second.number, second.judged)
