"""``headscope list``: every entry of the lists that the program uses, with words about it."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from headscope.cli.app import app
from headscope.models.families import COVERED, REFUSED
from headscope.models.layouts import LAYOUTS
from headscope.pipeline.list import KINDS, entries_of
from headscope.pipeline.tasks import TASKS
from headscope.pruning.methods import METHODS
from headscope.results.roles import ROLES
from headscope.verdicts.limits import LIMIT_NAMES, Limits

Run = Callable[..., Any]
ROOT = Path(__file__).parents[2]
DOCS = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
EXPECTED = {
    "methods": [*METHODS],
    "tasks": [*TASKS],
    "roles": [role.key for role in ROLES],
    "families": [*COVERED, *REFUSED],
    "limits": [*LIMIT_NAMES],
    "gates": [*LIMIT_NAMES],
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_lists_what_the_program_knows(kind: str, run: Run) -> None:
    lines = list(csv.DictReader(io.StringIO(run("list", kind, "--format", "csv").stdout)))
    assert [line["name"] for line in lines] == EXPECTED[kind]
    found = json.loads(run("list", kind, "--format", "json").stdout)
    assert found["kind"] == kind
    assert found["entries"] == lines
    human = run("list", kind)
    assert (human.code, human.stderr) == (0, "")
    rows = human.stdout.splitlines()
    assert all(len(row) <= 80 for row in rows)
    assert [row.split()[0] for row in rows if row[:1].strip()][:-1] == EXPECTED[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_is_described_and_its_sources_are_those_of_the_docs(kind: str) -> None:
    for entry in entries_of(kind).entries:
        assert 5 < len(entry.words) < 150, entry.name
        assert entry.words[0].islower() or kind == "tasks"
        assert not entry.words.endswith(".")
        page = (ROOT / entry.page).read_text(encoding="utf-8")
        for authors, paper in re.findall(r"(\w[^;]*?\d{4}), (arXiv:[\d.]+\d)", entry.source):
            assert authors in page, (entry.name, authors)
            assert paper in DOCS, (entry.name, paper)


def test_no_two_methods_or_roles_are_described_alike() -> None:
    for kind in ("methods", "tasks", "roles", "limits"):
        words = [entry.words for entry in entries_of(kind).entries]
        assert len(set(words)) == len(words)


def test_names_stand_on_their_page() -> None:
    """A page that does not name an entry cannot say more about it."""
    for kind in ("methods", "tasks", "roles", "limits"):
        for entry in entries_of(kind).entries:
            page = (ROOT / entry.page).read_text(encoding="utf-8")
            assert re.search(rf"\b{re.escape(entry.name)}\b", page), (kind, entry.name)


def test_a_limit_takes_what_is_said() -> None:
    wrong = {"true or false": 3, "a whole number of 0 or more": -1, "a number": "x"}
    for entry in entries_of("limits").entries:
        said = entry.words.partition(":")[0]
        if said in wrong:
            with pytest.raises(Exception, match=re.escape(f"must be {said}")):
                Limits.parse({entry.name: wrong[said]})


def test_families_have_layouts_that_exist() -> None:
    assert {known.layout for known in COVERED.values()} == {layout.name for layout in LAYOUTS}


def test_without_a_word_it_says_what_can_be_listed(run: Run) -> None:
    outcome = run("list")
    assert outcome.code == 0
    assert all(re.search(rf"^{kind} ", outcome.stdout, re.MULTILINE) for kind in KINDS)
    commands = typer.main.get_command(app).commands
    (argument,) = [param for param in commands["list"].params if param.name == "what"]
    assert all(kind in argument.help for kind in KINDS)


@pytest.mark.parametrize(
    ("word", "hint"),
    [("metods", "did you mean 'methods'?"), ("x\x1b[31m", "there are methods, tasks, roles")],
)
def test_an_unknown_word_is_one_sentence(word: str, hint: str, run: Run) -> None:
    outcome = run("list", word)
    assert (outcome.code, outcome.stdout) == (1, "")
    assert hint in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert "\x1b" not in outcome.stderr
