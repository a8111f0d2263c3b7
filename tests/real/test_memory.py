"""The memory that a run is said to need is near what it takes, and what does not fit is refused."""

import re
import subprocess
import sys

import pytest

import headscope
from headscope.core import memory
from headscope.core.errors import InputError

MIB = 1 << 20
#: Runs a command and prints what it held beside the open model, and what it was said to hold, MiB.
_SCRIPT = """
import sys
import headscope
from headscope.cli.process import bound_memory
def read(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))
bound_memory()
command, model, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
loaded = headscope.load(model)
weights = sum(p.nbytes for p in loaded.network.parameters())
before = read("VmRSS")
getattr(headscope, command)(loaded, **options)
said = getattr(headscope, command).options(**options).needs(weights)[0] / 2**20
print(read("VmHWM") - before, said)
"""


def check(command, model, options, most=2.0):
    words = [sys.executable, "-c", _SCRIPT, command, str(model), repr(options)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    held, said = map(float, done.stdout.split())
    assert 1 / most < said / held < most, f"{command} held {held:.0f} MiB, {said:.0f} were said"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("command", "options"),
    [("classify", {"limit": 64}), ("flow", {"limit": 32})],
)
def test_what_is_said_is_within_a_factor_of_two(command, options):
    check(command, "demo", options)


@pytest.mark.large
@pytest.mark.parametrize(
    ("command", "options"),
    [("classify", {"limit": 16}), ("rank", {}), ("flow", {"limit": 48})],
)
def test_it_is_for_a_model_five_times_as_large(mpnet, all_of_it, command, options):
    check(command, mpnet, options)


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
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    machine = memory.free_memory()
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory.free_memory() == pytest.approx(machine, rel=0.2)
    (tmp_path / "memory.max").write_text("4000\n")
    assert memory.free_memory() == 3000
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 200\n")
    assert memory.free_memory() == 3200
    assert machine is None or re.fullmatch(r"\d+", str(machine))
