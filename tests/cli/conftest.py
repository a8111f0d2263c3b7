"""A way to call the command line in this process, and tiny models to call it on."""

import contextlib
import gc
import io
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from outcomes import Command, Ended
from tiny_models import tiny_bert, tiny_unknown

from headscope.cli.app import main

#: Every section of a report, as small as it can be.
QUICK = """
[classify]
ablate_limit = 4
limit = 16
control = false
[rank]
limit = 4
control_seeds = 2
[spectrum]
length = 12
sequences = 2
[depth]
length = 12
sequences = 2
control = false
[flow]
limit = 16
control = false
[transfer]
sizes = [16]
variants = ["layernorm"]
random = []
seeds = 1
spread_seeds = 1
steps = 2
train_limit = 100
test_limit = 40
[linear]
sentences = 3
control = false
[symmetric]
sentences = 3
[prune]
fraction = [0.5]
repair = ["none"]
limit = 8
calibration_limit = 8
"""


@pytest.fixture(scope="module", autouse=True)
def _figures_are_made_but_not_painted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Three quarters of a report's time is painting; test_contract.py looks at what is painted.

    A module that looks at figures itself sets PAINTS.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "PAINTS", False):
            _paint_nothing(patch)
        yield


def _paint_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Figure, "get_layout_engine", lambda self: None)
    patch.setattr(FigureCanvasAgg, "print_png", lambda _, file, **k: file.write(b"\x89PNG"))
    patch.setattr(FigureCanvasSVG, "print_svg", lambda _, file, **k: file.write(b"<?xml"))


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a single test make figures that are not painted."""
    _paint_nothing(monkeypatch)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT; read only."""
    return tiny_bert(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of a family whose attention headscope does not know; read only."""
    return tiny_unknown(tmp_path_factory.mktemp("models") / "tiny-unknown")


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    """A config file with which a report of a tiny model takes seconds."""
    path = tmp_path / "quick.toml"
    path.write_text(QUICK)
    return path


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny BERT, to be changed."""
    return Path(shutil.copytree(model, tmp_path / "copy"))


@pytest.fixture(scope="session")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-five sentences in the words of the tiny models: ten windows of 32 tokens, or more."""
    path = tmp_path_factory.mktemp("lines") / "lines.txt"
    path.write_text("the big dog saw a red cat on the mat and she ran to the house\n" * 25)
    return path


@pytest.fixture(scope="session")
def run() -> Command:
    """Call the command line in this process; what it does not catch fails the test."""

    def call(*arguments: object) -> Ended:
        out = io.StringIO()
        err = io.StringIO()
        before = sys.argv
        code = 0
        sys.argv = ["headscope", *map(str, arguments)]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        finally:
            sys.argv = before
            gc.unfreeze()
        return Ended(code, out.getvalue(), err.getvalue())

    return call
