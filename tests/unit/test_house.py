"""Habits of the package that no linter knows: words of messages, and no formatter switched off."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "headscope"
FILES = sorted(PACKAGE.rglob("*.py"))


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
def test_library_messages_name_parameters_and_no_flags(floor):
    found = {
        str(path.relative_to(PACKAGE)): text
        for path in FILES
        if path.relative_to(PACKAGE).parts[0] == floor
        for text in _strings(path)
        if re.search(r"(?<![\w-])(--[a-z]|-o\b)", text) and "'headscope " not in text
    }
    assert not found


def test_the_formatter_is_not_switched_off():
    root = PACKAGE.parent
    places = [*FILES, *(root / "tests").rglob("*.py")]
    mark = "fmt: " + "skip"
    assert sum(path.read_text(encoding="utf-8").count(mark) for path in places) < 10
