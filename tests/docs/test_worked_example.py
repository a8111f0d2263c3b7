"""The command that docs/design.md adds is added to a copy of the project, and works."""

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
VIEW = "headscope/analyses/reach/view.py"
#: One process that has the copy's modules imported forks for each module to run as a program.
DRIVER = """
import json, os, runpy, sys
import headscope.cli.command, headscope.analyses.classify.run, headscope.reports.files
import matplotlib.figure, pandas, pytest, transformers.models.bert.modeling_bert
for i, (module, *words) in enumerate(json.loads(sys.argv[1])):
    sys.stdout.flush()
    if os.fork() == 0:
        os.dup2(os.open(f"said-{i}", os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(1, 2)
        sys.argv = [module, *words]
        code = 0
        try:
            if module == "os":
                os.remove(words[0])
            else:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            code = int(stop.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # to take an interpreter apart takes longer than most steps
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
EXAMPLE = ROOT / "docs" / "example"  # the modules, laid out as in the project
FILES = {path: text for kind, path, text in BLOCKS if kind != "diff"} | {
    str(path.relative_to(EXAMPLE)): path.read_text(encoding="utf-8")
    for path in sorted(EXAMPLE.rglob("*.py"))
}
LINES = [(path, text) for kind, path, text in BLOCKS if kind == "diff"]


def _insert(text, patch):
    """Put the added lines after the lines that stand before them, which the text has once."""
    before = "".join(f"{line[1:]}\n" for line in patch.splitlines() if line[0] == " ")
    added = "".join(f"{line[1:]}\n" for line in patch.splitlines() if line[0] == "+")
    assert text.count(before) == 1, before
    return text.replace(before, before + added)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with the worked example in it."""
    copy = tmp_path_factory.mktemp("project")
    leave = shutil.ignore_patterns("*.pyc.*")  # compiled files that are just being written
    for folder in ("headscope", "docs", "configs", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=leave)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy / name)
    for path, text in FILES.items():
        assert not (copy / path).exists(), path
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_text(text, encoding="utf-8")
    for path, patch in LINES:
        file = copy / path
        file.write_text(_insert(file.read_text(encoding="utf-8"), patch), encoding="utf-8")
    return copy


def test_it_takes_a_folder_of_three_files_and_a_row():
    room = [path for path in FILES if path.startswith("headscope/")]
    assert {Path(path).parent.name for path in room} == {"reach"}
    assert len(room) <= 3
    assert [path for path, _ in LINES] == ["headscope/commands.py"]
    added = [line for _, patch in LINES for line in patch.splitlines() if line.startswith("+")]
    assert len(added) == 1


def test_the_command_of_the_page_works(project, tmp_path):
    """It measures and shows, is a section of the report and of config files, and is checked."""
    model = tiny_bert(tmp_path / "model")
    out = tmp_path / "out"
    config = tmp_path / "x.toml"
    report = tmp_path / "report"
    config.write_text("[reach]\nlimit = 5\n")
    # What the process has imported is not rewritten; the tests' own assertions are.
    sources = [path for path in FILES if path.endswith(".py")]
    quiet = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    registry = ("pytest", "-q", "-n", "0", *quiet, "tests/unit/test_registry.py")
    tests = ("tests/unit/analyses/test_reach.py", "tests/docs/test_pages.py")
    tests += ("-k", "reach")
    steps = {
        "reach": ("headscope", "reach", model, "--limit", 20, "-o", out),
        "same": ("headscope", "diff", out, out),
        "report": ("headscope", "report", model, "--only", "reach", "--config", config),
        "differ": ("headscope", "diff", out, report),
        "config": ("headscope", "config", "show", "reach", "--config", config),
        "help": ("headscope", "reach", "--help"),
        "tests": (*registry, *tests),
        "check": ("ruff", "check", *sources),
        "format": ("ruff", "format", "--check", *sources),
        "forget": ("os", VIEW),
        "incomplete": (*registry, "-k", "reach"),
    }
    steps["report"] = (*steps["report"], "-o", report)
    said = _run(project, steps)

    assert "if spread evenly" in said["reach"]
    result = json.loads((out / "reach.json").read_text(encoding="utf-8"))
    assert result["validation"]["passed"]
    assert {row["layer"] for row in result["reaches"]} == {0, 1}
    table = (out / "reach.csv").read_text(encoding="utf-8")
    assert table.startswith("layer,head,stack,distance,even\n")
    assert said["same"] == ""
    assert "reach" in said["differ"]
    assert "limit = 5" in said["config"]
    document = json.loads((report / "report.json").read_text(encoding="utf-8"))
    assert document["settings"]["reach"] == {"limit": 5}
    assert document["reach"]["tokens"] > 0
    assert (report / "reach.csv").is_file()
    assert "Measure how far each head looks" in said["help"]
    assert "passed" in said["tests"]
    # Without one of its files, the registry test names the section and what it lacks.
    assert "No module named 'headscope.analyses.reach.view'" in said["incomplete"]


def _run(project, steps):
    """Run each step in turn; return what each said. All but the last must succeed."""
    words = json.dumps([[str(word) for word in step] for step in steps.values()])
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, words],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = {name: (project / f"said-{i}").read_text() for i, name in enumerate(steps)}
    for (name, text), code in zip(said.items(), done.stdout.split(), strict=True):
        assert int(code) == (name == "incomplete"), f"{name}: {text[-3000:]}"
    return said
