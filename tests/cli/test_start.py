"""What the command line settles before a command runs: threads, modules, the garbage collector."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headscope.cli.collector import modules_are_loaded, rest_collector
from headscope.cli.threads import calm_threads

Run = Callable[..., Any]

ON_THREADS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


@pytest.fixture(autouse=True)
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that says nothing about waiting threads, whatever runs the tests."""
    for name in ON_THREADS:
        monkeypatch.setenv(name, "")  # so that it is put back, even where it was not set
        monkeypatch.delenv(name)


# --- threads ------------------------------------------------------------------------------------


def test_waiting_threads_are_told_to_sleep_soon() -> None:
    calm_threads()
    assert {name: os.environ.get(name) for name in ON_THREADS} == {
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "10000",
        "KMP_BLOCKTIME": None,
        "KMP_LIBRARY": None,
    }


@pytest.mark.parametrize("name", ON_THREADS)
def test_users_who_have_decided_are_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "active")
    calm_threads()
    assert {other for other in ON_THREADS if other in os.environ} == {name}


#: The command line first, then torch, whose runtime prints its settings when it is loaded.
_SHOW = """
import sys; sys.argv = ["headscope", "--version"]
from headscope.cli.app import main
try: main()
except SystemExit: assert "torch" not in sys.modules
import torch
"""


@pytest.mark.skipif(sys.platform != "linux", reason="torch brings GNU's runtime on Linux alone")
def test_the_runtime_of_torch_gets_the_setting(spawn: Run) -> None:
    ours = spawn("-c", _SHOW, env={"OMP_DISPLAY_ENV": "verbose"})
    assert ours.code == 0, ours.stderr
    assert "GOMP_SPINCOUNT = '10000'" in ours.stderr
    theirs = spawn("-c", _SHOW, env={"OMP_DISPLAY_ENV": "verbose", "OMP_WAIT_POLICY": "active"})
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in theirs.stderr
    assert "GOMP_SPINCOUNT = '10000'" not in theirs.stderr


# --- modules ------------------------------------------------------------------------------------


def test_a_command_without_a_folder_draws_no_figure(spawn: Run, model: Path) -> None:
    program = (
        "import sys; sys.argv = ['headscope', *sys.argv[1:]]\n"
        "from headscope.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "print(sorted({'matplotlib', 'pandas', 'tensorly', 'sklearn'} & set(sys.modules)))"
    )
    outcome = spawn("-c", program, "classify", model, "--limit", "5", "--format", "json")
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout.splitlines()[-1] == "[]"


# --- garbage collector --------------------------------------------------------------------------


def test_collector_rests_while_modules_load_and_after_the_command() -> None:
    usual = gc.get_threshold()
    try:
        with rest_collector():
            assert gc.get_threshold()[0] > 100 * usual[0]
            modules_are_loaded()
            assert gc.get_threshold() == usual
            assert gc.get_freeze_count() > 0
            new = [[] for _ in range(50)]
            assert len(gc.get_objects()) > len(new)  # what came after is looked at as usual
        assert len(gc.get_objects()) < 50  # little is left to look at when the process ends
        assert gc.get_threshold() == usual
    finally:
        gc.unfreeze()


def test_collector_is_put_back_when_a_command_fails() -> None:
    usual = gc.get_threshold()
    try:
        with pytest.raises(SystemExit), rest_collector():
            raise SystemExit(1)
        assert gc.get_threshold() == usual
    finally:
        gc.unfreeze()
