"""Config files: strict for every table of every command, shown as they take effect."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from headscope.cli import settings
from headscope.cli.app import app

Run = Callable[..., Any]

GROUP = typer.main.get_command(app)
COMMANDS = sorted(name for name, item in GROUP.commands.items() if not hasattr(item, "commands"))
#: A value of the wrong type for each type of option, and what is said.
WRONG = {
    bool: ('"yes"', "true or false"),
    int: ("2.5", "a whole number"),
    float: ('"1"', "a number"),
    str: ("3", "a string"),
    Path: ("3", "a string"),
    tuple: ('["onnx"]', "must be a list of 2 (a string, a string"),
}


def context() -> typer.Context:
    return typer.Context(GROUP)


def refused(outcome: Any, *words: str) -> None:
    assert outcome.code == 1, outcome
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("headscope: ")
    assert outcome.stderr.count("\n") == 1
    for word in words:
        assert word in outcome.stderr, (word, outcome.stderr)


def options() -> list[tuple[str, settings.Option]]:
    found = settings.options_by_command(context())
    return [(command, option) for command, table in found.items() for option in table.values()]


def test_the_options_are_those_that_typer_knows() -> None:
    """Read from signatures here, from typer's own parameters there."""
    for command in COMMANDS:
        names = {param.name for param in GROUP.commands[command].params} - {"config"}
        assert set(settings.options_by_command(context())[command]) == names, command


@pytest.mark.parametrize(("command", "option"), options(), ids=lambda v: getattr(v, "name", v))
def test_every_option_refuses_a_wrong_type(
    command: str, option: settings.Option, run: Run, tmp_path: Path
) -> None:
    value, words = WRONG.get(option.kind, ('"xyzzy"', "must be one of"))
    path = tmp_path / "s.toml"
    path.write_text(f"[{command}]\n{option.name} = {value}\n")
    where = f"{path}: [{command}] {option.name}"
    refused(run("config", "show", "--config", path), where, words)
    path.write_text(f"[{command}]\n{option.name}x = {value}\n")
    refused(run("config", "show", "--config", path), f"did you mean '{option.name}'?")


