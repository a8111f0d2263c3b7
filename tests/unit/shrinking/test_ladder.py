"""Which model the ladder takes, and what it times twice, where all measurements are planted."""

from types import SimpleNamespace

import numpy as np
import pytest
from shrinking_models import measured_model

from headscope.removal.times import TimedTogether, Times
from headscope.shrinking import ladder as module
from headscope.shrinking.ladder import Ladder
from headscope.shrinking.result import Target
from headscope.shrinking.serving import FORMS, TORCH, Form
from headscope.stats.estimate import Estimate

#: As of every planted form.
PLANTED = Times(Estimate(2.0, 1.8, 2.2), Estimate(0.5), Estimate(1.0))
INT8 = Form("openvino", "int8")
FLOAT32 = Form("openvino", "float32")


def ladder(*, target=None, max_drop=None, losses=None, distances=None, times=None):
    """Make a ladder on planted measurements, all forms but torch twice as fast as it.

    ``losses``: the most that each form loses; ``distances``: mean losses on calibration text.
    A served form is its name.
    """
    distances = {TORCH: 0.0, FLOAT32: 0.0, **(distances or {})}

    def measured(files, form, *_, **__):
        speed = 1.0 if form == TORCH else 2.0
        return measured_model(
            runtime=form.runtime,
            precision=form.precision,
            ms=Estimate(1.0 / speed),
            speed=Estimate(speed, 0.9 * speed, 1.1 * speed) if form != TORCH else Estimate(1.0),
            most_lost=(losses or {}).get(form, 0.0),
        )

    bench = SimpleNamespace(
        files_of_whole=SimpleNamespace(served=lambda form: form, release=lambda: None),
        full_model=SimpleNamespace(pad_id=7),
        task=SimpleNamespace(metric="spearman"),
        distance=lambda model, served: distances.get(served, 0.01),
        times=times or (lambda model, served: PLANTED),
        times_together=lambda served: TimedTogether((PLANTED,) * len(served), np.ones((9, 2))),
        measured=measured,
        elsewhere=lambda model, served: (),
    )
    return Ladder(
        bench,
        ("onnxruntime", "openvino"),
        target=target,
        max_drop=max_drop,
        minutes=0.0,
        tell=lambda *step: None,
    )


@pytest.mark.parametrize(("distances", "run"), [({}, FLOAT32), ({FLOAT32: 0.001}, None)])
def test_the_fastest_exact_file_gives_the_whole_models_outputs(distances, run):
    climbing = ladder(distances=distances)
    climbing.whole.measure(("onnxruntime", "openvino"))
    teacher = getattr(climbing._bench, "teacher", climbing._bench.full_model)
    assert (getattr(teacher, "run", None), teacher.pad_id) == (run, 7)


def test_a_form_far_from_the_whole_model_is_named_and_not_used():
    climbing = ladder(distances={INT8: 0.06})
    climbing.climb()
    assert len(climbing.models) == len(FORMS) - 1
    assert INT8 not in climbing.whole.forms
    (sentence,) = climbing.whole.refused
    assert sentence.startswith("openvino int8 ruins the model: its outputs are 0.06")
    assert climbing.best is None


@pytest.mark.parametrize(
    ("first", "rounds"),
    [
        (Estimate(6.3, 5.7, 6.8), [1, 2]),  # fast enough, but not surely
        (Estimate(6.3), [1, 2]),
        (Estimate(6.3, 6.1, 6.8), [1]),
        (Estimate(5.9, 5.7, 6.2), [1]),
    ],
)
def test_what_misses_by_its_interval_alone_is_timed_once_more(first, rounds):
    timed = []

    def times(model, served, longer=1):
        timed.append(longer)
        return Times(first, Estimate(1.0), Estimate(6.0))

    climbing = ladder(target=Target("speed", 6.0), times=times)
    climbing._measured(SimpleNamespace(model=None, served=lambda form: form), INT8, None)
    assert timed == rounds


def test_the_bad_end_of_the_interval_counts_and_what_is_unknown_reaches_nothing():
    model = measured_model()
    unknown = measured_model(speed=Estimate(9.0), ms=Estimate(0.1), most_lost=None)
    for name, reached, missed in (("speed", 2.9, 2.95), ("ms", 1.1, 1.05), ("mb", 20, 19)):
        assert model.reaches(Target(name, reached))
        assert not model.reaches(Target(name, missed))
    assert model.reaches(None)
    assert model.keeps(0.4)
    assert not model.keeps(0.39)
    for target in (Target("speed", 2.0), Target("ms", 5.0)):
        assert not unknown.reaches(target)
    assert not unknown.keeps(50.0)


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ({"float32": 0.0, "bfloat16": 0.2, "int8": 0.4}, "openvino int8"),
        ({"float32": 0.0, "bfloat16": 0.2, "int8": 0.6}, "openvino bfloat16"),
        # What loses more by calibration text is not tested after a refusal, though it might pass.
        ({"float32": 0.0, "bfloat16": 0.6, "int8": 0.4}, "openvino float32"),
        ({"float32": 0.6, "bfloat16": 0.0, "int8": 0.0}, "torch float32"),
    ],
)
def test_forms_are_tested_from_the_least_lossy_to_the_first_refusal(losses, chosen, monkeypatch):
    monkeypatch.setattr(module, "_smaller_shapes", lambda model: [])
    fastest_first = [Form("openvino", name) for name in ("int8", "bfloat16", "float32")]
    climbing = ladder(
        max_drop=0.5, losses={Form("openvino", name): lost for name, lost in losses.items()}
    )
    climbing.whole.measure(("openvino",))
    climbing.whole.forms = fastest_first
    climbing.whole.distances = dict(zip(fastest_first, (0.03, 0.001, 0.0), strict=True))
    climbing.whole.distances[TORCH] = 0.0
    climbing._keep_to_the_drop()
    assert climbing.reached
    assert climbing.best.form == chosen
    assert climbing.models[climbing.chosen] is climbing.best
