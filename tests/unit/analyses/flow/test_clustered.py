"""Rates over sentences, and how much each sentence pulls at them."""

import numpy as np
import pytest

from headscope.analyses.flow.clustered import Clustered


def test_rates_over_sentences_are_ratio_estimates():
    """Intervals are as wide as a bootstrap over sentences says, those of differences too."""
    random = np.random.default_rng(0)
    whole = random.integers(1, 9, (50, 1)).astype(float)
    part = random.binomial(whole.astype(int), [0.2, 0.7], (50, 2)).astype(float)
    found = Clustered.ratio(part, whole)
    np.testing.assert_allclose(found.value, part.sum(0) / whole.sum())
    gap = Clustered(found.value[:1], found.influence[:, :1], found.units[:1]) - found.mean()
    drawn = random.integers(0, 50, (4000, 50))
    rates = part[drawn].sum(1) / whole[drawn].sum(1)
    assert found.half_width() == pytest.approx(2.01 * rates.std(0), rel=0.1)
    assert gap.half_width()[0] == pytest.approx(2.01 * (rates[:, 0] - rates.mean(1)).std(), rel=0.1)
    assert gap.value[0] == pytest.approx((found.value[0] - found.value[1]) / 2)
    assert np.isinf(Clustered.ratio(part[:7], whole[:7]).half_width()).all()
    assert np.isfinite(Clustered.ratio(part[:8], whole[:8]).half_width()).all()
    # Numbers that are not known are left out of a mean.
    part = np.array([[1.0, 0.0], [2.0, 0.0]])
    whole = np.array([[2.0, 0.0], [2.0, 0.0]])
    found = Clustered.ratio(part, whole)
    assert (np.isnan(found.value[1]), found.mean().value[0]) == (True, 0.75)
