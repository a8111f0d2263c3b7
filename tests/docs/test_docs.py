"""What the documentation shows is run; ``py`` marks what other tests run on tiny models."""

import doctest
import functools
import importlib
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import headscope
from headscope.commands import COMMANDS
from headscope.models.load import loading
from headscope.removal import times
from headscope.session import opening
from headscope.shrinking import bench

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_EXAMPLES = (
    "classify",
    "depth",
    "explain",
    "flow",
    "insights",
    "linear",
    "prune",
    "rank",
    "report",
    "shrink",
    "spectrum",
    "symmetric",
    "transfer",
    "validate",
)


def _blocks(page, language):
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def _once(demo):
    """Open the demo model once for all examples, call what they call in the same way once.

    Speeds come from few rounds, too few for intervals; shrink chooses by few texts.
    """
    load = loading.load
    models = functools.cache(
        lambda dtype: demo if dtype == "float32" else load("demo", dtype=dtype)
    )
    weights = functools.cache(
        lambda dtype: [(each, each.data) for each in models(dtype).network.parameters()]
    )

    def opened(dtype):
        """What opens a model by its name may free the weights; they are put back."""
        for weight, data in weights(dtype):
            weight.data = data
        return models(dtype)

    # The demo has a tokenizer and no task head, so these ask for the same model.
    same = {"task_head": ("auto", None), "need_tokenizer": (True, False), "pooling": (None,)}
    same |= {"device": ("auto", "cpu"), "dtype": ("float32", "float64")}

    def load_once(model, **options):
        if model == "demo" and all(value in same.get(key, ()) for key, value in options.items()):
            return opened(options.get("dtype", "float32"))
        return load(model, **options)

    def once(function):
        results = {}

        @functools.wraps(function)
        def call(*arguments, **options):
            key = repr((arguments, options))
            if key not in results:
                results[key] = function(*arguments, **options)
            return results[key]

        return call

    with pytest.MonkeyPatch.context() as patch:
        for module in (loading, opening):
            patch.setattr(module, "load", load_once)
        patch.setattr(times, "FEWEST", 4)
        patch.setattr(bench, "CALIBRATION", 16)
        patch.setattr(bench, "CHOOSING", 32)
        for name in ("classify", "depth", "flow", "linear", "rank", "symmetric", "transfer"):
            folder = importlib.import_module(f"headscope.analyses.{name}")
            patch.setattr(folder, name, once(getattr(folder, name)))
        yield
    opened("float32")  # other tests use the same model


@pytest.mark.usefixtures("_once")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_run(page):
    for block in _blocks(page, "python"):
        exec(compile(block, str(page), "exec"), {})
    for block in _blocks(page, "py"):
        compile(block, str(page), "exec")


def test_scripts_beside_the_pages_run():
    """That for spaCy, which is not installed here, compiles."""
    scripts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.py")}
    compile(scripts["to_conllu.py"], "to_conllu.py", "exec")
    exec(compile(scripts["fast_tokenizer.py"], "fast_tokenizer.py", "exec"), {})


@pytest.mark.usefixtures("_once")
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_docstring_examples_run(name):
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(headscope, name), name)
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))
    assert example.examples


def test_readme_opens_with_the_two_commands_and_has_a_page_of_each():
    for command in set(COMMANDS) - {"config"}:
        assert f"(docs/{command}.md)" in PAGES[0].read_text(encoding="utf-8")
    install, test = _blocks(PAGES[0], "sh")[:2]
    assert install.strip().endswith("headscope classify demo")
    assert "pytest" in test
    for command in (install, test):
        assert "-c configs/constraints.txt" in command
        assert len(command.strip().splitlines()) == 1
    lines = (ROOT / "configs" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)


def test_public_names_are_those_of_the_page():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = {name.split(".")[1] for name in re.findall(r"auto\w+:: ([\w.]+)", page)}
    assert listed - {"analyses", "models"} == {*headscope.__all__} - {"roles"}
    for name in headscope.__all__:
        assert getattr(headscope, name) is not None
    importlib.import_module("headscope.show.cells")  # a floor that has a function's name
    assert callable(headscope.report)


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_is_the_same_everywhere():
    written = {
        "CITATION.cff": r"^version: (.+)$",
        "CHANGELOG.md": r"^## (\S+)$",  # the first heading
        "docs/paper.md": r"^  version = {(.+)},$",
        "docs/support.md": r"this is (\S+), an alpha",
    }
    for name, pattern in written.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        found = re.search(pattern, text, re.MULTILINE)
        assert found, name
        assert found.group(1) == headscope.__version__ == PROJECT["project"]["version"], name


def test_the_changelog_is_short():
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 45


def test_the_manual_has_35_000_words_at_most():
    """Of README and all pages, with the book of measurements and all markup."""
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES) <= 35_000


def test_every_file_of_the_package_travels_in_the_wheel():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["headscope"]
    package = ROOT / "headscope"
    files = [str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()]
    left_out = [
        name
        for name in files
        if "__pycache__" not in name
        and not name.endswith(".py")
        and not any(fnmatch(name, pattern) for pattern in patterns)
    ]
    assert not left_out
