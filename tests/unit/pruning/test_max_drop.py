"""The search on planted costs: every unit costs each example a known amount."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from headscope.core.errors import InputError
from headscope.data.token_rows import Row, sentences_of
from headscope.pruning import max_drop
from headscope.pruning.max_drop import search, settle, unseen_examples
from headscope.pruning.options import Repair
from headscope.pruning.ranking import Ranking
from headscope.stats import confirm
from headscope.stats.metrics import mean_of
from headscope.stats.paired_change import paired_change
from headscope.tasks.units import Units

N = 200
#: What the loss of n units costs.
Cost = Callable[[int], float]
RANKING = Ranking(torch.arange(12.0))


class Planted:
    """Stands for a run whose models cost what a function says; notes what is made and measured."""

    units = Units([6, 6], [(0,), (1,)])

    def __init__(
        self, cost: Cost = lambda n: n / 10, *, higher: bool = False, noise: float = 3e-6
    ) -> None:
        self.evaluation = SimpleNamespace(higher_is_better=higher)
        self.told: list[tuple[str, int, int]] = []
        self.tell = lambda *progress: self.told.append(progress)
        self.made: list[tuple[Repair, int]] = []
        self.measured: list[int] = []
        self.cost = cost
        self._sign = -1.0 if higher else 1.0
        noises = noise * np.random.default_rng(0).normal(size=N)
        self.noise = noises - noises.mean()

    def repaired(self, kind: Repair, removed: tuple[int, ...]) -> Any:
        self.made.append((kind, len(removed)))
        return SimpleNamespace(removed=removed, kind=kind)

    def forget_all_but(self, pruned: Any) -> None:
        """Nothing is remembered here."""

    def change(self, pruned: Any) -> Any:
        n = len(pruned.removed)
        self.measured.append(n)
        x = self._sign * (self.cost(n) + self.noise * np.sqrt(n))
        return paired_change(mean_of("x"), {"x": np.zeros(N)}, {"x": x}, seed=7)


def searched(planted: Any, allowed_loss: float) -> Any:
    return search(planted, RANKING, ("fisher", Repair.none), allowed_loss)


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize(
    ("allowed_loss", "count"), [(0.5, 5), (0.4999, 4), (0.5001, 5), (99.0, 11)]
)
def test_both_sides_of_the_bound(higher, allowed_loss, count):
    """Each unit costs 0.1, so five cost exactly half a point."""
    planted = Planted(higher=higher)
    number, model, tests = searched(planted, allowed_loss)
    assert (number, len(model.removed)) == (count, count)
    tested = list(range(1, min(count + 1, 11) + 1))
    assert [test.heads for test in tests] == tested
    assert [test.lost for test in tests] == pytest.approx([n / 10 for n in tested])
    assert [test.allowed for test in tests].count(False) == (count < 11)
    assert planted.told == [("removing heads", i, 11) for i in range(len(tested))]


def test_the_interval_counts_and_not_the_value():
    """A noise that says nothing on average makes fewer units allowed than the value would."""
    number, _, tests = searched(Planted(noise=0.5), 0.5)
    half = 1.96 * 0.5 / np.sqrt(N)
    expected = max(n for n in range(12) if n / 10 + half * np.sqrt(n) <= 0.5)
    assert abs(number - expected) <= 1
    assert number < 5
    assert tests[number - 1].lost < tests[number - 1].most_lost <= 0.5
    # No loss at all can be asked for.
    assert searched(Planted(lambda n: 0.0 if n <= 3 else 1.0), 0.0)[0] == 3


def test_a_loss_that_is_unknown_is_no_loss_that_is_allowed():
    """Every example shows the same: nothing tells how far the next ones are from it."""
    with pytest.raises(InputError, match="what is lost at most is not known"):
        searched(Planted(lambda n: 0.0, noise=0.0), 50.0)


def test_which_way_is_tested_is_settled_without_the_test_data(monkeypatch):
    """The nearest to the full model on the calibration data, whatever the test data say."""
    planted: Any = Planted()
    planted.noise = None  # a look at the test data would fail
    distances = {Repair.none: 0.3, Repair.scale: 0.1, Repair.surgeon: 0.1 + 1e-12}
    monkeypatch.setattr(max_drop, "distance_of", lambda pruner, pruned: distances[pruned.kind])
    ways = [("fisher", kind) for kind in Repair]
    chosen, near = settle(planted, {"fisher": RANKING}, ways, 6)
    assert chosen == ("fisher", Repair.scale), "of equals the first"
    assert [(each.repair, each.heads) for each in near] == [(kind.value, 6) for kind in Repair]
    assert planted.measured == []
    # A single one is not even made.
    planted.made.clear()
    assert settle(planted, {"fisher": RANKING}, ways[:1], 6) == (ways[0], ())
    assert planted.made == []


def test_no_head_at_all_says_how_many_examples_would_do():
    with pytest.raises(InputError, match="No head can go") as refused:
        searched(Planted(noise=1.0), 0.12)
    # 0.1 is lost and 0.02 is left; the interval reaches about 1.96 / sqrt(200) beyond the loss.
    needed = int(str(refused.value).split("about ")[1].split(" ")[0].replace(",", ""))
    assert needed == pytest.approx(N * (1.96 / np.sqrt(N) / 0.02) ** 2, rel=0.3)
    with pytest.raises(InputError, match=r"No head can go .*give a larger max_drop"):
        searched(Planted(noise=1.0), 0.05)


def task_of(*examples: tuple[tuple[int, ...], ...]) -> Any:
    """Examples of sentences, each a tuple of tokens with a special one at both ends."""
    rows = [
        tuple(Row(i, (0, *text, 1), None, tuple(range(1, len(text) + 1))) for text in texts)
        for i, texts in enumerate(examples)
    ]
    all_rows = list(itertools.chain(*rows))
    sentences = [list(itertools.chain(*map(sentences_of, pair))) for pair in rows]
    name = SimpleNamespace(name="pairs.csv", texts=())
    return SimpleNamespace(sentences=sentences, rows=all_rows, n_examples=len(rows), data=name)


def test_examples_that_share_a_sentence_with_the_calibration_are_not_tested(monkeypatch):
    monkeypatch.setattr(max_drop, "FEWEST_TESTED", 2)
    monkeypatch.setattr(confirm, "FEWEST_TESTED", 2)
    task = task_of(((5, 6), (7,)), ((8,), (9,)), ((7,), (9, 9)), ((4, 4), (6,)))
    assert unseen_examples(task, None).tolist() == [0, 1, 2, 3]
    assert unseen_examples(task, task_of(((7,),), ((6, 5),))).tolist() == [1, 3]
    with pytest.raises(InputError, match=r"Only 1 of the 4 examples .* smaller"):
        unseen_examples(task, task_of(((7,), (8,))))
