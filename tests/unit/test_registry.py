"""Every entry of a list has what its readers look for; what is missing is said by name."""

import ast
import dataclasses
import inspect
import re
import typing
from pathlib import Path

import pytest
import typer
import typer.main

import headscope
from headscope.cli.app import app, click_command
from headscope.cli.settings import options_by_command
from headscope.commands import COMMANDS, SECTIONS
from headscope.pruning.options import METHODS, Repair
from headscope.reports import registry
from headscope.reports.registry import marks_of
from headscope.reports.rules import RULES
from headscope.show.view import View, view_of
from headscope.stats.compared import Compare, marked
from headscope.tasks.making import TASKS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_has_all_that_its_name_promises(name):
    section = COMMANDS[name]
    fields = {field.name for field in dataclasses.fields(section.result)}
    for other in set(SECTIONS) - {name}:
        marks = marks_of(other)
        assert len(marks & fields) <= len(marks) / 2, f"the JSON of {name} is taken for {other}'s"
    assert {"schema", "provenance"} <= fields
    assert set(section.uses) <= set(SECTIONS[: SECTIONS.index(name)]), "a section uses earlier ones"
    function = getattr(headscope, name, None)
    assert callable(function), f"{name}: there is no headscope.{name}"
    assert {"model", "command"} <= set(inspect.signature(function).parameters)
    assert isinstance(view_of(name), View)
    options = options_by_command(typer.Context(typer.main.get_command(app)))
    assert "model" in options[name], f"{name}: its table in a config file has no options"


def _typed(path: Path) -> list[ast.stmt]:
    """What a module has for type checkers alone."""
    source = ast.parse(path.read_text(encoding="utf-8"))
    blocks = [node.body for node in source.body if isinstance(node, ast.If)]
    return [statement for block in blocks for statement in block]


def test_what_editors_read_is_what_the_table_says():
    """Names of the package and fields of a report are made of the table; editors read these."""
    imported = {alias.asname for node in _typed(Path(headscope.__file__)) for alias in node.names}
    assert imported <= set(headscope.__all__), "a name that the package does not have"
    assert set(headscope.__all__) - imported <= set(COMMANDS), "only a new command may be missing"
    (typed,) = (node for node in _typed(Path(registry.__file__)) if isinstance(node, ast.ClassDef))
    hints = {
        field.target.id: ast.unparse(field.annotation)
        for field in typed.body
        if isinstance(field, ast.AnnAssign)
    }
    fields = {field.name: field.type for field in dataclasses.fields(registry.Sections)}
    assert tuple(fields) == SECTIONS
    assert hints.items() <= fields.items()


def _classes(kind, seen):
    """A result class, and every dataclass that its fields hold."""
    if dataclasses.is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        for hint in typing.get_type_hints(kind).values():
            _classes(hint, seen)
    for argument in typing.get_args(kind):
        _classes(argument, seen)
    return seen


@pytest.mark.parametrize("name", SECTIONS)
def test_what_diff_compares_is_there(name):
    """A marker names fields that exist; a field that is left out is left out on purpose."""
    kind = COMMANDS[name].result
    numbers = 0
    for result_class in _classes(kind, set()):
        for field, mark in marked(result_class, Compare):
            numbers += 1
            named = re.findall(r"\{0\.(\w+)", mark.words)
            assert all(
                hasattr(result_class, n) or n in result_class.__dataclass_fields__ for n in named
            ), field
    assert numbers or name in ("validate", "depth", "prune"), f"{name}: diff compares nothing of it"


def test_help_and_docs_name_what_can_be_chosen():
    """Help is written by hand, so that it loads nothing; it names every entry of the lists."""
    said = {
        name: {param.name: getattr(param, "help", "") for param in click_command(name).params}
        for name in set(COMMANDS) - {"config"}
    }
    options = options_by_command(typer.Context(typer.main.get_command(app)))["prune"]
    assert all(method in said["prune"]["method"] for method in METHODS)
    assert all(rule in said["diff"]["fail_on"] for rule in RULES)
    assert list(options["task"].choices) == list(TASKS)
    assert list(options["repair"].choices) == [kind.value for kind in Repair]
    diff, prune = (
        (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("diff", "prune")
    )
    assert all(f"`{rule}" in diff for rule in RULES)
    assert all(f"`{method}`" in prune for method in METHODS)
