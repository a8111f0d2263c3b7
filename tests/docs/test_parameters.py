"""Every parameter and attribute that a docstring lists says what it is, not only its type."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "headscope"
FILES = sorted(PACKAGE.rglob("*.py"))
SECTIONS = {"Parameters", "Attributes", "Other Parameters"}


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the cleaned docstring of everything in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "module"), text


def entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield each entry of the numpydoc sections that list parameters, and what follows it."""
    lines = text.splitlines()
    section, entry, said = "", "", ""
    for i, line in enumerate(lines):
        if i + 1 < len(lines) and lines[i + 1] and not lines[i + 1].strip("-"):
            if entry:
                yield entry, said
            section, entry, said = line.strip(), "", ""
        elif section in SECTIONS and line.strip("-"):
            if line[0] != " ":
                if entry:
                    yield entry, said
                entry, said = line, ""
            else:
                said += line.strip()
    if entry:
        yield entry, said


def test_the_reader_finds_what_is_missing() -> None:
    text = """Do it.

    Parameters
    ----------
    one : int
        How many.
    two, three : str
    four

    Returns
    -------
    int
    """
    found = dict(entries("\n".join(line.removeprefix("    ") for line in text.splitlines())))
    assert found == {"one : int": "How many.", "two, three : str": "", "four": ""}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_documented_parameter_is_described(path: Path) -> None:
    bare = [
        f"{name}: {entry}"
        for name, text in docstrings(path)
        for entry, said in entries(text)
        if not said
    ]
    assert not bare
