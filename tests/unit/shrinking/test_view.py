"""What the answer says of a loss."""

from types import SimpleNamespace

import pytest
from shrinking_models import measured_model

from headscope.shrinking.view import loses_nothing
from headscope.stats.estimate import Estimate


@pytest.mark.parametrize(
    ("change", "most_lost", "nothing"),
    [
        (Estimate(-0.2, -0.5, 0.1), 0.5, True),  # nothing is shown
        (Estimate(-0.2, -0.3, -0.1), 0.3, False),
        (Estimate(0.3, 0.1, 0.5), -0.1, True),
        (Estimate(-1e-6), 1e-6, True),  # rounding: no resample differs from another
        (Estimate(-1e-6, -2e-6, -1e-7), 2e-6, True),
        (Estimate(-0.2), None, False),
    ],
)
def test_what_loses_nothing(change, most_lost, nothing):
    model = measured_model(change=change, most_lost=most_lost)
    assert loses_nothing(SimpleNamespace(metric="spearman"), model) is nothing
