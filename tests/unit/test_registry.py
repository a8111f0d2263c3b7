"""Every entry of a list has what its readers look for; what is missing is said by name."""

import dataclasses
import inspect
from pathlib import Path

import pytest
import typer
import typer.main

import headscope
from headscope.cli.app import COMMANDS, app
from headscope.cli.settings import options_by_command
from headscope.pipeline.prune.repairing import Repair
from headscope.pipeline.tasks import TASKS
from headscope.pruning.methods import METHODS
from headscope.results import SECTIONS, section_of
from headscope.show.view import View, view_of
from headscope.verdicts.diff.facts import collector_of
from headscope.verdicts.diff.rules import RULES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_has_all_that_its_name_promises(name):
    section = section_of(name)
    fields = {field.name for field in dataclasses.fields(section.kind)}
    assert section.marks, f"{name}: nothing tells its JSON from others (results/sections.py)"
    assert section.marks <= fields
    assert {"schema", "provenance"} <= fields
    assert set(section.uses) <= set(SECTIONS[: SECTIONS.index(name)]), "a section uses earlier ones"
    function = getattr(headscope, name, None)
    assert callable(function), f"{name}: there is no headscope.pipeline.{name}.{name}"
    assert {"model", "command"} <= set(inspect.signature(function).parameters)
    assert isinstance(view_of(name), View)
    for part in ("collect", "settings"):
        assert callable(getattr(collector_of(name), part)), f"{name}: its facts have no {part}"
    assert name in COMMANDS, f"{name}: no command of that name in headscope.cli.app"
    options = options_by_command(typer.Context(typer.main.get_command(app)))
    assert "model" in options[name], f"{name}: its table in a config file has no options"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_its_help_and_its_page(name):
    command = typer.main.get_command(app).commands[name]
    assert f"headscope {name} " in command.epilog
    assert command.help, f"{name}: its help is empty"
    assert (ROOT / "docs" / f"{name}.md").is_file(), f"{name}: there is no docs/{name}.md"


def test_help_and_docs_name_what_can_be_chosen():
    """Help is written by hand, so that it loads nothing; it names every entry of the lists."""
    commands = typer.main.get_command(app).commands
    said = {
        name: {param.name: getattr(param, "help", "") for param in commands[name].params}
        for name in COMMANDS
    }
    options = options_by_command(typer.Context(typer.main.get_command(app)))["prune"]
    assert all(method in said["prune"]["method"] for method in METHODS)
    assert all(rule in said["diff"]["fail_on"] for rule in RULES)
    assert [task.value for task in options["task"].kind] == list(TASKS)
    assert [kind.value for kind in options["repair"].kind] == [kind.value for kind in Repair]
    diff, prune = (
        (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("diff", "prune")
    )
    assert all(f"`{rule}" in diff for rule in RULES)
    assert all(f"`{method}`" in prune for method in METHODS)
