"""Files drawn by another process are the same; what it cannot draw is drawn here."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import headscope
from headscope.reports import ahead
from headscope.show.view import view_of


def test_another_process_draws_the_same_files(demo):
    result = headscope.symmetric(demo, sentences=2, alone=False)
    here = dict(view_of("symmetric").files(result))
    with ahead.drawing_ahead():
        ahead.begin("symmetric", result)
        drawer = ahead._drawer.get()
        assert drawer is None or dict(drawer.drawn("symmetric") or {}) == here
        assert ahead.files_of("symmetric", result) == here  # asked once more: drawn here


def test_what_the_other_process_cannot_draw_is_drawn_here(demo, monkeypatch):
    monkeypatch.setattr(ahead, "_PROGRAM", "raise SystemExit(1)")
    result = headscope.symmetric(demo, sentences=2, alone=False)
    with ahead.drawing_ahead():
        ahead.begin("symmetric", result)
        assert dict(ahead.files_of("symmetric", result)) == dict(view_of("symmetric").files(result))


@pytest.mark.skipif(sys.platform != "linux", reason="whether it runs is read from /proc")
def test_the_other_process_ends_with_a_run_that_is_killed():
    program = (
        "import os, signal\nfrom headscope.reports import ahead\n"
        "with ahead.drawing_ahead():\n"
        "    print(ahead._drawer.get()._child.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    state = Path(f"/proc/{int(done.stdout)}/stat")
    end = time.monotonic() + 30
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end, "the other process is still there"
        time.sleep(0.1)
