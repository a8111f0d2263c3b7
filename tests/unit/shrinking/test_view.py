"""What the answer says of a loss."""

import dataclasses
from types import SimpleNamespace

import pytest
from shrinking_models import measured_model

from headscope.shrinking.result import ShrinkResult, unsteady
from headscope.shrinking.view import _disturbance, answer, loses_nothing
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
    assert ("(not confirmed)" in answer(result_with(models))) is moved


@pytest.mark.parametrize(
    ("competitors", "cores", "taken"),
    [(0.2, 2, False), (0.3, 2, True), (1.9, 4, False), (2.3, 4, True), (None, 2, False)],
)
def test_a_speed_is_not_confirmed_where_another_program_ran_all_the_time(competitors, cores, taken):
    """Of a machine with more cores than the two threads of the run the others may be busy."""
    timed = [measured_model(ms_of_whole=Estimate(4.0), competitors=competitors)]
    torch_alone = measured_model(speed=Estimate(1.0), ms_of_whole=Estimate(4.0))
    result = result_with((torch_alone, *timed), cores=cores)
    assert not result.unsteady
    assert ("(not confirmed)" in answer(result)) is taken
    assert ("none is confirmed" in _disturbance(result)) is taken
    whole_chosen = dataclasses.replace(result, chosen=0)  # as fast as itself, whatever runs
    assert "(not confirmed)" not in answer(whole_chosen)


def result_with(models, cores=2):
    """A run with two threads."""
    fields = {field.name: None for field in dataclasses.fields(ShrinkResult)}
    return ShrinkResult(
        **{**fields, "models": models, "metric": "spearman", "cores": cores, "threads": 2}
    )
