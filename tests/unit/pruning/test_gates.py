"""Learned gates: the hard-concrete constants, exact budgets, and planted useless heads."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import integrate
from toy_calibration import toy_given

from headscope.pruning.gates import gates
from headscope.pruning.hard_concrete import STRETCH, TEMPERATURE, draw_gates, open_probability
from headscope.pruning.topk import hard_sample, relaxed_sample, topk


def test_constants_are_those_of_the_papers() -> None:
    assert TEMPERATURE == 0.33
    assert STRETCH == (-0.1, 1.1)
    log_a = torch.tensor([-3.0, 0.0, 2.5])
    expected = [1 / (1 + math.exp(-(x - 0.33 * math.log(0.1 / 1.1)))) for x in log_a.tolist()]
    torch.testing.assert_close(open_probability(log_a), torch.tensor(expected))


@pytest.mark.parametrize("log_a", [-2.0, 0.0, 1.5])
def test_drawn_gates_are_open_as_often_as_the_formula_says(log_a: float) -> None:
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


def test_relaxed_samples_sum_to_k_and_sharpen_to_the_largest() -> None:
    scores = torch.tensor([[0.3, -1.0, 2.0, 0.9, -0.2]])
    for k in range(1, 5):
        soft = relaxed_sample(scores, k)
        assert float(soft.sum()) == pytest.approx(k, abs=1e-4)
        sharp = relaxed_sample(scores, k, temperature=0.02)
        assert set(sharp[0].topk(k).indices.tolist()) == set(scores[0].topk(k).indices.tolist())
        hard = hard_sample(scores.clone().requires_grad_(True), k)
        assert hard.detach().round(decimals=5).unique().tolist() == [0.0, 1.0]
        assert float(hard.detach().sum()) == pytest.approx(k, abs=1e-5)


def _with_useless_heads() -> torch.Tensor:
    """Two layers of four heads, of which 1, 2 and 7 put out next to nothing."""
    a = torch.randn(120, 2, 4, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    a[:, 0, [1, 2]] *= 0.01
    a[:, 1, 3] *= 0.01
    return a


def test_gates_close_useless_heads_and_stop_when_settled() -> None:
    seen: list[tuple[str, int, int]] = []
    given = toy_given(
        a=_with_useless_heads(), labels=False, progress=lambda *step: seen.append(step)
    )
    ranking = gates(given, strength=0.2)
    assert set(ranking.remove(3)) == {1, 2, 7}
    probability = open_probability(ranking.values)
    assert (probability[[1, 2, 7]] < 0.5).all()
    assert (probability[[0, 3, 4, 5, 6]] > 0.5).all()
    assert ranking.passes["forward"] < 40  # stopped early
    assert [step[0] for step in seen] == ["gates"] * len(seen)
    assert seen[-1][1] == seen[-1][2]


def test_topk_removes_exactly_its_budget_and_finds_useless_heads() -> None:
    given = toy_given(a=_with_useless_heads(), labels=False, budget=3)
    ranking = topk(given)
    assert set(ranking.remove(3)) == {1, 2, 7}
    assert torch.equal(ranking.values, topk(given).values)
