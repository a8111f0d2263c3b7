"""Which forms the ladder tries, what it times twice, and how much text it reads."""

from types import SimpleNamespace

import pytest

from headscope.removal.times import Times
from headscope.shrinking import text
from headscope.shrinking.ladder import Ladder
from headscope.shrinking.result import MeasuredModel, Target
from headscope.shrinking.serving import FORMS, MIXED, TORCH, Form
from headscope.stats.estimate import Estimate

INT8 = Form("openvino", "int8")
FLOAT32 = Form("openvino", "float32")


def measured(form, speed):
    return MeasuredModel(
        (0, 1),
        8,
        100,
        form.runtime,
        form.precision,
        1.0,
        Estimate(1.0 / speed),
        Estimate(speed, 0.9 * speed, 1.1 * speed),
        Estimate(80.0),
        Estimate(0.0),
        0.0,
        {},
    )


def ladder(speeds, *, target, lost=None, times=None):
    """Make a ladder whose forms are as fast as ``speeds`` says; a served form is its name."""
    lost = {TORCH: 0.0, FLOAT32: 0.0, **(lost or {})}
    files = SimpleNamespace(served=lambda form: form, release=lambda: None)
    bench = SimpleNamespace(
        files_of_whole=files,
        full_model=SimpleNamespace(pad_id=7),
        distance=lambda model, served: lost.get(served, 0.01),
        times=times or (lambda model, served: None),
        measured=lambda files, form, times, *_, **__: measured(form, speeds.get(form, 2.0)),
        elsewhere=lambda model, served: (),
    )
    return Ladder(
        bench,
        ("onnxruntime", "openvino"),
        target=target,
        max_drop=None,
        minutes=0.0,
        save=None,
        tell=lambda *step: None,
    )


@pytest.mark.parametrize(
    ("target", "int8_speed", "int8_lost", "tried"),
    [
        (Target("speed", 6.0), 4.0, 0.01, False),
        (Target("speed", 6.0), 7.0, 0.01, True),
        (Target("speed", 6.0), 4.0, 0.2, True),  # int8 ruins the model: with fewer maps perhaps not
        (Target("speed", 6.0), 1.5, 0.01, True),  # a processor on which 8 bits are slow
        (None, 4.0, 0.01, True),
    ],
)
def test_int8_mixed_is_tried_unless_int8_shows_that_it_misses(target, int8_speed, int8_lost, tried):
    climbing = ladder({INT8: int8_speed, TORCH: 1.0}, target=target, lost={INT8: int8_lost})
    climbing._whole_model()
    assert (MIXED in climbing._forms) is tried
    assert (str(MIXED) in str(climbing.refused)) is not tried
    assert len(climbing.models) == len(FORMS) - 1 - (not tried) - (int8_lost > 0.05)


@pytest.mark.parametrize(("lost", "run"), [({}, FLOAT32), ({FLOAT32: 0.001}, None)])
def test_the_fastest_exact_file_gives_the_whole_models_outputs(lost, run):
    climbing = ladder({TORCH: 1.0}, target=Target("speed", 9.0), lost=lost)
    climbing._whole_model()
    teacher = climbing.bench.teacher if run else climbing.bench.full_model
    assert (getattr(teacher, "run", None), teacher.pad_id) == (run, 7)


@pytest.mark.parametrize(
    ("first", "timed"),
    [
        (Estimate(6.3, 5.7, 6.8), [1, 2]),  # fast enough, but not surely
        (Estimate(6.3), [1, 2]),
        (Estimate(6.3, 6.1, 6.8), [1]),
        (Estimate(5.9, 5.7, 6.2), [1]),
    ],
)
def test_what_misses_by_its_interval_alone_is_timed_once_more(first, timed):
    asked = []

    def times(model, served, longer=1):
        asked.append(longer)
        return Times(first, Estimate(1.0), Estimate(6.0))

    climbing = ladder({}, target=Target("speed", 6.0), times=times)
    climbing._measured(SimpleNamespace(model=None, served=lambda form: form), INT8, None)
    assert asked == timed


def test_more_text_than_training_gets_through_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "MOST_TRAINING", 50)
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"sentence {i}\n" for i in range(80)))
    options = {"limit": 10, "seed": 0, "trains": True, "distils": False}
    read = text.read_all("fidelity", None, [lines], None, **options)
    assert len(set(read.training.texts)) == 50
    assert read.training.texts != tuple(f"sentence {i}" for i in range(50))
    assert "Only 50 of the 80 texts of" in read.warnings[0]


def test_neighbours_are_asked_by_random_texts_of_all_of_the_file(tmp_path, monkeypatch):
    """A file that is sorted would else be asked by its first kind of text alone."""
    monkeypatch.setattr(text, "MOST", 30)
    names = ("data", "training", "other")
    for name in names:
        lines = "".join(f"the cat sat {name} {i}\n" for i in range(90))
        (tmp_path / f"{name}.txt").write_text(lines)
    data, training, other = (tmp_path / f"{name}.txt" for name in names)
    options = {"limit": None, "seed": 0, "trains": False, "distils": False}
    read = text.read_all("fidelity", data, [training], other, **options)
    asked = []
    monkeypatch.setattr(text, "tokenised", lambda model, texts: (asked.extend(texts), ()))
    model = SimpleNamespace(vocab_size=9, task_head="classification")
    read.other_rows(model)
    numbers = [int(line.split()[-1]) for line in asked]
    assert len(set(numbers)) == 30
    assert max(numbers) > 60
    assert numbers != sorted(numbers)


def test_a_folder_that_is_only_checked_needs_no_text_to_train_on():
    options = {"limit": 10, "seed": 0, "trains": False, "distils": False, "calibrates": False}
    read = text.read_all("fidelity", None, [], None, **options)
    assert (len(read.training), read.names, read.warnings) == (0, (), [])
    assert read.rows(None) == []
