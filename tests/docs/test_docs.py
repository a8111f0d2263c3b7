"""Everything that the documentation shows is run."""

from __future__ import annotations

import doctest
import importlib
import re
import tomllib
from pathlib import Path

import pytest
import typer
import typer.main

import headscope
from headscope.cli.app import app
from headscope.cli.settings import read_settings
from headscope.measures.classify.thresholds import Thresholds
from headscope.results.thresholds import ThresholdSet
from headscope.verdicts.insights.thresholds import InsightThresholds

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_run(page: Path) -> None:
    for block in _blocks(page, "python"):
        exec(compile(block, str(page), "exec"), {})


@pytest.mark.parametrize(
    "name",
    [
        *("classify", "depth", "explain", "flow", "insights", "prune", "report", "rank", "scores"),
        *("spectrum", "transfer", "validate"),
    ],
)
def test_docstring_examples_run(name: str) -> None:
    home = getattr(headscope, name).__module__
    failed, attempted = doctest.testmod(importlib.import_module(home))
    assert attempted > 0
    assert failed == 0


def test_every_command_has_a_page() -> None:
    for command in app.registered_commands:
        assert (ROOT / "docs" / f"{command.name}.md").is_file()
        assert f"docs/{command.name}.md" in PAGES[0].read_text(encoding="utf-8")


def test_readme_opens_with_the_two_commands() -> None:
    install, test = _blocks(PAGES[0], "sh")[:2]
    assert install.strip().endswith("headscope classify demo")
    assert "pytest" in test
    for command in (install, test):
        assert "-c configs/constraints.txt" in command
        assert len(command.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "kind"), [("classify", Thresholds), ("insights", InsightThresholds)]
)
def test_config_file_documents_every_threshold_at_its_default(
    name: str, kind: type[ThresholdSet]
) -> None:
    table = tomllib.loads((ROOT / "configs" / f"{name}.toml").read_text(encoding="utf-8"))[name]
    assert kind.parse(table["thresholds"]) == kind()
    assert set(table["thresholds"]) == set(kind.__dataclass_fields__)


CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
COMMANDS = typer.main.get_command(app).commands
OF_COMMANDS = [path for path in CONFIGS if path.stem in COMMANDS]
PROFILES = [path for path in CONFIGS if path.stem not in COMMANDS]


@pytest.mark.parametrize("config", OF_COMMANDS, ids=lambda p: p.stem)
def test_config_file_documents_every_option_at_its_default(config: Path) -> None:
    command = COMMANDS[config.stem]
    text = config.read_text(encoding="utf-8")
    set_values = tomllib.loads(text)[config.stem]
    shown = {*set_values, *re.findall(r"^# (\w+) = ", text, re.MULTILINE)}
    hidden = {"model", "config", "debug", "help"}
    if "thresholds" in shown:
        shown, hidden = shown - {"thresholds"}, {*hidden, "threshold"}
    assert shown == {param.name for param in command.params} - hidden
    for param in command.params:
        if param.name in set_values:
            default = getattr(param.default, "value", param.default)
            assert set_values[param.name] == default, param.name


def test_the_four_profiles_are_there() -> None:
    assert {path.stem for path in PROFILES} >= {"quick", "ci", "full", "paper"}
    assert "limits" in tomllib.loads((ROOT / "configs" / "ci.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda p: p.stem)
def test_config_files_hold_only_real_options(config: Path, tmp_path: Path) -> None:
    """Those that are set, and one by one those that stand in comments."""
    read_settings(config, typer.Context(typer.main.get_command(app)))
    table = ""
    for line in config.read_text(encoding="utf-8").splitlines():
        table = line if line.startswith("[") else table
        if table and re.match(r"# \w+ = ", line):
            path = tmp_path / "one.toml"
            path.write_text(f"{table}\n{line[2:]}\n", encoding="utf-8")
            read_settings(path, typer.Context(typer.main.get_command(app)))


@pytest.mark.parametrize("config", PROFILES, ids=lambda p: p.stem)
def test_every_setting_of_a_profile_is_explained(config: Path) -> None:
    lines = config.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    for line in lines:
        if re.match(r"\w+ = ", line):
            assert " # " in line, line


def test_public_names_are_pinned() -> None:
    assert headscope.__all__ == [
        *("classify", "depth", "explain", "flow", "linear", "rank", "spectrum", "symmetric"),
        *("transfer", "validate", "prune", "scores", "measure", "report", "insights"),
        *("load", "wrap", "remove_heads", "save", "save_dense"),
        *("ClassifyResult", "DepthResult", "ExplainResult", "FlowResult", "InsightsResult"),
        *("LinearResult", "PruneResult", "RankResult", "ReportResult", "SpectrumResult"),
        *("SymmetricResult", "TransferResult", "ValidationResult"),
        *("Thresholds", "InsightThresholds", "HeadscopeError"),
    ]
    for name in headscope.__all__:
        assert getattr(headscope, name) is not None
    importlib.import_module("headscope.show.cells")  # a floor that has a function's name
    assert callable(headscope.report)


def test_constraints_pin_exactly() -> None:
    lines = (ROOT / "configs" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
