"""What no linter knows: imports without circles, messages that name parameters and no flags."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import headscope

ROOT = Path(headscope.__file__).parent
TEXTS = {path.relative_to(ROOT): path.read_text("utf-8") for path in ROOT.rglob("*.py")}
#: At a module's top, in a function or for types; a bracket may span lines.
IMPORT = re.compile(r"^ *from (headscope[\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)


def test_no_module_imports_another_in_a_circle():
    names = {
        path: ".".join(("headscope", *path.with_suffix("").parts)).removesuffix(".__init__")
        for path in TEXTS
    }
    graph = {name: set() for name in names.values()}
    for path, text in TEXTS.items():
        assert not re.search(r"^ *(from \.|import headscope\.)", text, re.MULTILINE), path
        for module, taken in IMPORT.findall(text) if names[path] != "headscope" else ():
            for word in re.findall(r"\w+", re.sub(r"#.*| as \w+", "", taken)):
                full = f"{module}.{word}"
                graph[names[path]].add(full if full in graph else module)
    assert "headscope.attention" in graph["headscope.models.layouts.layout"]
    try:
        TopologicalSorter({name: found - {name} for name, found in graph.items()}).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


#: Rooms below the command line; what is shown, and the help of options, may name flags.
ROOMS = ("analyses", "artefacts", "data", "models", "pruning", "removal", "reports")
ROOMS += ("session", "tasks")
SHOWN = {"__init__.py", "view.py", "arrows.py", "card.py", "options.py", "markdown.py"}
SHOWN |= {"compare_page.py", "compare_view.py", "diff_view.py", "list.py", "stack_words.py"}


def strings(tree):
    """Yield every string of a module that is no docstring."""
    holders = ast.Module | ast.ClassDef | ast.FunctionDef
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, holders) and node.body]
    docs = {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_library_messages_name_parameters_and_no_flags():
    flag = re.compile(r"(?<![\w-])(--[a-z]|-o\b)")
    library = [path for path in TEXTS if path.parts[0] in ROOMS and path.name not in SHOWN]
    library = [path for path in library if "steps" not in path.parts]  # what explain shows
    assert len(library) > 100
    for path in library:
        for text in strings(ast.parse(TEXTS[path])) if flag.search(TEXTS[path]) else ():
            assert not flag.search(text) or "'headscope " in text, f"{path}: {text}"
