"""The memory that a run is said to need is near what it takes, and what does not fit is refused."""

import json
import re
import subprocess
import sys

import pytest

import headscope
from headscope.core import memory
from headscope.core.errors import InputError

MIB = 1 << 20
#: Runs commands, each in a process of its own that has little but the open model, and prints what
#: it held beside that, and what it was said to hold, MiB.
_SCRIPT = """
import json, os, sys
import torch
import headscope
from headscope.cli.process import bound_memory
def read(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))
bound_memory()
loaded = headscope.load(sys.argv[1])
weights = sum(p.nbytes for p in loaded.network.parameters())
for command, options in json.loads(sys.argv[2]).items():
    if (child := os.fork()) == 0:
        torch.set_num_threads(1)  # no thread of the parent takes part
        before = read("VmRSS")
        getattr(headscope, command)(loaded, **options)
        said = getattr(headscope, command).options(**options).needs(weights)[0] / 2**20
        print(command, read("VmHWM") - before, said, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def check(model, most=2.0, **runs):
    words = [sys.executable, "-c", _SCRIPT, str(model), json.dumps(runs)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [command for command, *_ in lines] == [*runs]
    for command, held, said in lines:
        ratio = float(said) / float(held)
        assert 1 / most < ratio < most, f"{command} held {held} MiB, {said} were said"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_said_is_within_a_factor_of_two():
    check("demo", classify={"limit": 64}, flow={"limit": 32})


@pytest.mark.large
def test_it_is_for_a_model_five_times_as_large(mpnet, all_of_it):
    check(mpnet, classify={"limit": 16}, rank={}, flow={"limit": 48})


def test_what_does_not_fit_is_refused_with_what_would(demo, monkeypatch):
    weights = sum(p.nbytes for p in demo.network.parameters())
    needed, without = headscope.flow.options().needs(weights)
    (less,) = without.values()
    monkeypatch.setattr(memory, "free_memory", lambda: int((needed + less) / 2))
    with pytest.raises(InputError, match=r"are free; it fits without control \(--no-control\)\."):
        headscope.flow(demo, limit=8)
    headscope.flow(demo, limit=8, control=False)
    monkeypatch.setattr(memory, "free_memory", lambda: 50 * MIB)
    with pytest.raises(InputError, match=r"needs about 0.3 GiB .* 0.0 GiB are free; free some"):
        headscope.classify(demo, limit=8)
    only = {"only": ["rank", "flow"]}
    needed, without = headscope.report.options(**only).needs(weights)
    (skipped, less), *_ = without.items()
    monkeypatch.setattr(memory, "free_memory", lambda: int((needed + less) / 2))
    with pytest.raises(InputError, match=f"it fits without {re.escape(skipped)}"):
        headscope.report(demo, **only)
    monkeypatch.setattr(memory, "free_memory", lambda: None)  # the system does not tell
    headscope.classify(demo, limit=8)


def test_a_container_has_less_than_its_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_CONTROL_GROUP", tmp_path)
    machine = memory.free_memory()
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory.free_memory() == pytest.approx(machine, rel=0.2)
    (tmp_path / "memory.max").write_text("4000\n")
    assert memory.free_memory() == 3000
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 200\n")
    assert memory.free_memory() == 3200
    assert machine is None or re.fullmatch(r"\d+", str(machine))