def test_the_former_name_of_the_limits_is_read(run: Run, tmp_path: Path) -> None:
    """Config files are users' own: those written before [gates] became [limits] still work."""
    path = tmp_path / "s.toml"
    path.write_text("[gates]\nmin_positional = 2\n")
    shown = tomllib.loads(run("config", "show", "limits", "--config", path).stdout)
    assert shown == {"limits": {"min_positional": 2}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[clasify]\n", ("did you mean [classify]?",)),
        ("[limit]\n", ("did you mean [limits]?",)),
        ("[config]\n", ("no command 'config'",)),
        ("[rank]\nseeds = 3\nseed = 1", ("[rank] has no option 'seeds'", "'seed'")),
        ("[depth]\nconfig = 'x'", ("[depth] has no option 'config'",)),
        ("[depth]\nno-validate = true\nno_validate = true", ("twice",)),
        ("[depth]\nlength = true", ("length must be a whole number, not true",)),
        ("[prune]\nstep = nan", ("step must be a number",)),
        ("[classify]\ntext = ''", ("text must be a string",)),
        ("[classify]\nlanguage = ['en']", ("language must be a string",)),
        ("[rank]\nshare_projections = [true]", ("list of numbers or strings",)),
        ("[diff]\nfail_on = [3]", ("fail_on must be a string",)),
        ("[prune]\nfraction = ['x']", ("fraction must be a number",)),
        ("[prune]\nrepair = ['glue']", ("repair must be one of none, scale, mean, refit",)),
        ("[classify.thresholds]\nrare = '0.5'", ("threshold rare must be a number",)),
        ("[classify.thresholds]\nrarer = 0.5", ("[classify] thresholds", "'rare'")),
        ("[depth.thresholds]\nx = 1", ("[depth] has no option 'thresholds'",)),
        ("[limits]\nvalidaton = true", ("[limits] has no limit 'validaton'", "'validation'")),
        ("[limits]\nmin_positional = 'x'", ("[limits] min_positional must be a whole number",)),
        ("limits = 3", ("limits must be a table",)),
        ("[limits]\n[gates]\n", ("[gates], its former name; keep one",)),
        ("x" * 10, ("not valid TOML",)),
    ],
)
def test_whole_files_are_checked_whatever_runs(
    text: str, words: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    refused(run("config", "show", "--config", path), str(path), *words)
    refused(run("validate", "model", "--config", path), str(path), *words)


def test_missing_files(run: Run, tmp_path: Path) -> None:
    refused(run("config", "show", "--config", tmp_path / "none.toml"), "cannot be read")
    refused(run("config", "show", "--config", tmp_path), "cannot be read")


def test_an_unknown_command_has_a_hint(run: Run) -> None:
    refused(run("config", "show", "clasify"), "did you mean 'classify'?")
    refused(run("config", "show", "zzz"), "there are", "validate")


# --- show ---------------------------------------------------------------------------------------

FILE = """
[classify]
limit = 7
text = 'a "quoted"\u00e9 path'
[classify.thresholds]
rare = 0.25
[rank]
share-projections = [48, 96]
[diff]
fail_on = ["role-lost", "metric-drop=2%"]
[prune]
method = "fisher"
fraction = [0.25, 1]
[limits]
min_positional = 1
insights = {"0" = "holds", "7" = ["holds", "mixed"]}
"""


def test_show_without_a_file_is_every_default(run: Run) -> None:
    outcome = run("config", "show")
    assert outcome.code == 0
    shown = tomllib.loads(outcome.stdout)
    assert sorted(shown) == COMMANDS
    for command, table in shown.items():
        for param in GROUP.commands[command].params:
            default = getattr(param.default, "value", param.default)
            assert table.get(param.name) == default, (command, param.name)
        lines = outcome.stdout.partition(f"[{command}]\n")[2].partition("\n\n")[0].splitlines()
        assert all(line.startswith("# ") or line.endswith("  # default") for line in lines)


def test_show_lays_the_file_over_the_defaults(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    outcome = run("config", "show", "--config", path)
    shown = tomllib.loads(outcome.stdout)
    assert (shown["classify"]["limit"], shown["classify"]["seed"]) == (7, 0)
    assert shown["classify"]["text"] == 'a "quoted"\u00e9 path'
    assert shown["classify"]["thresholds"]["rare"] == 0.25
    assert shown["classify"]["thresholds"]["positional"] == 0.9
    assert shown["rank"]["share_projections"] == "48,96"
    assert shown["diff"]["fail_on"] == ["role-lost", "metric-drop=2%"]
    assert (shown["prune"]["method"], shown["prune"]["fraction"]) == (["fisher"], [0.25, 1.0])
    assert shown["limits"] == tomllib.loads(FILE)["limits"]
    assert f"limit = 7  # from {path}\n" in outcome.stdout
    assert f"rare = 0.25  # from {path}\n" in outcome.stdout
    assert "seed = 0  # default\n" in outcome.stdout


def test_what_is_shown_is_a_config_file_with_the_same_effect(run: Run, tmp_path: Path) -> None:
    path, again = tmp_path / "mine.toml", tmp_path / "again.toml"
    path.write_text(FILE, encoding="utf-8")
    first = run("config", "show", "--config", path).stdout
    again.write_text(first, encoding="utf-8")
    second = run("config", "show", "--config", again)
    assert second.code == 0, second.stderr
    assert tomllib.loads(second.stdout) == tomllib.loads(first)


def test_show_one_table(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    assert set(tomllib.loads(run("config", "show", "depth").stdout)) == {"depth"}
    shown = tomllib.loads(run("config", "show", "limits", "--config", path).stdout)
    assert shown == {"limits": tomllib.loads(FILE)["limits"]}
    assert "no limit is set" in run("config", "show", "limits").stdout


def test_settings_of_other_commands(tmp_path: Path) -> None:
    """What ``report`` asks for."""
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    here = context()
    assert settings.options_by_command(here)["depth"]["length"].default == 128
    assert settings.given(here, "classify") == {}
    settings.read_settings(path, here)
    assert settings.given(here, "classify") == {
        "limit": 7,
        "text": Path('a "quoted"\u00e9 path'),
        "thresholds": {"rare": 0.25},
    }
    assert settings.given(here, "validate") == {}
    assert settings.limits(here).numbers == {"min_positional": 1}


def test_help_is_light(spawn: Run) -> None:
    code = (
        "import sys; sys.argv = ['headscope', *sys.argv[1:]]\n"
        "from headscope.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'pandas', 'matplotlib', 'scipy', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    for arguments in (("diff", "--help"), ("config", "--help"), ("config", "show", "--help")):
        outcome = spawn("-c", code, *arguments)
        assert outcome.stdout.splitlines()[-1] == "[]", arguments
        assert "Example" in outcome.stdout
