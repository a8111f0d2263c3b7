"""The controls that key numbers name: none where nothing was measured."""

from headscope.analyses.flow.view import _control
from headscope.stats.estimate import Estimate


def test_a_control_without_a_value_is_not_named():
    assert _control("Gaussian W_V", Estimate(None), "") == ""
    assert _control("Gaussian W_V", Estimate(0.5), ", random weights 40%") == (
        "Gaussian W_V 50.0%, random weights 40%"
    )
