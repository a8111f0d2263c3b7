"""Repairs: gates by least squares, and W_O by ridge, against closed forms."""

from __future__ import annotations

import pytest
import torch
from toy_calibration import toy_given

from headscope.pruning.fisher import outputs_matrix
from headscope.pruning.refit import RidgeSums
from headscope.pruning.scale import distance, full_outputs, scale_gates


def test_a_surviving_copy_is_turned_up_to_stand_for_both() -> None:
    given = toy_given(2, 3, labels=False, n=150, d=12)
    a = given.calibration._a
    a[:, 1, 0] = 0.5 * a[:, 0, 2]  # unit 3 is half of unit 2
    targets = full_outputs(given)
    matrix = outputs_matrix(given, 30).matrix
    found = scale_gates(given, [3], matrix=matrix, targets=targets)
    torch.testing.assert_close(
        found, torch.tensor([1.0, 1.0, 1.5, 0.0, 1.0, 1.0], dtype=torch.float64), atol=0.06, rtol=0
    )
    plain = distance(given, given.units.gates([3]), targets)
    assert distance(given, found, targets) < 0.02 * plain


def test_scaling_solves_least_squares_where_outputs_are_linear() -> None:
    given = toy_given(2, 3, labels=False, n=300, d=8)
    a = given.calibration._a.flatten(1, 2)
    a += 0.8 * a[:, :1]  # heads that go together
    removed, kept = [1, 4], [0, 2, 3, 5]
    matrix, targets = outputs_matrix(given, 20).matrix, full_outputs(given)
    found = scale_gates(given, removed, matrix=matrix, targets=targets, rounds=6)
    design = a[:, kept].transpose(1, 2).reshape(-1, len(kept))
    exact = torch.linalg.lstsq(design, a.sum(dim=1).reshape(-1, 1)).solution[:, 0]
    torch.testing.assert_close(found[kept], exact, atol=0.05, rtol=0)
    assert (found[removed] == 0).all()


@pytest.mark.parametrize("removed", [[], [0], list(range(6))])
def test_scaling_never_makes_the_calibration_distance_worse(removed: list[int]) -> None:
    given = toy_given(2, 3, labels=False, f=torch.tanh)
    targets = full_outputs(given)
    matrix = outputs_matrix(given, 2).matrix
    found = scale_gates(given, removed, matrix=matrix, targets=targets)
    assert distance(given, found, targets) <= distance(given, given.units.gates(removed), targets)
    assert (found[removed] == 0).all()


def test_ridge_matches_a_stacked_least_squares_problem() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(200, 6, generator=generator, dtype=torch.float64) + 2.0
    t = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    w = torch.rand(200, generator=generator, dtype=torch.float64)
    now = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    sums = RidgeSums(6, 3)
    for part in (slice(0, 77), slice(77, 200)):
        sums.update(z[part], t[part], w[part])
    W, b = sums.solve(now, 0.5)
    # The same problem with the ridge as further rows, in which the constant has no part.
    share = (w / w.sum()).sqrt()[:, None]
    mean = (w[:, None] * z).sum(0) / w.sum()
    spread = ((w[:, None] * (z - mean) ** 2).sum(0) / w.sum()).mean()
    pull = (0.5 * spread).sqrt() * torch.eye(6, dtype=torch.float64)
    design = torch.cat(
        [torch.cat([z, torch.ones(200, 1)], dim=1) * share, torch.cat([pull, torch.zeros(6, 1)], 1)]
    )
    solved = torch.linalg.lstsq(design, torch.cat([t * share, pull @ now])).solution
    torch.testing.assert_close(W, solved[:6])
    torch.testing.assert_close(b, solved[6])


def test_an_infinite_ridge_fits_the_bias_alone() -> None:
    sums, now = RidgeSums(2, 1), torch.tensor([[1.0], [0.0]])
    sums.update(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([[4.0], [4.0]]), torch.ones(2))
    W, b = sums.solve(now, float("inf"))
    torch.testing.assert_close(W, now.double())
    torch.testing.assert_close(b, torch.tensor([2.0]).double())
