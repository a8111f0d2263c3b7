"""What may be said of a loss: how much at most, never that nothing is lost."""

import pytest

from headscope.removal.metric_words import change_words
from headscope.stats.estimate import Estimate


@pytest.mark.parametrize(
    ("metric", "difference", "ci", "says"),
    [
        ("spearman", -0.33, (-1.1, 0.4), "at most 1.10 points are lost (95%)"),
        ("spearman", 0.73, (0.07, 1.5), "Spearman rises by 0.73 points (95%: 0.07 to 1.50)"),
        ("spearman", 0.73, (0.0, 1.5), "at most 0.00 points are lost (95%)"),
        ("accuracy", 0.0, (-0.004, 0.4), "less than 0.01 points are lost (95%)"),
        ("accuracy", 0.0, (), "what is lost at most is not known"),
        ("loss", 0.05, (0.03, 0.19), "the loss rises by at most 0.190 nats (95%)"),
        ("loss", -0.05, (-0.19, -0.03), "the loss falls by 0.050 nats (95%: 0.030 to 0.190)"),
        ("cosine", -0.02, (-0.031, -0.01), "at most 0.0310 of the cosine is lost (95%)"),
    ],
)
def test_a_change_is_told_by_the_bad_end_of_its_interval(metric, difference, ci, says):
    assert change_words(metric, Estimate(difference, *ci)) == says
