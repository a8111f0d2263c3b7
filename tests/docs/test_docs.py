"""Everything that the documentation shows is run."""

from __future__ import annotations

import doctest
import importlib
import re
import tomllib
from pathlib import Path

import pytest
import typer.main

import headscope
from headscope.cli.app import app
from headscope.measures.thresholds import Thresholds

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
    "name", ["classify", "depth", "prune", "rank", "scores", "spectrum", "validate"]
)
def test_docstring_examples_run(name: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(f"headscope.pipeline.{name}"))
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


def test_config_file_documents_every_threshold_at_its_default() -> None:
    config = tomllib.loads((ROOT / "configs" / "classify.toml").read_text(encoding="utf-8"))
    assert Thresholds.parse(config["classify"]["thresholds"]) == Thresholds()
    assert set(config["classify"]["thresholds"]) == set(Thresholds.__dataclass_fields__)


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.toml")), ids=lambda p: p.stem)
def test_config_file_documents_every_option_at_its_default(config: Path) -> None:
    command = typer.main.get_command(app).commands[config.stem]
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


def test_public_names_are_pinned() -> None:
    assert headscope.__all__ == [
        "classify",
        "depth",
        "rank",
        "spectrum",
        "validate",
        "prune",
        "scores",
        "measure",
        "load",
        "wrap",
        "remove_heads",
        "save",
        "save_dense",
        "ClassifyResult",
        "DepthResult",
        "PruneResult",
        "RankResult",
        "SpectrumResult",
        "ValidationResult",
        "Thresholds",
        "HeadscopeError",
    ]
    for name in headscope.__all__:
        assert getattr(headscope, name) is not None


def test_constraints_pin_exactly() -> None:
    lines = (ROOT / "configs" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
