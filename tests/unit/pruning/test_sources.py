"""Heads are chosen on no sentence that they are measured on."""

from pathlib import Path
from typing import Any

import pytest

from headscope.pruning.run import open_sources


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
    found = opened(*files, calibration_limit=16, **options)
    theirs = {*found.data.texts}
    assert len(found.calibration) == 8
    assert found.dropped == 40
    assert theirs.isdisjoint(found.calibration.texts)
    (told,) = found.warnings
    assert "80 of the 200 different sentences" in told
    assert "its 40 examples with such a sentence are left out" in told
    assert "the other 240" in told


def test_only_pairs_that_are_measured_count(files, tmp_path):
    """With a limit most of the test pairs are not; nothing is told where nothing is shared."""
    found = opened(files[0], pairs_file(tmp_path / "other.csv", range(50)))
    assert (found.dropped, found.warnings, len(found.calibration)) == (0, (), 50)
    found = opened(*files, limit=10)
    assert found.data.drawn == "10 of 100 examples, chosen at random (seed 0)"
    shared = sum(text in {*found.data.first} for text in (f"first {i}" for i in range(1000, 1040)))
    assert 0 < found.dropped == shared < 10


def test_one_file_for_both_is_told(files):
    test, _ = files
    found = opened(test, test)
    assert (found.dropped, len(found.calibration)) == (0, 100)
    assert "heads are chosen on what they are measured on" in found.warnings[0]
    searched = opened(test, test, tested_unseen=True)
    assert "leave out every example with a sentence that heads were chosen on" in str(
        searched.warnings
    )
