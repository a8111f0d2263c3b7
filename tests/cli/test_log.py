"""Into a log, where no bar can be drawn, a run writes which step it is at, and the time left."""

import re
import subprocess
import sys
import threading
import time

import pytest

from headscope.cli import progress

LINE = re.compile(
    r"headscope (?P<command>\w+): (step (?P<number>\d+) of (?P<count>\d+): )?(?P<what>[^%]+?)"
    r"(, (?P<share>\d+)%)? \(\d+:\d\d so far(, about \d+ (s|min) left)?\)"
)
FIRST = {"loading PyTorch and transformers", "checking attention against the model"}


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(progress, "LOG_EVERY", 0.003)


@pytest.mark.parametrize("command", [("validate",), ("depth", "--length", 12, "--sequences", 2)])
def test_a_command_says_its_step(run, model, command):
    name, *words = command
    before = set(threading.enumerate())
    done = run(name, model, *words)
    assert done.code == 0, done.stderr
    said = [LINE.fullmatch(line) for line in done.stderr.splitlines()]
    assert said
    assert all(said), done.stderr
    assert {match["command"] for match in said} == {name}
    first = [match["what"] for match in said if match["number"] is None]
    assert f"loading {model.name}" in first
    assert {*first} <= {f"loading {model.name}", *FIRST}
    steps = [(int(match["number"]), int(match["count"])) for match in said if match["number"]]
    numbers = [number for number, _ in steps]
    assert numbers == sorted(numbers)
    assert all(number <= count for number, count in steps)
    assert all(0 <= int(match["share"] or 0) <= 100 for match in said)
    assert numbers[:1] == ([] if name == "validate" else [1])  # one of the two tells no steps
    assert run(name, model, *words, "--quiet").stderr == ""
    assert run(name, "/no/such/model").code == 1
    assert set(threading.enumerate()) <= before


def test_a_step_that_tells_nothing_is_logged_all_the_same(capsys):
    shown = progress.RunProgress("depth", quiet=False)
    with shown.shown({"model": 1.0}):
        assert shown.listener is not None
        shown.listener("model", 1, 4)
        time.sleep(0.1)
        shown.listener("model", 2, 4)
        time.sleep(0.1)
    said = [LINE.fullmatch(line) for line in capsys.readouterr().err.splitlines()]
    steps = [(m["number"], m["what"], m["share"]) for m in said if m["number"]]
    what = "measuring the model"
    assert steps == [("1", what, "25"), ("1", what, "50")]  # once each, however long it takes


def test_a_log_says_once_more_what_takes_very_long(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SAY_AGAIN_AFTER", 0.02)
    shown = progress.RunProgress("depth", quiet=False)
    with shown.shown({"model": 1.0}):
        time.sleep(0.2)
    assert len(capsys.readouterr().err.splitlines()) > 2


def test_nothing_stands_between_the_answers_in_their_own_pipe():
    """As in ``headscope ... 2>&1 | less``; into a pipe of its own progress is written."""
    code = (
        "import time\n"
        "from headscope.cli import progress\n"
        "progress.LOG_EVERY = 0.01\n"
        "with progress.RunProgress('depth', quiet=False).shown({'model': 1.0}):\n"
        "    time.sleep(0.2)\n"
        "print('the answer')\n"
    )
    shared = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "check": True}
    merged = subprocess.run([sys.executable, "-c", code], **shared)
    assert merged.stdout == "the answer\n"
    apart = subprocess.run([sys.executable, "-c", code], **{**shared, "stderr": subprocess.PIPE})
    assert apart.stdout == "the answer\n"
    assert apart.stderr.startswith(
        "headscope depth: loading PyTorch and transformers (0:00 so far)"
    )
