"""The search on planted costs: every unit costs each example a known amount."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from headscope.core.errors import InputError
from headscope.data.token_rows import Row, sentences_of
from headscope.pruning import max_drop
from headscope.pruning.max_drop import Candidate, Search, check_enough, unseen_examples
from headscope.pruning.options import Repair
from headscope.pruning.ranking import Ranking
from headscope.stats.metrics import mean_of
from headscope.stats.paired_change import paired_change
from headscope.tasks.units import Units

UNITS = Units([6, 6], [(0,), (1,)])
N = 200
#: What the loss of n units costs.
Cost = Callable[[int], float]


class Planted:
    """Stands for a run whose models cost what a table says; counts what is made and measured."""

    def __init__(self, *, higher: bool = False, noise: float = 0.0, **costs: Cost) -> None:
        named = {"data": SimpleNamespace(name="planted"), "table": {"value": mean_of("x")}}
        named |= {"metric": "value", "higher_is_better": higher, "n_examples": N}
        self.evaluation = SimpleNamespace(**named)
        self.tell = lambda *told: self.told.append(told)
        self.units = UNITS
        self.told: list[tuple[str, int, int]] = []
        self.measure = SimpleNamespace(on=self.on)
        self.made: list[tuple[str, int]] = []
        self.measured: list[tuple[str, int]] = []
        self.costs, self._sign = costs or {"none": lambda n: n / 10}, -1.0 if higher else 1.0
        noises = noise * np.random.default_rng(0).normal(size=N)
        self.noise = noises - noises.mean()

    def repaired(self, kind: Repair, removed: tuple[int, ...]) -> Any:
        self.made.append((kind.value, len(removed)))
        return SimpleNamespace(removed=removed, kind=kind.value)

    def on(self, examples: Any) -> Any:
        def change_of(made: Any) -> Any:
            n = len(made.removed)
            self.measured.append((made.kind, n))
            x = self._sign * (self.costs[made.kind](n) + self.noise * np.sqrt(n))
            whole = {"x": np.zeros(len(examples))}
            return paired_change(mean_of("x"), whole, {"x": x[examples]}, seed=7)

        return SimpleNamespace(change_of=change_of)


def candidates(planted: Planted) -> list[Candidate]:
    ranking = Ranking(torch.arange(12.0))
    return [Candidate("fisher", kind, ranking) for kind in Repair if kind.value in planted.costs]


def search(planted: Planted, wanted: float) -> tuple[Search, Any]:
    tries = Search(planted, wanted, np.arange(N))
    return tries, tries.run(candidates(planted)[0])


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize(
    ("wanted", "count"), [(0.5, 5), (0.4999, 4), (0.5001, 5), (0.1, 1), (99.0, 11)]
)
def test_both_sides_of_the_bound(higher, wanted, count):
    """Each unit costs 0.1, so five cost exactly half a point."""
    planted = Planted(higher=higher)
    tries, stopped = search(planted, wanted)
    assert stopped == (count, None if count == 11 else count + 1)
    judged = tries.judged[count]
    assert judged.lost == pytest.approx(count / 10)
    assert judged.change.difference == pytest.approx((-count if higher else count) / 10)
    assert len(planted.made) == len(set(planted.made)), "a model was made twice"
    assert [look.heads for look in tries.looks] == list(range(1, min(count + 1, 11) + 1))
    assert [look.allowed for look in tries.looks].count(False) == (count < 11)
    assert planted.told == [("removing heads", i, 11) for i in range(len(tries.looks))]


def test_the_interval_counts_and_not_the_value():
    """A noise that says nothing on average makes fewer units allowed than the value would."""
    planted = Planted(noise=0.5)
    tries, stopped = search(planted, 0.5)
    half = 1.96 * 0.5 / np.sqrt(N)
    expected = max(n for n in range(12) if n / 10 + half * np.sqrt(n) <= 0.5)
    assert abs(stopped.confirmed - expected) <= 1
    assert stopped.confirmed < 5
    judged = tries.judged[stopped.confirmed]
    assert judged.lost < judged.most_lost <= 0.5


def test_what_lies_behind_a_refusal_is_not_looked_at():
    table = [0, 1, 1, 9, 1, 9, 9, 9, 9, 9, 9, 9, 9]
    planted = Planted(none=lambda n: table[n])
    _, stopped = search(planted, 2.0)
    assert stopped == (2, 3)
    assert planted.measured == [("none", 1), ("none", 2), ("none", 3)]
    # No loss at all can be asked for.
    assert search(Planted(none=lambda n: 0.0 if n <= 3 else 1.0), 0.0)[1].confirmed == 3


def test_which_way_is_tested_is_settled_without_the_test_data(monkeypatch):
    """The nearest to the full model on the calibration data, whatever the test data say."""
    planted = Planted(none=lambda n: 0.0, scale=lambda n: n, surgeon=lambda n: n)
    planted.noise = None  # a look at the test data would fail
    distances = {"none": 0.3, "scale": 0.1, "surgeon": 0.1 + 1e-12}
    monkeypatch.setattr(Search, "_distance", lambda self, made: distances[made.kind])
    tries = Search(planted, 0.5, np.arange(N))
    assert tries.settle(candidates(planted)).repair is Repair.scale, "of equals the first"
    assert [(near.repair, near.heads) for near in tries.near] == [
        ("none", 6),
        ("scale", 6),
        ("surgeon", 6),
    ]
    assert planted.measured == []
    # A single one is not even made.
    alone = Planted()
    tries = Search(alone, 0.5, np.arange(N))
    assert tries.settle(candidates(alone)).name == "fisher"
    assert alone.made == []


def test_only_the_unseen_examples_count():
    """What costs much on the others costs nothing on these."""
    planted = Planted()
    planted.noise = np.where(np.arange(N) < 120, 0.0, 50.0)
    tries = Search(planted, 0.5, np.arange(120))
    assert tries.run(candidates(planted)[0]).confirmed == 5
    assert tries.judged[5].change.examples == 120


def test_no_head_at_all_says_how_many_examples_would_do():
    planted = Planted(noise=1.0)
    with pytest.raises(InputError, match="No head can go") as refused:
        search(planted, 0.12)
    # 0.1 is lost and 0.02 is left; the interval reaches about 1.96 / sqrt(200) beyond the loss.
    needed = int(str(refused.value).split("about ")[1].split(" ")[0].replace(",", ""))
    assert needed == pytest.approx(N * (1.96 / np.sqrt(N) / 0.02) ** 2, rel=0.3)
    with pytest.raises(InputError, match=r"No head can go .*give a larger max_drop"):
        search(planted, 0.05)


def task_of(*examples: tuple[tuple[int, ...], ...]) -> Any:
    """Examples of sentences, each a tuple of tokens with a special one at both ends."""
    rows = [
        tuple(Row(i, (0, *text, 1), None, tuple(range(1, len(text) + 1))) for text in texts)
        for i, texts in enumerate(examples)
    ]
    every = [row for of_example in rows for row in of_example]
    sentences = [[text for row in own for text in sentences_of(row)] for own in rows]
    name = SimpleNamespace(name="pairs.csv", texts=())
    return SimpleNamespace(sentences=sentences, rows=every, n_examples=len(rows), data=name)


def test_examples_that_share_a_sentence_with_the_calibration_are_not_tested():
    task = task_of(((5, 6), (7,)), ((8,), (9,)), ((7,), (9, 9)), ((4, 4), (6,)))
    assert unseen_examples(task, None).tolist() == [0, 1, 2, 3]
    assert unseen_examples(task, task_of(((7,),), ((6, 5),))).tolist() == [1, 3]


def test_too_few_that_share_none_are_refused(monkeypatch):
    monkeypatch.setattr(max_drop, "FEWEST", 3)
    task = task_of(((5,),), ((6,),), ((7,),), ((8,),))
    assert check_enough(task, task_of(((8,),))).tolist() == [0, 1, 2]
    with pytest.raises(InputError, match=r"Only 2 of the 4 examples .* smaller"):
        check_enough(task, task_of(((7,), (8,))))
