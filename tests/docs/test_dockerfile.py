"""The Dockerfile, read and followed without docker: its COPY and RUN lines, on a stub of pip."""

import itertools
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Instructions with their lines joined, comments left out.
TEXT = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M))
LINES = [line.split(maxsplit=1) for line in TEXT.splitlines() if line]
IGNORED = re.findall(r"^[^#\n].*", (ROOT / ".dockerignore").read_text(), re.M)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def sent(path):
    """Whether docker sends a path: the last line decides that matches it or a folder above it."""
    decided = True
    for line in IGNORED:
        pattern = re.compile(
            re.escape(line.removeprefix("!")).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        )
        if any(pattern.fullmatch(str(parent)) for parent in (Path(path), *Path(path).parents)):
            decided = line.startswith("!")
    return decided


def test_the_build_sees_only_what_it_copies():
    named = (PROJECT["readme"], *PROJECT["license-files"], "headscope/configs/ci.toml")
    assert all(map(sent, named))
    not_sent = (
        ".git/config",
        "tests/conftest.py",
        "docs/index.md",
        "headscope/__pycache__/x.pyc",
    )
    assert not any(map(sent, not_sent))


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Copy what COPY copies, run what RUN runs with a stub of each program; return the calls."""
    folder = tmp_path_factory.mktemp("build")
    programs = folder / "bin"
    source = folder / "src"
    programs.mkdir()
    source.mkdir()
    for name in ("pip", "useradd"):
        (programs / name).write_text(
            f'#!/bin/sh\nprintf "%s\\n" {name} "$@" >> "{folder}/calls"; echo >> "{folder}/calls"\n'
        )
        (programs / name).chmod(0o755)
    arguments = {}
    calls = []
    for instruction, text in LINES:
        if instruction == "ARG":
            arguments |= dict([text.split("=", 1)])
        elif instruction == "COPY":
            *names, target = text.split()
            for name in names:
                assert sent(name.rstrip("/")), f"{name} is in .dockerignore"
                if (ROOT / name).is_dir():
                    ignore = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(ROOT / name, source / target, ignore=ignore, dirs_exist_ok=True)
                else:
                    (source / target).mkdir(exist_ok=True)
                    shutil.copy(ROOT / name, source / target / Path(name).name)
        elif instruction == "RUN":
            environment = {"PATH": f"{programs}:/usr/bin:/bin", **arguments}
            subprocess.run(["/bin/sh", "-c", text], cwd=source, env=environment, check=True)
            said = (folder / "calls").read_text()
            calls = [call.split("\n") for call in said.split("\n\n") if call]
            for before, word in itertools.pairwise(itertools.chain(*calls)):
                if before == "-c":  # every file that a call names is there by then
                    assert (source / word).is_file(), word
                elif word.startswith("."):
                    assert (source / word.partition("[")[0] / "pyproject.toml").is_file(), word
    return calls


def test_it_installs_with_the_pinned_versions(followed):
    setuptools, torch, package, user = followed
    for call in (setuptools, torch, package):
        assert call[:2] == ["pip", "install"]
        assert call[call.index("-c") + 1] == "configs/constraints.txt"
    assert torch[-1] == "torch"
    assert "--no-deps" in torch
    assert "https://download.pytorch.org/whl/cpu" in torch
    extras = re.fullmatch(r"\.\[([\w,-]+)\]", package[-1])
    assert extras
    assert set(extras[1].split(",")) <= PROJECT["optional-dependencies"].keys()
    assert setuptools[-1] == "setuptools"
    assert "--no-build-isolation" in package, "else pip builds with a setuptools that is not pinned"
    assert user[0] == "useradd"


def test_caches_lie_where_anybody_may_write():
    text = " ".join(value for name, value in LINES if name == "ENV")
    caches = dict(re.findall(r"(MPLCONFIGDIR|HF_HOME)=(\S+)", text))
    assert caches == {"MPLCONFIGDIR": "/tmp/matplotlib", "HF_HOME": "/tmp/huggingface"}


def test_it_runs_the_command_as_nobody_special():
    instructions = dict(LINES)
    assert instructions["FROM"] == "python:3.11-slim"
    assert PROJECT["requires-python"] == ">=3.11"
    assert json.loads(instructions["ENTRYPOINT"]) == list(PROJECT["scripts"])
    assert [name for name, _ in LINES].index("USER") > max(
        i for i, (name, _) in enumerate(LINES) if name == "RUN"
    )
    (user,) = shlex.split(instructions["USER"])
    assert user not in ("root", "0")
