"""Choices, gates and repairs, on outputs known in closed form, against programs written otherwise.

tests/parity/test_prune_stacks.py holds scores, and heads removed alone, against loops over a model.
"""

import itertools
import math

import pytest
import torch
from scipy import integrate
from toy_calibration import toy_given

from headscope.core.errors import InputError
from headscope.pruning.methods import Fisher, exchange, rank
from headscope.pruning.ranking import Context
from headscope.pruning.scaling import scale_gates
from headscope.pruning.trained_gates import draw_gates, gates, open_probability
from headscope.tasks.units import Units, parse_heads


def _example_loss(context: Context, index: int, gates: torch.Tensor) -> float:
    a = context.calibration._a
    y = context.calibration._y
    f = context.calibration._f
    e = f(torch.einsum("lh,lhd->d", gates, a[index]))
    return float(((e - y[index]) ** 2).sum() / 2)


def _differences(context: Context, step: float = 1e-6) -> torch.Tensor:
    """dL_i/dxi by central differences, one example and one head at a time."""
    shape = context.units.shape
    differences = torch.zeros(len(context.calibration._a), math.prod(shape), dtype=torch.float64)
    for i, (unit, head) in itertools.product(
        range(len(differences)), enumerate(itertools.product(*map(range, shape)))
    ):
        for sign in (1, -1):
            gates = torch.ones(shape).double()
            gates[head] += sign * step
            differences[i, unit] += sign * _example_loss(context, i, gates) / (2 * step)
    return differences


def test_importance_by_example_is_the_mean_absolute_derivative_of_single_examples():
    context = toy_given(f=torch.tanh)
    differences = _differences(context)
    expected = differences.abs().mean(dim=0)
    by_layer = expected.view(2, 3)
    normalised = by_layer / by_layer.norm(dim=1, keepdim=True)
    ranking = rank("importance-example", context)
    torch.testing.assert_close(ranking.values, normalised.flatten(), rtol=1e-5, atol=1e-7)
    # Adding gradients up before the absolute value, as a copied script does, gives less.
    assert (differences.mean(dim=0).abs() < expected).all()


def test_label_free_fisher_is_the_gauss_newton_matrix_in_expectation():
    context = toy_given(labels=False, n=60, seed=5)
    a = context.calibration._a.flatten(1, 2)  # (n, units, d): the Jacobian of a linear output
    exact = torch.einsum("nud,nvd->uv", a, a) / len(a)
    sums = context.gauss_newton(400)
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
            exchanged = exchange(matrix, start)
            assert exchanged.sum() == count
            assert _loss(matrix, exchanged) <= _loss(matrix, start) + 1e-12
    # Two heads that cancel each other cost nothing together, though each alone is expensive.
    matrix = torch.eye(4).double()
    matrix[:2, :2] = torch.tensor([[9.0, -9.0], [-9.0, 9.0]])
    exchanged = exchange(matrix, torch.tensor([True, False, True, False]))
    assert exchanged.tolist() in ([True, True, False, False], [False, False, True, True])


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


def test_units_tie_the_layers_that_share_a_module():
    units = Units([2, 2, 3], [(0, 1), (2,)])
    assert units.members == (((0, 0), (1, 0)), ((0, 1), (1, 1)), ((2, 0),), ((2, 1),), ((2, 2),))
    assert units.shared
    assert units.heads([1, 4]) == ((0, 1), (1, 1), (2, 2))
    grid = torch.arange(9.0).view(3, 3)
    assert units.contract(grid).tolist() == [0.0 + 3.0, 1.0 + 4.0, 6.0, 7.0, 8.0]
    gates = units.expand(units.gates([1]))
    assert gates.tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 1]]  # no third head: never read


def test_scaling_solves_least_squares_where_outputs_are_linear():
    context = toy_given(2, 3, labels=False, n=300, d=8)
    a = context.calibration._a.flatten(1, 2)
    a += 0.8 * a[:, :1]  # heads that go together
    removed = [1, 4]
    remaining = [0, 2, 3, 5]
    gates = scale_gates(context, removed, directions=20, rounds=6)
    design = a[:, remaining].transpose(1, 2).reshape(-1, len(remaining))
    exact = torch.linalg.lstsq(design, a.sum(dim=1).reshape(-1, 1)).solution[:, 0]
    torch.testing.assert_close(gates[remaining], exact, atol=0.05, rtol=0)
    assert (gates[removed] == 0).all()


