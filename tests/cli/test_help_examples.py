"""The examples at the end of every command's help work as they are printed: copied to a shell."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tiny_models import tiny_bert

import headscope
from headscope.cli.app import COMMANDS, app
from headscope.results import to_json

ROOT = Path(__file__).parents[2]

Run = Callable[..., Any]


def printed(name: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of a command's help, in a terminal of 80 columns, that begin with the program."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    text = re.sub(r"\x1b\[[\d;]*m", "", run(name, "--help").stdout)
    _, _, examples = text.rpartition("╯\n")
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    assert lines[0].startswith("Example"), f"{name}: no examples at the end of its help"
    lines = [line.removeprefix("Example: ") for line in lines if line != "Examples:"]
    assert all(line.startswith("headscope ") for line in lines), f"a line was broken: {lines}"
    return lines


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_is_one_line_that_is_understood(
    name: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # where the config files are that examples name
    group = typer.main.get_command(app)
    for line in printed(name, run, monkeypatch):
        bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", line.replace("reports/*", ""))
        assert not set(bare) & set("<>|&;()$`*?[]#~!{}"), f"a shell reads more than words: {line}"
        _, command, *rest = shlex.split(line)
        assert command == name
        context = typer.Context(group)
        group.commands[command].make_context(command, rest, parent=context)  # type: ignore[attr-defined]


def test_the_examples_of_diff_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a shell, on what they name; nothing of a line ends up in a file."""
    lines = printed("diff", run, monkeypatch)
    results = tmp_path / "results"
    results.mkdir()
    tiny = headscope.load(str(tiny_bert(tmp_path / "model")))
    classified = headscope.classify(tiny, limit=8, validate=False)
    pruned = headscope.prune(tiny, heads="L0H0", ablation=False, roles=False, limit=8)
    for name, result in (("classify", classified), ("prune", pruned)):
        (results / f"{name}.json").write_text(to_json(result), encoding="utf-8")
    work = tmp_path / "work"
    work.mkdir()
    for name in ("old", "new", "out", "reports/demo"):
        shutil.copytree(results, work / name)
    shutil.copy(results / "classify.json", work / "reports" / "demo" / "report.json")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "headscope"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headscope "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    git = "git init -q -b main . && git add . && git commit -qm one"
    before = sorted(work.rglob("*"))
    for line in [git, *lines]:
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=work,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
    assert [p for p in sorted(work.rglob("*")) if ".git" not in p.parts] == before
