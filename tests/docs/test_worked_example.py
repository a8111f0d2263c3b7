"""The command that docs/design.md adds is added to a copy of the project, and works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import tiny_bert

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+) (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES = {path: text for kind, path, text in BLOCKS if kind != "diff"}
LINES = [(path, text) for kind, path, text in BLOCKS if kind == "diff"]


def _insert(text: str, patch: str) -> str:
    """Put the added lines after the lines that stand before them, which the text has once."""
    before = "".join(f"{line[1:]}\n" for line in patch.splitlines() if line[0] == " ")
    added = "".join(f"{line[1:]}\n" for line in patch.splitlines() if line[0] == "+")
    assert text.count(before) == 1, before
    return text.replace(before, before + added)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the worked example in it."""
    copy = tmp_path_factory.mktemp("project")
    leave = shutil.ignore_patterns("__pycache__")
    for folder in ("headscope", "docs", "configs", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=leave)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy / name)
    for path, text in FILES.items():
        assert not (copy / path).exists(), path
        (copy / path).write_text(text, encoding="utf-8")
    for path, patch in LINES:
        file = copy / path
        file.write_text(_insert(file.read_text(encoding="utf-8"), patch), encoding="utf-8")
    return copy


def _run(project: Path, *words: object, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_it_takes_eight_files_and_three_lines() -> None:
    assert len(FILES) <= 8
    added = [line for _, patch in LINES for line in patch.splitlines() if line.startswith("+")]
    assert len(added) <= 3


def test_the_command_measures_and_shows(project: Path, tmp_path: Path) -> None:
    model, out = tiny_bert(tmp_path / "model"), tmp_path / "out"
    assert "furthest" in _run(project, "headscope", "reach", model, "--limit", 20, "-o", out)
    result = json.loads((out / "reach.json").read_text(encoding="utf-8"))
    assert result["validation"]["passed"]
    assert {row["layer"] for row in result["reaches"]} == {0, 1}
    assert (
        (out / "reach.csv")
        .read_text(encoding="utf-8")
        .startswith("layer,head,stack,distance,even\n")
    )
    assert _run(project, "headscope", "diff", out, out) == ""
    other = tmp_path / "other"
    _run(project, "headscope", "reach", model, "--limit", 10, "-o", other)
    assert "reach" in _run(project, "headscope", "diff", out, other)


def test_it_is_a_section_of_the_report_and_of_config_files(project: Path, tmp_path: Path) -> None:
    config, out = tmp_path / "x.toml", tmp_path / "out"
    config.write_text("[reach]\nlimit = 5\n")
    assert "limit = 5" in _run(project, "headscope", "config", "show", "reach", "--config", config)
    model = tiny_bert(tmp_path / "model")
    words = ("report", model, "--only", "reach", "--config", config, "-o", out)
    _run(project, "headscope", *words)
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["settings"]["reach"] == {"limit": 5}
    assert report["reach"]["tokens"] > 0
    assert (out / "reach.csv").is_file()
    assert "Measure how far each head looks" in _run(project, "headscope", "reach", "--help")


def test_the_projects_own_checks_pass(project: Path) -> None:
    tests = ("tests/unit/test_registry.py", "tests/unit/measures/test_reach.py")
    tests += ("tests/unit/test_house.py", "tests/docs/test_parameters.py")
    assert "passed" in _run(project, "pytest", "-q", "-n", "0", *tests)
    _run(project, "ruff", "check", "headscope", "tests")
    _run(project, "ruff", "format", "--check", "headscope", "tests")


def test_what_is_forgotten_is_told_by_name(project: Path, tmp_path: Path) -> None:
    """Without one of its files, the registry test names the section and what it lacks."""
    broken = tmp_path / "broken"
    shutil.copytree(project, broken, ignore=shutil.ignore_patterns("__pycache__"))
    (broken / "headscope/verdicts/diff/facts/reach.py").unlink()
    said = _run(broken, "pytest", "-q", "-n", "0", "tests/unit/test_registry.py", code=1)
    assert "reach: there is no headscope.verdicts.diff.facts.reach" in said
