"""Into a log, where no bar can be drawn, a run writes now and then which step it is at."""

import re
import threading
import time

import pytest

from headscope.cli import progress

LINE = re.compile(
    r"headscope (?P<command>\w+): (step (?P<number>\d+) of (?P<count>\d+): )?(?P<what>[^%]+?)"
    r"(, (?P<share>\d+)%)?"
)
FIRST = {"loading PyTorch and transformers", "checking attention against the model"}


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(progress, "LOG_EVERY", 0.003)


@pytest.mark.parametrize("command", [("validate",), ("depth", "--length", 12, "--sequences", 2)])
def test_a_command_says_its_step(run, model, command):
    name, *words = command
    before = threading.active_count()
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
    assert threading.active_count() == before


def test_a_step_that_tells_nothing_is_logged_all_the_same(capsys):
    shown = progress.RunProgress("depth", quiet=False)
    with shown.shown(["model"]):
        assert shown.listener is not None
        shown.listener("model", 1, 4)
        time.sleep(0.1)
    said = [LINE.fullmatch(line) for line in capsys.readouterr().err.splitlines()]
    assert len(said) > 3
    assert {(m["number"], m["what"]) for m in said[1:]} == {("1", "measuring the model")}
