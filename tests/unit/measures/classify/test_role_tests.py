"""Labelled heads against the others: planted differences, layers that confound, slow pair loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headscope.measures.classify.role_tests import FEWEST, dealt, role_tests

LAYERS = np.repeat(np.arange(6), 8)


def superiority(values, has, layers=None) -> float:
    """Compare every pair, in a loop."""
    wins = pairs = 0.0
    for i, j in itertools.product(range(len(values)), repeat=2):
        if has[i] and not has[j] and (layers is None or layers[i] == layers[j]):
            pairs += 1
            wins += 1.0 if values[i] > values[j] else 0.5 if values[i] == values[j] else 0.0
    return wins / pairs


def test_superiority_is_that_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 6, len(LAYERS)).astype(float)  # with ties
    has = rng.random(len(LAYERS)) < 0.4
    (test,) = role_tests({"zero": values}, {"any": has}, LAYERS)
    assert test.superiority == pytest.approx(superiority(values, has))
    assert test.within == pytest.approx(superiority(values, has, LAYERS))
    assert (test.heads, test.others) == (has.sum(), (~has).sum())
    assert test.interval[0] < test.superiority < test.interval[1]


def test_a_planted_difference_is_found_also_within_layers() -> None:
    rng = np.random.default_rng(1)
    has = np.tile([True, False], len(LAYERS) // 2)
    values = rng.random(len(LAYERS)) + 2.0 * has
    (test,) = role_tests({"zero": values}, {"any": has}, LAYERS)
    assert test.superiority == test.within == 1.0
    assert test.p_adjusted < 1e-6
    assert test.within_p is not None
    assert test.within_p < 0.001
    assert test.interval[0] > test.placebo[1]


def test_a_difference_between_layers_is_none_between_roles() -> None:
    """Roles stand in late layers, and what is late costs more: roles have nothing to do with it."""
    rng = np.random.default_rng(2)
    has = rng.random(len(LAYERS)) < np.array([0.1, 0.1, 0.2, 0.8, 0.9, 0.9])[LAYERS]
    values = 10.0 * LAYERS + rng.random(len(LAYERS))
    (test,) = role_tests({"zero": values}, {"any": has}, LAYERS)
    assert test.interval[0] > 0.5
    assert test.p_value < 0.01
    assert test.within_p is not None
    assert test.within_p > 0.05
    assert test.within_placebo[0] < (test.within or 0) < test.within_placebo[1]


def test_random_labels_are_as_the_exact_permutations() -> None:
    values = np.array([0.1, 0.9, 0.4, 0.3, 0.8, 0.2])
    has = np.array([True, True, False, False, False, False])
    found = dealt(values, has, np.zeros(6, dtype=int), np.random.default_rng(0))
    assert found is not None
    exact = []
    for chosen in itertools.combinations(range(6), 2):
        labels = np.isin(np.arange(6), chosen)
        exact.append(superiority(values, labels))
    assert found[1].mean() == pytest.approx(np.mean(exact), abs=0.02)
    for level in sorted(set(exact)):
        share = np.mean(np.array(exact) <= level + 1e-9)
        assert np.mean(found[1] <= level + 1e-9) == pytest.approx(share, abs=0.03)


def test_small_groups_are_not_compared() -> None:
    values = np.arange(len(LAYERS), dtype=float)
    few = np.arange(len(LAYERS)) < FEWEST - 1
    enough = np.arange(len(LAYERS)) < FEWEST
    tests = role_tests({"zero": values}, {"few": few, "enough": enough, "all": ~few | few}, LAYERS)
    assert [test.role for test in tests] == ["enough"]


def test_a_role_of_whole_layers_has_no_pair_within() -> None:
    values = np.arange(len(LAYERS), dtype=float)
    (test,) = role_tests({"zero": values}, {"any": LAYERS > 2}, LAYERS)
    assert test.within is None
    assert test.within_p is None
    assert test.superiority == 1.0
