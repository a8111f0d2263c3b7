"""Pages name what there is, configuration files set what there is, docstrings say what is what."""

import ast
import re
from pathlib import Path

import pytest
import typer
import typer.main

from headscope.analyses.attribute.result import EFFECTS
from headscope.analyses.classify.roles import primary_roles
from headscope.cli.app import app, click_command
from headscope.cli.settings import read_settings
from headscope.commands import COMMANDS
from headscope.pruning.options import METHODS
from headscope.tasks.making import TASKS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
CONFIGS = sorted((ROOT / "headscope" / "configs").glob("*.toml"))


def anchors(page):
    """Names of a page's headings as code forges make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_names_of_pages_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith("http"):
            path, _, anchor = target.partition("#")
            other = page.parent / path if path else page
            assert other.exists(), target
            assert not anchor or anchor in anchors(other), target
    for name in re.findall(r"[\w./-]+\.md\b", re.sub(r"https?://\S+", "", text)):
        places = (page.parent / name, ROOT / name, DOCS / name)
        written = Path(name).name in {"report.md", "diff.md", "comment.md", "reach.md"}
        assert written or any(candidate.exists() for candidate in places), name


#: Entries of lists, and the page that defines each.
DEFINED = {
    "definitions/pruning": METHODS,
    "definitions/tasks": (*TASKS, "mlm", "fidelity"),
    "definitions/roles": [role.key for role in primary_roles()],
    "attribute": EFFECTS,
}


@pytest.mark.parametrize(("page", "names"), DEFINED.items(), ids=DEFINED)
def test_an_entry_is_defined_on_its_page(page, names):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_page_is_in_the_site():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    trees = "".join(re.findall(r"^```{toctree}\n(.*?)^```$", text, re.M | re.S))
    listed = set(re.findall(r"^(?:.+ <)?([\w/]+)>?$", trees, re.M))
    pages = {str(page.relative_to(DOCS))[:-3] for page in DOCS.rglob("*.md")}
    assert pages - listed == {"index", "design"}  # design.md is for contributors


@pytest.mark.parametrize("config", CONFIGS, ids=lambda p: p.stem)
def test_config_files_hold_only_real_options(config, tmp_path):
    """Those that are set, and one by one those that stand in comments."""
    read_settings(config, typer.Context(typer.main.get_command(app)))
    table = ""
    for line in config.read_text(encoding="utf-8").splitlines():
        table = line if line.startswith("[") else table
        if table and re.match(r"# \w+ = ", line):
            path = tmp_path / "one.toml"
            path.write_text(f"{table}\n{line[2:]}\n", encoding="utf-8")
            read_settings(path, typer.Context(typer.main.get_command(app)))


def test_every_documented_parameter_is_described():
    """An entry of a numpydoc section has lines below it that stand further in."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    section = re.compile(
        r"^(?:Other )?(?:Parameters|Attributes)\n-+\n((?:.+\n?|\n(?!.*\n-))*)", re.M
    )
    bare = re.compile(r"^(\S.*)$(?!\n )", re.M)
    assert bare.findall("one : int\n    How many.\ntwo : str\nthree") == ["two : str", "three"]
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "headscope").rglob("*.py")}
    undescribed = [
        f"{path}: {getattr(node, 'name', 'module')}: {entry}"
        for path, text in texts.items()
        if re.search(r"^ *(Parameters|Attributes)$", text, re.M)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds)
        for entries in section.findall(ast.get_docstring(node) or "")
        for entry in bare.findall(entries)
    ]
    assert not undescribed


#: What docs/config.md lists for all commands, and what needs no table.
SHARED = set(
    re.findall(
        r"`(--[a-z-]+)",
        (DOCS / "config.md")
        .read_text(encoding="utf-8")
        .partition("## Options of every command")[2]
        .partition("\n## ")[0],
    )
)


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"config"}))
def test_a_table_says_who_wants_each_option_and_there_are_sixteen_at_most(name):
    rows = [
        line for line in (DOCS / f"{name}.md").read_text("utf-8").splitlines() if line[:1] == "|"
    ]
    first_cells = [row.split("|")[1] for row in rows]
    own_options = 0
    for param in click_command(name).params:
        flags = [flag for flag in (*param.opts, *param.secondary_opts) if flag[:2] == "--"]
        if not flags or flags[0] in SHARED:
            continue
        own_options += 1
        assert any(f"`{flag}" in cell for cell in first_cells for flag in flags), flags[0]
    assert own_options <= 16
