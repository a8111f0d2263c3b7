"""Scores and choices against slow oracles written otherwise, on outputs known in closed form."""

import itertools
import math

import pytest
import torch
from toy_calibration import toy_given

from headscope.core.errors import InputError
from headscope.pruning.elimination import (
    JointRanking,
    eliminate,
    fisher_joint,
    fisher_mean,
    fisher_relinearised,
    information,
)
from headscope.pruning.methods import (
    exchange,
    fisher,
    random,
    rank,
)
from headscope.pruning.options import METHODS
from headscope.pruning.ranking import Context, EvenRanking, Ranking
from headscope.tasks.units import Units


def _example_loss(given: Context, index: int, gates: torch.Tensor) -> float:
    a, y, f = given.calibration._a, given.calibration._y, given.calibration._f
    e = f(torch.einsum("lh,lhd->d", gates, a[index]))
    return float(((e - y[index]) ** 2).sum() / 2)


def _differences(given: Context, step: float = 1e-6) -> torch.Tensor:
    """dL_i/dxi by central differences, one example and one head at a time."""
    shape = given.units.shape
    found = torch.zeros(len(given.calibration._a), math.prod(shape), dtype=torch.float64)
    for i, (unit, head) in itertools.product(
        range(len(found)), enumerate(itertools.product(*map(range, shape)))
    ):
        for sign in (1, -1):
            gates = torch.ones(shape).double()
            gates[head] += sign * step
            found[i, unit] += sign * _example_loss(given, i, gates) / (2 * step)
    return found


def test_importance_by_example_is_the_mean_absolute_derivative_of_single_examples():
    given = toy_given(f=torch.tanh)
    differences = _differences(given)
    expected = differences.abs().mean(dim=0)
    found = rank("importance-example", given, normalise=False)
    torch.testing.assert_close(found.values, expected, rtol=1e-5, atol=1e-7)
    # Adding gradients up before the absolute value, as a copied script does, gives less.
    assert (differences.mean(dim=0).abs() < expected).all()
    # By token it does not depend on how examples are batched, and neither works without labels.
    first = rank("importance-token", given).values
    given.calibration._batch_size = 40
    torch.testing.assert_close(rank("importance-token", given).values, first)
    for method in ("importance-token", "importance-example"):
        with pytest.raises(InputError, match="label"):
            rank(method, toy_given(labels=False))


def test_labelled_fisher_is_the_sum_of_outer_products_of_single_gradients():
    given = toy_given(f=torch.tanh, use_labels=True)
    g = _differences(given)
    matrix, diagonal = information(given, directions=1)
    torch.testing.assert_close(matrix, g.T @ g, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(diagonal, (g**2).sum(dim=0), rtol=1e-4, atol=1e-6)


def test_label_free_fisher_is_the_gauss_newton_matrix_in_expectation():
    given = toy_given(labels=False, n=60, seed=5)
    a = given.calibration._a.flatten(1, 2)  # (n, units, d): the Jacobian of a linear output
    exact = torch.einsum("nud,nvd->uv", a, a) / len(a)
    matrix, diagonal = information(given, directions=400)
    assert float((matrix - exact).norm() / exact.norm()) < 0.05
    # Over unit directions the mean square of r . J is ||J||^2 / d.
    torch.testing.assert_close(diagonal, exact.diagonal() / a.shape[-1], rtol=0.1, atol=0.0)


def test_exchange_inside_a_layer_never_does_worse_and_finds_planted_pairs():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        root = torch.randn(6, 6, generator=generator, dtype=torch.float64)
        matrix = root @ root.T
        for count in range(1, 6):
            start = torch.zeros(6, dtype=torch.bool)
            start[matrix.diagonal().argsort()[:count]] = True
            found = exchange(matrix, start)
            assert found.sum() == count
            assert _loss(matrix, found) <= _loss(matrix, start) + 1e-12
    # Two heads that cancel each other cost nothing together, though each alone is expensive.
    matrix = torch.eye(4).double()
    matrix[:2, :2] = torch.tensor([[9.0, -9.0], [-9.0, 9.0]])
    found = exchange(matrix, torch.tensor([True, False, True, False]))
    assert found.tolist() in ([True, True, False, False], [False, False, True, True])


def _loss(matrix: torch.Tensor, removed: torch.Tensor) -> float:
    return float(matrix[removed][:, removed].sum())


def test_fisher_keeps_the_number_of_heads_that_its_diagonal_gives_each_layer():
    ranking = fisher(toy_given(3, 5, labels=False, n=30))
    for count in range(16):
        removed = ranking.remove(count)
        assert len(removed) == len(set(removed)) == count
        by_value = sorted(range(15), key=lambda unit: (float(ranking.values[unit]), -unit))[:count]
        for layer in range(3):
            of_layer = range(5 * layer, 5 * layer + 5)
            assert sum(u in of_layer for u in removed) == sum(u in of_layer for u in by_value)


def test_joint_elimination_takes_the_best_step_by_brute_force():
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(7, 9, generator=generator, dtype=torch.float64)
    matrix, ridge = root @ root.T, 0.1
    strength = ridge * float(matrix.diagonal().mean())
    order, _ = eliminate(matrix, ridge)
    for step in range(6):
        gone, left = order[:step], [unit for unit in range(7) if unit not in order[:step]]
        assert order[step] == min(left, key=lambda u: _minimum(matrix, strength, [*gone, u]))
    assert sorted(order) == list(range(7))


def _minimum(matrix: torch.Tensor, strength: float, removed: list[int]) -> float:
    """Least (1 - xi) G (1 - xi) + strength ||1 - xi_kept||^2, by a general least-squares solver."""
    kept = [i for i in range(len(matrix)) if i not in removed]
    root = torch.linalg.cholesky(matrix + 1e-12 * torch.eye(len(matrix)).double()).T
    design = torch.cat([root[:, kept], math.sqrt(strength) * torch.eye(len(kept)).double()])
    target = torch.cat([-root[:, removed].sum(dim=1), torch.zeros(len(kept)).double()])
    solved = torch.linalg.lstsq(design, target[:, None]).solution
    return float(((design @ solved)[:, 0] - target).pow(2).sum())


def test_every_method_is_deterministic_and_removes_as_many_as_asked():
    for name, info in METHODS.items():
        if info.needs_roles or name in ("gates", "topk", "surgeon"):  # these need a real model
            continue
        first, second = (rank(name, toy_given(seed=4)) for _ in range(2))
        torch.testing.assert_close(first.values, second.values, rtol=0, atol=0)
        for count in range(7):
            assert first.remove(count) == second.remove(count)
            assert len(set(first.remove(count))) == count
    assert len({random(toy_given(4, 4, seed=seed)).remove(8) for seed in range(5)}) == 5


def test_ablation_measures_each_head_alone_and_greedy_measures_again():
    given = toy_given(2, 3)
    toy = given.calibration
    ones = torch.ones(2, 3)

    def without(*units: int) -> float:
        gates = ones.clone()
        for unit in units:
            gates[divmod(unit, 3)] = 0.0
        return toy.quality(gates)

    expected = [toy.quality(ones) - without(unit) for unit in range(6)]
    found = rank("ablation", given)
    torch.testing.assert_close(found.values, torch.tensor(expected, dtype=torch.float64))
    greedy, removed = rank("ablation-greedy", given), list[int]()
    for count in range(1, 6):
        left = [unit for unit in range(6) if unit not in removed]
        removed.append(max(left, key=lambda unit: without(*removed, unit)))
        assert set(greedy.remove(count)) == set(removed)


def test_units_tie_the_layers_that_share_a_module():
    units = Units([2, 2, 3], [(0, 1), (2,)])
    assert units.members == (((0, 0), (1, 0)), ((0, 1), (1, 1)), ((2, 0),), ((2, 1),), ((2, 2),))
    assert units.shared
    assert units.heads([1, 4]) == ((0, 1), (1, 1), (2, 2))
    grid = torch.arange(9.0).view(3, 3)
    assert units.contract(grid).tolist() == [0.0 + 3.0, 1.0 + 4.0, 6.0, 7.0, 8.0]
    gates = units.expand(units.gates([1]))
    assert gates.tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 1]]  # no third head: never read


