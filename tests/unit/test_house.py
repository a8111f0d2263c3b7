"""What no linter knows: circles of imports, flags in messages, and constructs that cost reading."""

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
        imports = [] if names[path] == "headscope" else IMPORT.findall(text)
        for module, imported in imports:
            for word in re.findall(r"\w+", re.sub(r"#.*| as \w+", "", imported)):
                full_name = f"{module}.{word}"
                graph[names[path]].add(full_name if full_name in graph else module)
    assert "headscope.attention" in graph["headscope.models.layouts.layout"]
    try:
        TopologicalSorter({name: imported - {name} for name, imported in graph.items()}).prepare()
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
        if not flag.search(TEXTS[path]):
            continue
        for text in strings(ast.parse(TEXTS[path])):
            assert not flag.search(text) or "'headscope " in text, f"{path}: {text}"


# --- constructs that save lines and cost reading ---

#: Names that say where a thing stands, and not what it is.
VAGUE = {"of", "at", "left", "every", "room", "both", "theirs", "mine", "here", "own", "whole"}
VAGUE |= {"kept", "found", "given", "told", "look", "place", "end", "ends", "turn", "asked"}
VAGUE |= {"wanted", "made", "part", "parts", "side", "sides", "what", "others"}
PACKED = "packed arguments"
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def is_truth_value(node):
    """Whether an expression is a comparison, a ``not`` or a call of ``bool``."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "bool"
    is_negation = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return is_negation or isinstance(node, ast.Compare | ast.BoolOp)


def is_swap(targets, values):
    """Whether an assignment exchanges values, as ``a, b = b, a``: one name is on both sides."""
    stored = {ast.unparse(target) for target in targets}
    return not stored.isdisjoint(ast.unparse(value) for value in values)


def costs_of_assignment(node):
    """Yield what is hard to read in an assignment to several names."""
    if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Tuple):
        return
    targets = node.targets[0].elts
    if isinstance(node.value, ast.Tuple) and not is_swap(targets, node.value.elts):
        yield "parallel assignment"
    if isinstance(node.value, ast.GeneratorExp | ast.ListComp):
        yield "several names from one comprehension"


def holds_condition(node):
    """Whether a conditional expression stands anywhere inside."""
    return any(isinstance(inner, ast.IfExp) for inner in ast.walk(node))


def costs_of(node):
    """Yield what is hard to read in one node of a syntax tree."""
    match node:
        case ast.Starred(value=ast.Tuple() | ast.List() | ast.IfExp(), ctx=ast.Load()):
            yield PACKED
        case ast.Assign():
            yield from costs_of_assignment(node)
        case ast.BinOp(op=ast.Mult()) if is_truth_value(node.left) or is_truth_value(node.right):
            yield "arithmetic with a truth value"
        case ast.Subscript() if is_truth_value(node.slice):
            yield "an index that is a truth value"
        case ast.JoinedStr() if holds_condition(node):
            yield "a condition in an f-string"
        case ast.For() if node.orelse:
            yield "for ... else"
        case ast.Name(ctx=ast.Store()) if node.id in VAGUE:
            yield f"the name {node.id}"
        case ast.arg() if node.arg in VAGUE:
            yield f"the name {node.arg}"
    if isinstance(node, COMPREHENSIONS) and len(node.generators) > 1:
        yield "a comprehension with several for"
    if isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.IfExp):
        yield "a loop over one of two things"


def costs_of_text(text):
    """List (line, what is hard to read) of a module."""
    costs = []
    for node in ast.walk(ast.parse(text)):
        line = getattr(node, "lineno", 0)
        costs += [(line, cost) for cost in costs_of(node)]
    return sorted(costs)


def lines_of_code(text):
    """Count the lines of a module that are neither blank nor comments alone."""
    lines = [line.strip() for line in text.splitlines()]
    return len([line for line in lines if line and not line.startswith("#")])


@pytest.mark.parametrize(
    ("code", "costs"),
    [
        ("a, b = x, y", ["parallel assignment"]),
        ("a, b = b, a", []),
        ("batch, heads = pattern.shape", []),
        ("a, b = (f(n) for n in names)", ["several names from one comprehension"]),
        ("f(*(a, b))", [PACKED]),
        ("f(*names)", []),
        ("[a for b in c for a in b]", ["a comprehension with several for"]),
        ("words = ', ...' * (n > 8)", ["arithmetic with a truth value"]),
        ("pairs[not known]", ["an index that is a truth value"]),
        ("f'{a if b else c}'", ["a condition in an f-string"]),
        ("for a in (b if c else ()): pass", ["a loop over one of two things"]),
        ("left = scores", ["the name left"]),
        ("def f(parts): return parts", ["the name parts"]),
    ],
)
def test_what_costs_reading_is_counted(code, costs):
    assert [cost for _, cost in costs_of_text(code)] == costs


@pytest.mark.parametrize(("folder", "ceiling"), [("headscope", 6), ("tests", 10)])
def test_few_constructs_cost_reading(folder, ceiling):
    """At most so many per 1,000 lines of code; arguments are packed nowhere in the package."""
    costs = []
    n_lines = 0
    for path in sorted((ROOT.parent / folder).rglob("*.py")):
        text = path.read_text("utf-8")
        name = path.relative_to(ROOT.parent)
        n_lines += lines_of_code(text)
        costs += [f"{name}:{line} {cost}" for line, cost in costs_of_text(text)]
    if folder == "headscope":
        assert not [cost for cost in costs if cost.endswith(PACKED)]
    per_thousand = 1000 * len(costs) / n_lines
    assert per_thousand <= ceiling, "\n".join([f"{per_thousand:.1f} per 1,000 lines:", *costs])
