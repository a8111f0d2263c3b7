"""What the answer says of a loss."""

from types import SimpleNamespace

import pytest
from shrinking_models import measured_model

from headscope.shrinking.result import unsteady
from headscope.shrinking.view import answer, loses_nothing
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


@pytest.mark.parametrize(("paces", "moved"), [((4.0, 4.3), False), ((4.0, 4.5), True)])
def test_a_speed_is_not_confirmed_where_torch_moved(paces, moved):
    """By more than 10% between forms; torch alone, and what was not timed, do not count."""
    timed = [measured_model(ms_of_whole=Estimate(pace)) for pace in paces]
    torch_alone = measured_model(speed=Estimate(1.0), ms_of_whole=Estimate(9.0))
    models = (torch_alone, *timed, measured_model())
    assert bool(unsteady(models)) is moved
    result = SimpleNamespace(
        best=None, whole=torch_alone, models=models, metric="spearman", unsteady=unsteady(models)
    )
    assert ("(not confirmed)" in answer(result)) is moved