LAYERS = torch.tensor([0] * 5 + [1] * 5 + [2] * 5)
VALUES = torch.randperm(15, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("each", range(6))
def test_the_lowest_or_the_first_of_each_layer_go(each):
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


def test_a_layer_that_every_unit_belongs_to_loses_what_the_ranking_says():
    """ALBERT's layers share one module."""
    free = Ranking(VALUES)
    even = EvenRanking(free, torch.zeros(15, dtype=torch.long))
    assert [even.remove(n) for n in range(16)] == [free.remove(n) for n in range(16)]


def test_fisher_joint_eliminates_while_there_is_room():
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


def _spare_wheel() -> Context:
    """Eight heads: 0 and 1 say the same into a saturated output, the others add a little each.

    While both are there neither matters; once one is gone the other matters most of all.
    """
    generator = torch.Generator().manual_seed(5)
    signs = torch.randn(60, 8, generator=generator).sign().double()
    a = torch.zeros(60, 8, 7, dtype=torch.float64)
    a[:, 0, 0] = a[:, 1, 0] = 1.5 * signs[:, 0]
    for head in range(2, 8):
        a[:, head, head - 1] = (0.08 + 0.01 * head) * signs[:, head]
    return toy_given(a=a.reshape(60, 2, 4, 7), labels=False, f=torch.tanh)


def _true_distance(given: Context, removed: tuple[int, ...]) -> float:
    a, f = given.calibration._a.flatten(1, 2), given.calibration._f
    left = [head for head in range(a.shape[1]) if head not in removed]
    return float(((f(a[:, left].sum(dim=1)) - f(a.sum(dim=1))) ** 2).sum(dim=1).mean())


@pytest.mark.parametrize("count", [2, 3])
def test_it_finds_the_best_set_where_one_linearisation_takes_both_spare_heads(count):
    given = _spare_wheel()
    every = itertools.combinations(range(8), count)
    best = min(_true_distance(given, removed) for removed in every)
    assert {0, 1} <= set(fisher_joint(given).remove(count))
    found = fisher_relinearised(given, directions=20).remove(count)
    assert _true_distance(given, found) < 1.2 * best
    assert _true_distance(given, fisher_joint(given).remove(count)) > 5 * best


def test_a_head_that_says_the_same_of_every_text_goes_first_if_it_leaves_its_mean():
    generator = torch.Generator().manual_seed(2)
    a = torch.randn(80, 8, 6, generator=generator, dtype=torch.float64)
    a[:, 3] = 0.05 * a[:, 3] + 5.0  # loud, and nearly constant
    given = toy_given(a=a.reshape(80, 2, 4, 6), labels=False)
    assert fisher_mean(given, directions=20).remove(1) == (3,)
    assert 3 not in fisher_relinearised(given, directions=20).remove(4)


def test_what_a_size_is_given_does_not_depend_on_what_was_asked_before():
    rising, falling = (fisher_relinearised(toy_given(2, 6, labels=False)) for _ in range(2))
    up = [rising.remove(n) for n in range(13)]
    assert up[::-1] == [falling.remove(n) for n in range(12, -1, -1)]
    before = dict(rising.passes)
    assert rising.remove(5) == falling.remove(5)
    assert rising.passes == before  # asked again, it costs nothing
