"""Examples at the end of every help work as printed; ``list`` has every entry of the lists."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main
from outcomes import Command, refused

from headscope.cli.app import COMMANDS, app
from headscope.reports.list import KINDS, entries_of

ROOT = Path(__file__).parents[2]


def printed(name: str, run: Command, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of a command's help, in a terminal of 80 columns, that begin with the program."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    text = re.sub(r"\x1b\[[\d;]*m", "", run(name, "--help").stdout)
    _, _, examples = text.rpartition("╯\n")
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    assert lines[0].startswith("Example"), f"{name}: no examples at the end of its help"
    lines = [line.removeprefix("Example: ") for line in lines if line != "Examples:"]
    assert all(line.startswith("headscope ") for line in lines), f"a line was broken: {lines}"
    return lines


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_is_one_line_that_is_understood(name, run, monkeypatch):
    monkeypatch.chdir(ROOT)  # where the config files are that examples name
    group = typer.main.get_command(app)
    for line in printed(name, run, monkeypatch):
        bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", line.replace("reports/*", ""))
        assert not set(bare) & set("<>|&;()$`*?[]#~!{}"), f"a shell reads more than words: {line}"
        _, command, *rest = shlex.split(line)
        assert command == name
        context = typer.Context(group)
        group.commands[command].make_context(command, rest, parent=context)  # type: ignore[attr-defined]


def options_in(shown: str) -> set[str]:
    """The long names of the options that a help lists."""
    rows = re.findall(r"^│ (--[\w,-]+)", shown, re.MULTILINE)
    return {name.removeprefix("--") for row in rows for name in row.split(",")[:1]} - {"help"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_fits_a_screen_and_help_all_has_every_option(name, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    short, long = run(name, "--help").stdout, run(name, "--help-all").stdout
    flags = typer.main.get_command(app).commands[name].callback.flags  # type: ignore[attr-defined]
    spelled = {
        (flag.marker.flags or (f"--{key.replace('_', '-')}",))[0].removeprefix("--")
        for key, flag in flags.items()
        if not flag.marker.argument
    }
    every = spelled | {"config"}
    assert len(short.splitlines()) <= 60
    assert len(options_in(short)) <= 10
    assert options_in(short) <= options_in(long)
    assert options_in(long) == every
    assert "<bool>" not in short + long
    if options_in(short) != every:
        left = len(every - options_in(short))
        assert f"--help-all shows {left} more options" in " ".join(short.replace("│", "").split())
    assert run(name, "--help").stdout == short


def test_a_slip_in_a_choice_is_met_with_the_choice_that_was_meant(run, tmp_path):
    slips = ("--task", "similarty")
    refused(run("shrink", "demo", *slips), "--task", "Did you mean 'similarity'?", code=2)
    for command, option in (("rank", "seed"), ("classify", "limit")):
        ended = run(command, "demo", f"--{option}", "x")
        refused(ended, f"'--{option}'", "it should be a valid integer", code=2)
    assert "Value error" not in run("rank", "demo", "--format", "xml").stderr
    path = tmp_path / "own.toml"
    path.write_text("[shrink]\ntask = 'similarty'\n")
    refused(run("shrink", "demo", "--config", path), "did you mean 'similarity'?")


DOCS = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_is_described_and_its_sources_are_those_of_the_docs(kind):
    for entry in entries_of(kind).entries:
        assert 5 < len(entry.words) < 150, entry.name
        assert entry.words[0].islower() or kind == "tasks"
        assert not entry.words.endswith(".")
        page = (ROOT / entry.page).read_text(encoding="utf-8")
        for authors, paper in re.findall(r"(\w[^;]*?\d{4}), (arXiv:[\d.]+\d)", entry.source):
            assert authors in page, (entry.name, authors)
            assert paper in DOCS, (entry.name, paper)
        # A page that does not name an entry cannot say more about it.
        assert kind == "families" or re.search(rf"\b{re.escape(entry.name)}\b", page), entry.name
