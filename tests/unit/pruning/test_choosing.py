"""Scores and choices against slow oracles written otherwise, on outputs known in closed form."""

import itertools
import math

import pytest
import torch
from toy_calibration import toy_given

from headscope.core.errors import InputError
from headscope.pruning.methods import Fisher, exchange, rank
from headscope.pruning.ranking import Context
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
    found = Fisher(given)
    torch.testing.assert_close(found.matrix, g.T @ g, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.values, (g**2).sum(dim=0), rtol=1e-4, atol=1e-6)


def test_label_free_fisher_is_the_gauss_newton_matrix_in_expectation():
    given = toy_given(labels=False, n=60, seed=5)
    a = given.calibration._a.flatten(1, 2)  # (n, units, d): the Jacobian of a linear output
    exact = torch.einsum("nud,nvd->uv", a, a) / len(a)
    sums = given.gauss_newton(400)
    assert float((sums.matrix - exact).norm() / exact.norm()) < 0.05
    # Over unit directions the mean square of r . J is ||J||^2 / d.
    squares = sums.unit_squares
    torch.testing.assert_close(squares, exact.diagonal() / a.shape[-1], rtol=0.1, atol=0.0)


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
    ranking = Fisher(toy_given(3, 5, labels=False, n=30))
    for count in range(16):
        removed = ranking.remove(count)
        assert len(removed) == len(set(removed)) == count
        by_value = sorted(range(15), key=lambda unit: (float(ranking.values[unit]), -unit))[:count]
        for layer in range(3):
            of_layer = range(5 * layer, 5 * layer + 5)
            assert sum(u in of_layer for u in removed) == sum(u in of_layer for u in by_value)


def test_ablation_measures_each_head_alone():
    given = toy_given(2, 3)
    toy = given.calibration
    ones = torch.ones(2, 3)

    def without(unit: int) -> float:
        gates = ones.clone()
        gates[divmod(unit, 3)] = 0.0
        return toy.quality(gates)

    expected = [toy.quality(ones) - without(unit) for unit in range(6)]
    found = rank("ablation", given)
    torch.testing.assert_close(found.values, torch.tensor(expected, dtype=torch.float64))


def test_units_tie_the_layers_that_share_a_module():
    units = Units([2, 2, 3], [(0, 1), (2,)])
    assert units.members == (((0, 0), (1, 0)), ((0, 1), (1, 1)), ((2, 0),), ((2, 1),), ((2, 2),))
    assert units.shared
    assert units.heads([1, 4]) == ((0, 1), (1, 1), (2, 2))
    grid = torch.arange(9.0).view(3, 3)
    assert units.contract(grid).tolist() == [0.0 + 3.0, 1.0 + 4.0, 6.0, 7.0, 8.0]
    gates = units.expand(units.gates([1]))
    assert gates.tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 1]]  # no third head: never read
