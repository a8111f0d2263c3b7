"""Every entry of a list has what its readers look for; what is missing is said by name."""

import dataclasses
import inspect
import re
import typing
from pathlib import Path

import pytest
import typer
import typer.main

import headscope
from headscope.cli.app import COMMANDS, app
from headscope.cli.settings import options_by_command
from headscope.pruning.options import METHODS, Repair
from headscope.reports.registry import SECTIONS, section_of
from headscope.reports.rules import RULES
from headscope.show.view import View, view_of
from headscope.stats.compared import Compare, marked
from headscope.tasks.making import TASKS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_has_all_that_its_name_promises(name):
    section = section_of(name)
    fields = {field.name for field in dataclasses.fields(section.kind)}
    for other in set(SECTIONS) - {name}:
        marks = section_of(other).marks
        assert len(marks & fields) <= len(marks) / 2, f"the JSON of {name} is taken for {other}'s"
    assert {"schema", "provenance"} <= fields
    assert set(section.uses) <= set(SECTIONS[: SECTIONS.index(name)]), "a section uses earlier ones"
    function = getattr(headscope, name, None)
    assert callable(function), f"{name}: there is no headscope.{name}"
    assert {"model", "command"} <= set(inspect.signature(function).parameters)
    assert isinstance(view_of(name), View)
    assert name in COMMANDS, f"{name}: no command of that name in headscope.cli.app"
    options = options_by_command(typer.Context(typer.main.get_command(app)))
    assert "model" in options[name], f"{name}: its table in a config file has no options"


def _classes(kind, seen):
    """A result class, and every dataclass that its fields hold."""
    if dataclasses.is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        for hint in typing.get_type_hints(kind).values():
            _classes(hint, seen)
    for part in typing.get_args(kind):
        _classes(part, seen)
    return seen


@pytest.mark.parametrize("name", SECTIONS)
def test_what_diff_compares_is_there(name):
    """A marker names fields that exist; a field that is left out is left out on purpose."""
    kind = section_of(name).kind
    numbers = 0
    for part in _classes(kind, set()):
        for field, mark in marked(part, Compare):
            numbers += 1
            named = re.findall(r"\{0\.(\w+)", mark.words)
            assert all(hasattr(part, n) or n in part.__dataclass_fields__ for n in named), field
    assert numbers or name in ("validate", "depth", "prune"), f"{name}: diff compares nothing of it"


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
