"""Correlations over heads: scipy, planted relations, and none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from headscope.measures.linear.correlation import correlate

RNG = np.random.default_rng(4)
X = RNG.normal(size=60)


def test_values_are_scipys() -> None:
    y = np.round(X + RNG.normal(size=60), 1)  # with ties
    found = correlate(X, y, ranks=True)
    assert found.value == pytest.approx(stats.spearmanr(X, y).statistic)
    assert found.low < found.value < found.high
    assert found.p < 0.001
    assert correlate(X, y, ranks=False).value == pytest.approx(stats.pearsonr(X, y).statistic)


def test_independent_numbers_have_an_interval_around_zero() -> None:
    found = [correlate(X, np.random.default_rng(i).normal(size=60), ranks=True) for i in range(40)]
    held = sum(f.low < 0 < f.high for f in found)
    assert 33 <= held <= 40
    assert sum(f.p < 0.05 for f in found) <= 6


def test_what_explains_both_is_held_constant() -> None:
    z = RNG.normal(size=200)
    x, y = (z + 0.3 * RNG.normal(size=200) for _ in range(2))
    assert correlate(x, y, ranks=True).value > 0.8
    found = correlate(x, y, ranks=True, given=z)
    assert found.low < 0.1
    assert abs(found.value) < 0.2
    rx, ry, rz = (stats.rankdata(v) for v in (x, y, z))
    left = [r - np.polyval(np.polyfit(rz, r, 1), rz) for r in (rx, ry)]
    assert found.value == pytest.approx(stats.pearsonr(*left).statistic)


def test_layers_that_differ_are_no_relation_within_them() -> None:
    layer = np.repeat(np.arange(6), 12)
    x, y = (10 * layer + RNG.normal(size=72) for _ in range(2))
    columns = (layer[:, None] == np.arange(1, 6)).astype(float)
    assert correlate(x, y, ranks=True).value > 0.9
    found = correlate(x, y, ranks=False, given=columns)
    own = [v - np.array([v[layer == i].mean() for i in range(6)])[layer] for v in (x, y)]
    assert found.value == pytest.approx(stats.pearsonr(*own).statistic)
    assert found.low < 0 < found.high


def test_what_is_not_defined_has_no_number() -> None:
    for x, y in ((np.ones(9), X[:9]), (X[:2], X[2:4]), (X[:0], X[:0])):
        found = correlate(x, y, ranks=True)
        assert np.isnan([found.value, found.low, found.high, found.p]).all()
    few = correlate(X[:4], X[4:8], ranks=True)
    assert np.isfinite(few.value)
    assert np.isnan(few.low)
    same = correlate(X, X, ranks=False, given=X)
    assert np.isnan(same.value)
    holed = np.where(np.arange(60) == 3, np.nan, X)
    assert correlate(holed, X, ranks=True).value == pytest.approx(1)