@pytest.mark.parametrize("removed", [[], [0], list(range(6))])
def test_scaling_never_makes_the_calibration_distance_worse(removed):
    context = toy_given(2, 3, labels=False, f=torch.tanh)
    gates = scale_gates(context, removed, directions=2)
    assert context.distance(gates) <= context.distance(context.units.gates(removed))
    assert (gates[removed] == 0).all()


@pytest.mark.parametrize("log_a", [-2.0, 0.0, 1.5])
def test_drawn_gates_are_open_as_often_as_the_formula_says(log_a):
    drawn = draw_gates(torch.tensor([log_a]), 200_000, torch.Generator().manual_seed(0))
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    assert float((drawn > 0).float().mean()) == pytest.approx(
        float(open_probability(torch.tensor(log_a))), abs=0.005
    )

    def gate(u: float) -> float:
        s = 1 / (1 + math.exp(-(math.log(u) - math.log(1 - u) + log_a) / 0.33))
        return min(1.0, max(0.0, s * 1.2 - 0.1))

    mean, _ = integrate.quad(gate, 0, 1, limit=200)
    assert float(drawn.mean()) == pytest.approx(mean, abs=0.005)


def test_gates_close_useless_heads_and_stop_when_settled():
    """Two layers of four heads, of which 1, 2 and 7 put out next to nothing."""
    a = torch.randn(120, 2, 4, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    a.flatten(1, 2)[:, [1, 2, 7]] *= 0.01
    seen: list[tuple[str, int, int]] = []
    context = toy_given(a=a, labels=False, progress=lambda *step: seen.append(step))
    ranking = gates(context, strength=0.2)
    assert set(ranking.remove(3)) == {1, 2, 7}
    probability = open_probability(ranking.values)
    assert (probability[[1, 2, 7]] < 0.5).all()
    assert (probability[[0, 3, 4, 5, 6]] > 0.5).all()
    assert seen == [("gates", i, 40) for i in range(1, len(seen) + 1)]
    assert len(seen) < 40  # stopped early


ENCODER = "encoder"
HEADS = {(ENCODER, 0): (0, 1, 2), (ENCODER, 1): (0, 2), (ENCODER, 2): ()}
ALL = {**HEADS, ("decoder", 0): (0, 1), ("cross", 0): (0, 1)}


def test_names_and_stars_are_read_once_each():
    heads = parse_heads("L0H1, l1h* ,L0H1,", HEADS)
    assert heads == [(ENCODER, 0, 1), (ENCODER, 1, 0), (ENCODER, 1, 2)]
    assert parse_heads("L2H*", HEADS) == []


@pytest.mark.parametrize(
    ("heads", "text", "says"),
    [
        *((HEADS, text, "No head") for text in ("", ",")),
        *((HEADS, text, "not a head") for text in ("H1", "L0H1;L0H2", "L0H-1")),
        (HEADS, "L3H0", "no layer 3"),
        (HEADS, "L0H3", "H0 to H2"),
        (HEADS, "L1H1", "H0, H2"),
        (HEADS, "L2H0", "none left"),
        (HEADS, "cross:L0H1", "removed from encoder here"),
        (ALL, "L0H1", "several stacks; write cross:L0H1"),
        (ALL, "cross:L1H1", "no layer 1; the model has L0 to L0"),
    ],
)
def test_slips_are_named(heads, text, says):
    with pytest.raises(InputError, match=says):
        parse_heads(text, heads)


def test_a_stack_is_named_where_there_are_several():
    heads = parse_heads("cross:L0H1,encoder:L1H*,Decoder:l0h0", ALL)
    assert heads == [("cross", 0, 1), ("decoder", 0, 0), (ENCODER, 1, 0), (ENCODER, 1, 2)]
    assert parse_heads("encoder:L0H1", HEADS) == [(ENCODER, 0, 1)]
