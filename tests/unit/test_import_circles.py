"""No module of headscope imports another in a circle: at its top, in a function or for types."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import headscope

ROOT = Path(headscope.__file__).parent


def imported(tree):
    """Yield what a module imports, by its full name and by the module it is taken from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports are not followed here"
            yield from ((f"{node.module}.{alias.name}", node.module) for alias in node.names)


def names_types(node):
    """Whether a statement imports for type checkers alone."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def import_graph(root):
    """Return, for each module of a package, the modules of this package that it imports."""
    files = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for name, path in files.items():
        tree = ast.parse(path.read_text("utf-8"))
        if name == root.name:  # its public names, which type checkers read here
            tree.body = [node for node in tree.body if not names_types(node)]
        targets = (full if full in files else module for full, module in imported(tree))
        graph[name] = {target for target in targets if target in files} - {name}
    return graph


def circle(graph):
    """Return the modules of one circle, the first one again at its end; none without a circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_module_imports_another_in_a_circle():
    graph = import_graph(ROOT)
    assert "headscope.attention" in graph["headscope.models.layouts.layout"]
    assert not (found := circle(graph)), " <- ".join(found)
