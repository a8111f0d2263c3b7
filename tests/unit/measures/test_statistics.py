"""Intervals and tests against textbook formulas written out, and against enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from headscope.measures.statistics import adjust, binomial_p, mcnemar_p, normal_p, paired_p, wilson

counts = st.integers(0, 60)


@given(counts, st.integers(1, 60))
def test_wilson_is_the_textbook_formula(hits: int, more: int) -> None:
    low, high = wilson(hits, hits + more)
    assert (float(low), float(high)) == pytest.approx(reference.wilson(hits, hits + more))
    assert low <= hits / (hits + more) <= high


def test_wilson_without_trials_knows_nothing() -> None:
    assert tuple(map(float, wilson(0, 0))) == (0.0, 1.0)


@given(counts, counts)
def test_mcnemar_is_the_exact_binomial_test(only_head: int, only_baseline: int) -> None:
    expected = reference.mcnemar(only_head, only_baseline)
    assert float(mcnemar_p(only_head, only_baseline)) == pytest.approx(expected)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_adjusted_p_values(p: list[float]) -> None:
    assert adjust(np.array(p)) == pytest.approx(np.array(reference.benjamini_hochberg(p)))


def test_binomial_tail_by_enumeration() -> None:
    tail = sum(math.comb(12, k) * 0.3**k * 0.7 ** (12 - k) for k in range(7, 13))
    assert float(binomial_p(7, 12, 0.3)) == pytest.approx(tail)
    assert float(binomial_p(0, 0, 0.3)) == 1.0


def test_paired_test_by_hand() -> None:
    """The z of the differences hit - expected, computed trial by trial."""
    rng = np.random.default_rng(0)
    hit, expected = rng.random(200) < 0.5, rng.random(200) * 0.6
    difference = hit - expected
    z = difference.mean() / (difference.std() / math.sqrt(200))
    p = paired_p(hit.sum(), expected[hit].sum(), expected.sum(), (expected**2).sum(), 200)
    assert float(p) == pytest.approx(0.5 * math.erfc(z / math.sqrt(2)))


def test_certain_difference_and_no_difference() -> None:
    assert float(normal_p(0.7, 0.0, 0.5)) == 0.0
    assert float(normal_p(0.5, 0.0, 0.5)) == 0.5
    assert float(normal_p(0.3, 0.0, 0.5)) == 1.0


def test_false_positives_under_the_null_stay_below_q() -> None:
    """Heads that hit like the baseline by chance: few tests survive the adjustment."""
    rng = np.random.default_rng(1)
    discordant = rng.integers(20, 80, size=2000)
    only_head = rng.binomial(discordant, 0.5)
    p = adjust(mcnemar_p(only_head, discordant - only_head))
    assert (p <= 0.05).sum() <= 2
    assert list(itertools.islice(p, 1))  # the family is not empty
