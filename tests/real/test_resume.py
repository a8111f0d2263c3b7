"""A run that is killed and resumed ends in the same bytes as one that was left alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_models import tiny_bert

import headscope
from headscope.data.corpus import SAMPLE
from headscope.errors import ResumeError
from headscope.pipeline import resume
from headscope.show.files import state_name

#: Saves after every batch, and waits there so that the test can kill it at any of them.
_SLOW = """
import sys, time
from headscope.pipeline import resume
init, note = resume.RunState.__init__, resume.RunState.note
resume.RunState.__init__ = lambda self, path, identity: init(self, path, identity, every=0.0)
def slow(self, *args, **kwargs):
    note(self, *args, **kwargs)
    time.sleep(0.15)
resume.RunState.note = slow
sys.argv = ["headscope", *sys.argv[1:]]
from headscope.cli.app import main
main()
"""
_RUN = ["--control", "--limit", "160", "-o"]


def _start(model: Path, folder: Path, *more: str, slow: bool = False) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-c", _SLOW] if slow else [sys.executable, "-m", "headscope"]
    return subprocess.Popen(
        [*program, "classify", str(model), *_RUN, str(folder), *more],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _kill_after_saves(model: Path, folder: Path, saves: int) -> None:
    """Kill the run with SIGKILL once its state has been written ``saves`` times."""
    process = _start(model, folder, "--resume", slow=True)
    state, seen, last = folder / state_name("classify"), 0, None
    deadline = time.monotonic() + 120
    while seen < saves and process.poll() is None and time.monotonic() < deadline:
        stamp = state.stat().st_mtime_ns if state.exists() else None
        seen, last = seen + (stamp != last and stamp is not None), stamp
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert state.exists(), "the run ended before it could be killed"


def _content(folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = json.loads(files["classify.json"])
    result["provenance"].pop("created")
    return {**files, "classify.json": json.dumps(result).encode()}


def test_killed_twice_and_resumed_gives_the_same_bytes(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    model = tiny_bert(tmp_path / "model")
    assert _start(model, whole).wait() == 0
    _kill_after_saves(model, killed, 2)
    _kill_after_saves(model, killed, 2)
    assert _start(model, killed, "--resume").wait() == 0
    assert _content(killed) == _content(whole)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state saved by a run on 60 sentences of the sample; read only."""
    path = tmp_path_factory.mktemp("saved") / "state.safetensors"
    headscope.classify("demo", limit=60, state=path)
    assert path.exists()
    return path


@pytest.fixture
def state(saved: Path, tmp_path: Path) -> Path:
    """A copy of that state, for one test."""
    return Path(shutil.copy(saved, tmp_path))


def test_state_of_another_setting_is_refused(state: Path) -> None:
    with pytest.raises(ResumeError, match="sentences"):
        headscope.classify("demo", limit=61, state=state, resume=True)
    with pytest.raises(ResumeError, match="seed"):
        headscope.classify("demo", limit=60, seed=1, state=state, resume=True)


def test_state_of_another_corpus_is_refused(state: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.conllu"
    other.write_text(SAMPLE.read_text(encoding="utf-8").replace("ferry", "boat"), encoding="utf-8")
    with pytest.raises(ResumeError, match="corpus"):
        headscope.classify("demo", other, language="en", limit=60, state=state, resume=True)


def test_state_of_another_model_is_refused(state: Path, shared: Path) -> None:
    with pytest.raises(ResumeError, match="model"):
        headscope.classify(
            str(shared / "models" / "minilm-mlm"), limit=60, state=state, resume=True
        )


def test_damaged_state_is_refused(state: Path) -> None:
    state.write_bytes(state.read_bytes()[:-100])
    with pytest.raises(ResumeError, match="cannot be read"):
        headscope.classify("demo", limit=60, state=state, resume=True)


def test_state_is_saved_at_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saves: list[int] = []
    save = resume.RunState.save
    monkeypatch.setattr(resume.RunState, "save", lambda self: (saves.append(1), save(self))[1])
    headscope.classify("demo", limit=60, state=tmp_path / "state")
    assert len(saves) == 1  # a short run saves once, at the end of its pass
