"""Correlations within layers: scipy, planted relations, and none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from headscope.measures.linear.correlation import correlate

RNG = np.random.default_rng(4)
LAYER = np.repeat(np.arange(6), 12)
X = RNG.normal(size=72)


def test_values_are_scipys() -> None:
    y = np.round(X + RNG.normal(size=72), 1)  # with ties
    for ranks, theirs in ((True, stats.spearmanr), (False, stats.pearsonr)):
        found = correlate(X, y, LAYER, ranks=ranks)
        z = [np.arctanh(theirs(X[i == LAYER], y[i == LAYER]).statistic) for i in range(6)]
        low, high = stats.t.interval(0.95, 5, np.mean(z), stats.sem(z))
        assert found.value == pytest.approx(np.tanh(np.mean(z)))
        assert (found.low, found.high) == pytest.approx(np.tanh((low, high)))
        assert found.p == pytest.approx(stats.ttest_1samp(z, 0).pvalue)
        assert found.layers == 6


def test_what_explains_both_is_held_constant() -> None:
    z = RNG.normal(size=72)
    x, y = (z + 0.3 * RNG.normal(size=72) for _ in range(2))
    assert correlate(x, y, LAYER, ranks=True).low > 0.5
    found = correlate(x, y, LAYER, ranks=True, given=z)
    assert found.low < 0.1
    own = []
    for i in range(6):
        rx, ry, rz = (stats.rankdata(v[i == LAYER]) for v in (x, y, z))
        left = [r - np.polyval(np.polyfit(rz, r, 1), rz) for r in (rx, ry)]
        own.append(np.arctanh(stats.pearsonr(*left).statistic))
    assert found.value == pytest.approx(np.tanh(np.mean(own)))


def test_false_alarms_are_as_rare_as_is_said_though_heads_depend_on_each_other() -> None:
    """Heads of a layer share what makes them alike: as one sample of 72 they would correlate."""
    rng = np.random.default_rng(1)
    alarms = alone = 0
    for _ in range(300):
        shared = rng.normal(size=(2, 6))[:, LAYER] * 2
        x, y = shared + rng.normal(size=(2, 72))
        found = correlate(x, y, LAYER, ranks=True)
        alarms += not found.low < 0 < found.high
        alone += stats.spearmanr(x, y).pvalue < 0.05
    assert alarms <= 0.08 * 300
    assert alone > 0.4 * 300


def test_few_layers_have_no_interval() -> None:
    for n in (1, 3):
        here = n > LAYER
        found = correlate(X[here], -X[here], LAYER[here], ranks=True)
        assert found.value < -0.9
        assert np.isnan([found.low, found.high, found.p]).all()
        assert found.layers == n


def test_a_perfect_relation_still_has_a_width() -> None:
    found = correlate(X, X, LAYER, ranks=True)
    assert 0.9 < found.low < found.value < found.high < 1
    few = correlate(X[:24], X[:24], np.repeat(np.arange(6), 4), ranks=True)
    assert few.low < 0.5  # four heads in one order is chance now and then


def test_what_is_not_defined_has_no_number() -> None:
    noise = 1 + 1e-7 * X  # one number but for rounding
    for x, y in ((np.ones(72), X), (noise, X), (X, noise), (X[:0], X[:0])):
        found = correlate(x, y, LAYER[: len(x)], ranks=True)
        assert np.isnan([found.value, found.low, found.high, found.p]).all()
        assert found.layers == 0
    assert np.isnan(correlate(X, X, LAYER, ranks=False, given=X).value)
    three = np.arange(72) % 12 < 3
    assert correlate(X[three], X[three], LAYER[three], ranks=True).layers == 0
    holed = np.where(np.arange(72) == 3, np.nan, X)
    assert correlate(holed, X, LAYER, ranks=True).value > 0.99
    flat = np.where(LAYER == 2, 5.0, X)
    assert correlate(flat, X, LAYER, ranks=True).layers == 5
