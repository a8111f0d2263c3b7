"""Ways to call the command line, and tiny models to call it on."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_models import tiny_bert, tiny_unknown

from headscope.cli.app import main


@dataclass(frozen=True)
class Outcome:
    """What a run of the command line left behind."""

    code: int
    stdout: str
    stderr: str


Run = Callable[..., Outcome]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT; read only."""
    return tiny_bert(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of a family whose attention headscope does not know; read only."""
    return tiny_unknown(tmp_path_factory.mktemp("models") / "tiny-unknown")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the command line in this process; what it does not catch fails the test."""

    def call(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["headscope", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        gc.unfreeze()  # the command line expects that the process ends with it
        code = stopped.value.code
        captured = capsys.readouterr()
        return Outcome(code if isinstance(code, int) else 0, captured.out, captured.err)

    return call


@pytest.fixture
def spawn() -> Run:
    """Run ``python ARGUMENTS`` in a new process, offline unless ``env`` says otherwise."""

    def call(*arguments: str | Path, env: dict[str, str] | None = None) -> Outcome:
        settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **(env or {})}
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **settings},
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return call
