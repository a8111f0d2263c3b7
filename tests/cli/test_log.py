"""Into a log, where no bar can be drawn, a run writes now and then which step it is at."""

import re
import threading
import time

import pytest

from headscope.cli import output

LINE = re.compile(
    r"headscope (?P<command>\w+): (step (?P<number>\d+) of (?P<count>\d+): )?(?P<what>[^%]+?)"
    r"(, (?P<share>\d+)%)?"
)
FIRST = {"loading PyTorch and transformers", "checking attention against the model"}
COMMANDS = {
    "validate": (),
    "classify": ("--limit", 16),
    "depth": ("--length", 12, "--sequences", 2),
}


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(output, "LOG_EVERY", 0.003)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_its_step(run, model, command):
    done = run(command, model, *COMMANDS[command])
    assert done.code == 0, done.stderr
    said = [LINE.fullmatch(line) for line in done.stderr.splitlines()]
    assert said
    assert all(said), done.stderr
    assert {match["command"] for match in said} == {command}
    first = [match["what"] for match in said if match["number"] is None]
    assert f"loading {model.name}" in first
    assert {*first} <= {f"loading {model.name}", *FIRST}
    at = [(int(match["number"]), int(match["count"])) for match in said if match["number"]]
    assert all(number <= count for number, count in at)
    assert [number for number, _ in at] == sorted(number for number, _ in at)
    assert all(0 <= int(match["share"] or 0) <= 100 for match in said)
    if command == "validate":  # it tells no steps
        assert not at
    else:
        assert at[0][0] == 1, done.stderr


def test_quiet_writes_nothing_and_no_writer_is_left(run, model):
    before = threading.active_count()
    assert run("classify", model, "--limit", 16, "--quiet").stderr == ""
    assert run("rank", "/no/such/model").code == 1
    assert threading.active_count() == before


def test_a_step_that_tells_nothing_is_logged_all_the_same(capsys):
    with output.shown_progress("depth", False, ["model"]) as tell:
        tell("model", 1, 4)
        time.sleep(0.1)
    said = [LINE.fullmatch(line) for line in capsys.readouterr().err.splitlines()]
    assert len(said) > 3
    assert {(m["number"], m["what"]) for m in said[1:]} == {("1", "measuring the model")}
