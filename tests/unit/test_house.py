"""Habits of the package that no linter knows: names of files, words of messages."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from headscope.cli.app import app

PACKAGE = Path(__file__).parents[2] / "headscope"
FILES = sorted(PACKAGE.rglob("*.py"))
#: Files that have one meaning wherever they stand: what each command has of its kind.
KINDS = {"__init__", "run", "tables", "words", "figures", "files", "page", "thresholds"}
#: Concepts that several floors have a part of, apart from the commands themselves.
CONCEPTS = {"efficient", "even", "max_drop", "pooling", "speed", "shared_projections"}
CONCEPTS |= {"causes", "prefix_matching", "value_norms"}


def _strings(path: Path) -> Iterator[str]:
    """Yield every string of a module that is no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


FLOORS = ("data", "measures", "models", "pipeline", "pruning", "results", "verdicts")


@pytest.mark.parametrize("floor", FLOORS)  # below the command line nobody knows flags
def test_library_messages_name_parameters_and_no_flags(floor: str) -> None:
    found = {
        str(path.relative_to(PACKAGE)): text
        for path in FILES
        if path.relative_to(PACKAGE).parts[0] == floor
        for text in _strings(path)
        if re.search(r"(?<![\w-])(--[a-z]|-o\b)", text) and "'headscope " not in text
    }
    assert not found


def test_files_of_one_name_are_of_one_concept() -> None:
    """A command's name stands on every floor that has a part of it; other names stand once."""
    known = KINDS | CONCEPTS | {command.name for command in app.registered_commands}
    places = defaultdict(list)
    for path in FILES:
        places[path.stem].append(str(path.relative_to(PACKAGE).parent))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not {name: where for name, where in twice.items() if name not in known}


def test_no_file_repeats_its_folder() -> None:
    repeating = [
        str(path.relative_to(PACKAGE))
        for path in FILES
        if re.match(rf"{path.parent.name}_|.*_{path.parent.name}$", path.stem)
    ]
    assert not repeating


def test_the_formatter_is_not_switched_off() -> None:
    root = PACKAGE.parent
    places = [*FILES, *(root / "tests").rglob("*.py")]
    mark = "fmt: " + "skip"
    assert sum(path.read_text(encoding="utf-8").count(mark) for path in places) < 10
