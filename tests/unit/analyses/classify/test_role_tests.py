"""Labelled heads against the others: planted differences, layers that confound, all deals."""

import itertools

import numpy as np
import pytest

from headscope.analyses.classify.optional.role_tests import DEALS, role_tests
from headscope.core.rounding import ROUNDING

LAYERS = np.repeat(np.arange(6), 8)
HALF = np.tile([True, False], len(LAYERS) // 2)
LATE = np.random.default_rng(2).random(48) < np.array([0.1, 0.1, 0.2, 0.8, 0.9, 0.9])[LAYERS]
NOISE = np.random.default_rng(1).random(len(LAYERS))

#: values, labels, verdict, and whether labels dealt over all layers would see a difference.
PLANTED = {
    "a role that costs more": (NOISE + 2.0 * HALF, HALF, "costs more", True),
    "a role that costs less": (NOISE - 2.0 * HALF, HALF, "costs less", True),
    "a role that costs nothing": (NOISE, HALF, "not told apart", False),
    # Roles stand in late layers, and what is late costs more: roles have nothing to do with it.
    "late layers cost more": (10.0 * LAYERS + NOISE, LATE, "not told apart", True),
    # The other way round: a difference that layers hide from all pairs.
    "more within, less without": (LATE - 3.0 * LAYERS + NOISE / 9, LATE, "costs more", True),
    "a role of whole layers": (10.0 * LAYERS + NOISE, LAYERS > 2, "not measured", True),
    "all losses equal": (np.zeros(len(LAYERS)), HALF, "not told apart", False),
}


def superiority(values, has, layers=None) -> float:
    """Compare every pair, in a loop."""
    wins = pairs = 0.0
    for i, j in itertools.product(range(len(values)), repeat=2):
        if has[i] and not has[j] and (layers is None or layers[i] == layers[j]):
            pairs += 1
            wins += 1.0 if values[i] > values[j] else 0.5 if values[i] == values[j] else 0.0
    return wins / pairs


def every_deal(has, layers):
    """Deal the labels of each layer among its heads in all ways, one layer after the other."""
    ways = [
        [set(chosen) for chosen in itertools.combinations(where, int(has[where].sum()))]
        for where in (np.flatnonzero(layers == layer).tolist() for layer in sorted(set(layers)))
    ]
    for chosen in itertools.product(*ways):
        yield np.isin(np.arange(len(has)), sorted(set().union(*chosen)))


@pytest.mark.parametrize("case", PLANTED)
def test_labels_dealt_within_layers_decide(case):
    values, has, verdict, everywhere = PLANTED[case]
    (test,) = role_tests({"zero": values}, {"any": has}, LAYERS)
    assert test.verdict == verdict
    assert (test.p_value < 0.05) is everywhere
    assert (test.within is None) is (verdict == "not measured")
    if test.within is not None:
        outside = not test.within_placebo[0] <= test.within <= test.within_placebo[1]
        assert outside is verdict.startswith("costs")
    if case == "a role that costs more":  # the smallest p that deals can give
        assert test.within_p == pytest.approx(1 / (1 + DEALS))


def test_superiority_is_that_of_all_pairs_and_p_of_all_deals():
    """Three layers of five and four heads, with ties: every deal is counted, pair by pair."""
    layers = np.repeat([0, 1, 2], [5, 4, 4])
    values = np.array([5.0, 1, 4, 2, 3, 9, 8, 9, 7, 2, 0, 1, 1])
    has = np.isin(np.arange(13), (0, 2, 5, 6, 9))
    (test,) = role_tests({"zero": values}, {"any": has}, layers)
    assert (test.heads, test.others) == (5, 8)
    assert test.superiority.value == pytest.approx(superiority(values, has))
    assert test.within == pytest.approx(superiority(values, has, layers))
    exact = np.array([superiority(values, deal, layers) for deal in every_deal(has, layers)])
    assert len(exact) == 10 * 6 * 4
    chosen = itertools.combinations(range(13), 5)
    free = np.array([superiority(values, np.isin(np.arange(13), list(c))) for c in chosen])
    for p_value, deals, observed in (
        (test.within_p, exact, superiority(values, has, layers)),
        (test.p_value, free, superiority(values, has)),
    ):
        p = float(np.mean(np.abs(deals - 0.5) >= abs(observed - 0.5) - 1e-9))
        assert 0.01 < p < 0.2
        assert p_value == pytest.approx(p, abs=4 * np.sqrt(p * (1 - p) / DEALS) + 1 / DEALS)


def test_p_is_adjusted_over_the_roles_of_a_removal():
    labels = {"half": HALF, "late": LATE, "whole layers": LAYERS > 2}
    tests = role_tests({"zero": NOISE + HALF, "mean": NOISE}, labels, LAYERS)
    for removal in ("zero", "mean"):
        of_role = {test.role: test for test in tests if test.removal == removal}
        # There is no pair, and it takes no part.
        assert of_role["whole layers"].within_p_adjusted is None
        low, high = sorted((of_role["half"], of_role["late"]), key=lambda test: test.within_p)
        assert high.within_p_adjusted == pytest.approx(high.within_p)
        assert low.within_p_adjusted == pytest.approx(min(2 * low.within_p, high.within_p))


def test_small_groups_are_not_compared_and_have_no_interval():
    values = np.arange(len(LAYERS), dtype=float)
    labels = {str(n): values < n for n in (2, 3, 7, 8, 41, 48)}
    tests = role_tests({"zero": values}, labels, LAYERS)
    has_interval = {test.role: test.superiority.interval is not None for test in tests}
    assert has_interval == {"3": False, "7": False, "8": True, "41": False}


def test_rounding_makes_no_difference():
    """Heads that do nothing lose what rounding leaves: equal on paper, and so in the ranks."""
    rng = np.random.default_rng(3)
    noise = rng.normal(0, ROUNDING / 40, len(LAYERS))
    (rounded,) = role_tests({"zero": noise}, {"any": HALF}, LAYERS, size=1.0)
    assert (rounded.within, rounded.superiority.value, rounded.verdict) == (
        0.5,
        0.5,
        "not told apart",
    )
    values = np.round(NOISE, 2)  # far apart but for true ties
    shaken = [values + rng.uniform(-1, 1, len(values)) * ROUNDING / 8 for _ in range(3)]
    tests = [role_tests({"zero": v}, {"any": HALF}, LAYERS, size=1.0) for v in shaken]
    assert tests[0] == tests[1] == tests[2]
