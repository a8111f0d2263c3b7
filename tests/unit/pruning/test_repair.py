"""Learned gates, and repairs by least squares."""

import math

import pytest
import torch
from scipy import integrate
from toy_calibration import toy_given

from headscope.pruning.methods import draw_gates, gates, open_probability
from headscope.pruning.ranking import scale_gates


def test_a_surviving_copy_is_turned_up_to_stand_for_both():
    given = toy_given(2, 3, labels=False, n=150, d=12)
    a = given.calibration._a
    a[:, 1, 0] = 0.5 * a[:, 0, 2]  # unit 3 is half of unit 2
    found = scale_gates(given, [3], directions=30)
    assert found.tolist() == pytest.approx([1.0, 1.0, 1.5, 0.0, 1.0, 1.0], abs=0.06)
    plain = given.distance(given.units.gates([3]))
    assert given.distance(found) < 0.02 * plain


def test_scaling_solves_least_squares_where_outputs_are_linear():
    given = toy_given(2, 3, labels=False, n=300, d=8)
    a = given.calibration._a.flatten(1, 2)
    a += 0.8 * a[:, :1]  # heads that go together
    removed, kept = [1, 4], [0, 2, 3, 5]
    found = scale_gates(given, removed, directions=20, rounds=6)
    design = a[:, kept].transpose(1, 2).reshape(-1, len(kept))
    exact = torch.linalg.lstsq(design, a.sum(dim=1).reshape(-1, 1)).solution[:, 0]
    torch.testing.assert_close(found[kept], exact, atol=0.05, rtol=0)
    assert (found[removed] == 0).all()


@pytest.mark.parametrize("removed", [[], [0], list(range(6))])
def test_scaling_never_makes_the_calibration_distance_worse(removed):
    given = toy_given(2, 3, labels=False, f=torch.tanh)
    found = scale_gates(given, removed, directions=2)
    assert given.distance(found) <= given.distance(given.units.gates(removed))
    assert (found[removed] == 0).all()


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


def _with_useless_heads() -> torch.Tensor:
    """Two layers of four heads, of which 1, 2 and 7 put out next to nothing."""
    a = torch.randn(120, 2, 4, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    a[:, 0, [1, 2]] *= 0.01
    a[:, 1, 3] *= 0.01
    return a


def test_gates_close_useless_heads_and_stop_when_settled():
    seen: list[tuple[str, int, int]] = []
    given = toy_given(
        a=_with_useless_heads(), labels=False, progress=lambda *step: seen.append(step)
    )
    ranking = gates(given, strength=0.2)
    assert set(ranking.remove(3)) == {1, 2, 7}
    probability = open_probability(ranking.values)
    assert (probability[[1, 2, 7]] < 0.5).all()
    assert (probability[[0, 3, 4, 5, 6]] > 0.5).all()
    assert seen == [("gates", i, 40) for i in range(1, len(seen) + 1)]
    assert len(seen) < 40  # stopped early
