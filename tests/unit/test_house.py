"""What no linter knows: below the command line, messages name parameters and no flags."""

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


#: Rooms below the command line; what is shown, and the help of options, may name flags.
ROOMS = ("analyses", "artefacts", "data", "models", "pruning", "removal", "reports")
ROOMS += ("session", "tasks")
SHOWN = {"__init__.py", "view.py", "arrows.py", "card.py", "options.py", "markdown.py"}
SHOWN |= {"compare_view.py", "compare_page.py", "list.py"}


@pytest.mark.parametrize("room", ROOMS)
def test_library_messages_name_parameters_and_no_flags(room):
    found = {
        str(path.relative_to(PACKAGE)): text
        for path in FILES
        if path.relative_to(PACKAGE).parts[0] == room and path.name not in SHOWN
        for text in _strings(path)
        if re.search(r"(?<![\w-])(--[a-z]|-o\b)", text) and "'headscope " not in text
    }
    assert not found
