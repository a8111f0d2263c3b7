"""Heads are chosen on no sentence that they are measured on."""

from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_bert

import headscope
from headscope.core.errors import InputError
from headscope.pruning.options import PruneOptions
from headscope.pruning.sources import open_sources


def pairs_file(path: Path, numbers: range) -> Path:
    rows = [f"first {i},second {i},{i % 5}.0" for i in numbers]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Return 100 test pairs and 300 training pairs, 40 of which are test pairs, far down."""
    test = pairs_file(tmp_path / "test.csv", range(1000, 1100))
    return test, pairs_file(tmp_path / "train.csv", range(760, 1040))


def opened(test: Path, train: Path, **options: Any) -> Any:
    options = {"limit": None, "calibration_limit": 1024, **options}
    return open_sources("similarity", test, train, seed=0, **options)


@pytest.mark.parametrize("options", [{}, {"tested_unseen": True}], ids=["curves", "max_drop"])
def test_shared_pairs_are_left_out_of_the_whole_file(files, options):
    """Counted against all of the file, however few examples heads are chosen on."""
    sources = opened(*files, calibration_limit=16, **options)
    sentences = {*sources.data.texts}
    assert len(sources.calibration) == 8
    assert sources.dropped == 40
    assert sentences.isdisjoint(sources.calibration.texts)
    (warning,) = sources.warnings
    assert "80 of the 200 different sentences" in warning
    assert "its 40 examples with such a sentence are left out" in warning
    assert "the other 240" in warning


def test_only_pairs_that_are_measured_count(files, tmp_path):
    """With a limit most of the test pairs are not; nothing is told where nothing is shared."""
    sources = opened(files[0], pairs_file(tmp_path / "other.csv", range(50)))
    assert (sources.dropped, sources.warnings, len(sources.calibration)) == (0, (), 50)
    sources = opened(*files, limit=10)
    assert sources.data.drawn == "10 of 100 examples, chosen at random (seed 0)"
    shared = sum(
        text in {*sources.data.first} for text in (f"first {i}" for i in range(1000, 1040))
    )
    assert 0 < sources.dropped == shared < 10


def test_a_limit_below_two_is_refused_for_windows_too():
    for limit in (0, 1, -3):
        with pytest.raises(InputError, match=f"The limit is {limit};"):
            open_sources("mlm", None, None, limit=limit, calibration_limit=4, seed=0)


def test_labels_are_said_where_the_choice_read_them(tmp_path):
    model = str(tiny_bert(tmp_path / "model", task_head="classification", num_labels=2))
    rows = (tmp_path / "data.tsv", tmp_path / "others.tsv")
    for path, word in zip(rows, ("cat", "dog"), strict=True):
        path.write_text("".join(f"{'a ' * i}{word}\t{i % 2}\n" for i in range(8)))
    data, calibration = rows
    few = {"fractions": [0.5], "repairs": ["none"], "validate": False}
    few |= {"data": data, "calibration": calibration}
    for method, reads_labels in (("ablation", True), ("importance-token", True), ("fisher", False)):
        result = headscope.prune(model, task="classification", methods=[method], **few)
        assert result.calibration.labels is reads_labels
    assert not PruneOptions(methods=["random"]).needs_calibration
