"""Elimination that is linearised again, where one linearisation at the full model misleads."""

from __future__ import annotations

import itertools

import pytest
import torch
from toy_calibration import toy_given

from headscope.pruning.joint import fisher_joint
from headscope.pruning.method import Given
from headscope.pruning.relinearised import (
    Form,
    Path,
    RelinearisedRanking,
    fisher_mean,
    fisher_relinearised,
)


def _spare_wheel() -> Given:
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


def _true_distance(given: Given, removed: tuple[int, ...]) -> float:
    a, f = given.calibration._a.flatten(1, 2), given.calibration._f
    left = [head for head in range(a.shape[1]) if head not in removed]
    return float(((f(a[:, left].sum(dim=1)) - f(a.sum(dim=1))) ** 2).sum(dim=1).mean())


@pytest.mark.parametrize("count", [2, 3])
def test_it_finds_the_best_set_where_one_linearisation_takes_both_spare_heads(count: int) -> None:
    given = _spare_wheel()
    every = itertools.combinations(range(8), count)
    best = min(_true_distance(given, removed) for removed in every)
    assert {0, 1} <= set(fisher_joint(given).remove(count))
    found = fisher_relinearised(given, directions=20).remove(count)
    assert _true_distance(given, found) < 1.2 * best
    assert _true_distance(given, fisher_joint(given).remove(count)) > 5 * best


def test_a_head_that_says_the_same_of_every_text_goes_first_if_it_leaves_its_mean() -> None:
    generator = torch.Generator().manual_seed(2)
    a = torch.randn(80, 8, 6, generator=generator, dtype=torch.float64)
    a[:, 3] = 0.05 * a[:, 3] + 5.0  # loud, and nearly constant
    given = toy_given(a=a.reshape(80, 2, 4, 6), labels=False)
    assert fisher_mean(given, directions=20).remove(1) == (3,)
    assert 3 not in fisher_relinearised(given, directions=20).remove(4)


def test_each_size_is_answered_by_the_last_linearisation_at_fewer_heads() -> None:
    orders = [[0, 1, 2, 3, 4, 5], [3, 4, 5, 0, 1, 2], [1, 3, 5, 2, 4, 0]]
    nothing = torch.zeros(0)
    forms = [Form(nothing, nothing, nothing, tuple(order)) for order in orders]
    path = Path(toy_given(2, 3, labels=False), directions=1)
    ranking = RelinearisedRanking(path, forms, [0, 2, 4], rounds=0)
    found = [ranking.remove(count) for count in range(7)]
    # From the second to the third both that had gone are back.
    assert found[:4] == [(), (0,), (0, 1), (3, 4, 5)]
    assert found[4:] == [(0, 3, 4, 5), (1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5)]
    # Unit 3 goes fourth, first and second: mean place 4 / 3 of at most 5.
    assert float(ranking.values[3]) == pytest.approx(4 / 3 / 5)


def test_what_a_size_is_given_does_not_depend_on_what_was_asked_before() -> None:
    rising, falling = (fisher_relinearised(toy_given(2, 6, labels=False)) for _ in range(2))
    up = [rising.remove(n) for n in range(13)]
    assert up[::-1] == [falling.remove(n) for n in range(12, -1, -1)]
    before = dict(rising.passes)
    assert rising.remove(5) == falling.remove(5)
    assert rising.passes == before  # asked again, it costs nothing


def test_no_pass_is_made_beyond_the_largest_size_that_is_asked_for() -> None:
    given = toy_given(2, 8, labels=False)
    whole = fisher_relinearised(given)
    for largest, stages in ((2, 1), (3, 2), (8, 4), (15, 8)):
        part = fisher_relinearised(toy_given(2, 8, labels=False, largest=largest))
        assert part.passes["backward"] == 2 + 3 * (stages - 1)
        for count in range(largest + 1):
            assert part.remove(count) == whole.remove(count)
