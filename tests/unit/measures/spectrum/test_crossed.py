"""Means over sequences and draws: the interval holds the truth as often as it says, or more."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from headscope.measures.spectrum.crossed import crossed_mean


def test_without_draws_it_is_the_t_interval() -> None:
    values = np.random.default_rng(0).normal(size=(9, 1))
    found = crossed_mean(values)
    low, high = stats.t.interval(0.95, 8, values.mean(), stats.sem(values[:, 0]))
    assert found.mean == pytest.approx(values.mean())
    assert found.half_width == pytest.approx((high - low) / 2)
    assert found.draw_std == 0.0
    same = crossed_mean(np.repeat(values, 5, axis=1))  # drawn five times, always the same
    assert same.half_width == pytest.approx(found.half_width)


def test_a_single_sequence_has_no_interval() -> None:
    found = crossed_mean(np.array([[1.0, 2.0, 3.0]]))
    assert np.isnan(found.sem)
    assert not np.isfinite(found.half_width)


@pytest.mark.parametrize(("between_sequences", "between_draws"), [(1.0, 0.0), (0.1, 1.0), (1, 1)])
def test_the_spread_of_draws_enters_the_interval(
    between_sequences: float, between_draws: float
) -> None:
    """With the spread over sequences alone, draws that differ would leave 95% far below."""
    rng = np.random.default_rng(1)
    held = alone = 0
    for _ in range(400):
        sequence = between_sequences * rng.normal(size=(16, 1))
        draw = between_draws * rng.normal(size=(1, 5))
        values = sequence + draw + 0.1 * rng.normal(size=(16, 5))
        found = crossed_mean(values)
        held += abs(float(found.mean)) <= float(found.half_width)
        only = stats.sem(values.mean(1)) * stats.t.ppf(0.975, 15)
        alone += abs(values.mean()) <= only
    assert held / 400 >= 0.93
    if between_draws > between_sequences:
        assert alone / 400 < 0.5
