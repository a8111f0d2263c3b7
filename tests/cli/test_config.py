"""Config files and flags: strict for every table of every command, shown as they take effect."""

import tomllib
from pathlib import Path

import pytest
import typer
import typer.main
from outcomes import refused

import headscope
from headscope.cli import settings
from headscope.cli.app import app, click_command
from headscope.cli.config import meanings_of
from headscope.cli.flags import arguments_of
from headscope.cli.settings import PACKAGED, section_settings, table_arguments, thresholds_of
from headscope.core.errors import InputError

GROUP = typer.main.get_command(app)
COMMANDS = sorted(set(headscope.commands.COMMANDS) - {"config"})
#: A value of the wrong type for each type of option, and what is said.
WRONG = {
    bool: ('"yes"', "true or false"),
    int: ("2.5", "a whole number"),
    float: ('"1"', "a number"),
    str: ("3", "a string"),
    Path: ("3", "a string"),
}


def refused_file(text: str | bytes, path: Path) -> str:
    """What is said of a file that is refused."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as error:
        settings.read_settings(path, typer.Context(GROUP))
    return str(error.value)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_typers_and_refuses_a_wrong_type(command, tmp_path):
    """Read from signatures here, from typer's own parameters there."""
    options = settings.options_by_command(typer.Context(GROUP))[command]
    path = tmp_path / "s.toml"
    assert set(options) == {param.name for param in click_command(command).params} - {"config"}
    for option in options.values():
        value, words = WRONG[option.kind]
        if option.choices:
            value = '"xyzzy"'
            words = "choose from"
        value = "2.5" if option.takes_number else value
        said = refused_file(f"[{command}]\n{option.name} = {value}\n", path)
        assert f"{path}: [{command}] {option.name}" in said
        assert words in said
    said = refused_file(f"[{command}]\n{option.name}x = {value}\n", path)
    assert f"did you mean '{option.name}'?" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[clasify]\n", "did you mean [classify]?"),
        ("[config]\n", "no command 'config'"),
        ("classify = 3", "[classify]"),
        ("[depth]\nconfig = 'x'", "[depth] has no option 'config'"),
        ("[depth]\nno-validate = true\nno_validate = true", "twice"),
        ("[prune]\nstep = nan", "step must be a number"),
        ("[classify]\ntext = ''", "text must be a string"),
        ("[rank]\nshare_projections = [true]", "list of numbers or strings"),
        ("[classify.thresholds]\nrare = 'x'", "threshold rare is 'x'; give a number"),
        ("[classify.thresholds]\nrarer = 0.5", "[classify] thresholds"),
        ("[classify.thresholds]\nmin_trials = 2.7", "min_trials"),
        ("[limits]\nvalidaton = true", "[limits] has no limit 'validaton'"),
        ("[classify\n", "not valid TOML"),
        (b'[classify]\nlanguage = "\xe9"', "not valid TOML"),
    ],
)
def test_whole_files_are_checked_whatever_runs(text, words, tmp_path):
    assert words in refused_file(text, tmp_path / "s.toml")


@pytest.mark.parametrize("name", PACKAGED)
def test_a_config_that_comes_with_headscope_is_read_by_its_name(name, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_name = run("config", "show", "--config", name).stdout
    by_path = run("config", "show", "--config", PACKAGED[name]).stdout
    assert f"# from {name}\n" in by_name
    assert by_name == by_path.replace(str(PACKAGED[name]), name)


def test_a_file_here_goes_before_a_config_of_its_name(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ci").mkdir()  # a folder, such as the one of a report, is no config file
    assert "limit = 128  # from quick" in run("config", "show", "--config", "quick").stdout
    assert "# from ci" in run("config", "show", "--config", "ci").stdout
    Path("quick").write_text("[depth]\nlength = 33\n")
    assert "length = 33  # from quick" in run("config", "show", "--config", "quick").stdout


@pytest.mark.parametrize("path", ["quik", "configs/quick.toml"])
def test_a_config_that_is_not_there_is_answered_with_the_nearest_name(path, run):
    refused(run("config", "show", "--config", path), "cannot be read", "did you mean 'quick'?")


def test_a_file_is_read_before_anything_runs(run, model, tmp_path):
    refused(run("config", "show", "--config", tmp_path), "cannot be read")
    path = tmp_path / "s.toml"
    path.write_text("[clasify]\n")
    refused(run("validate", "model", "--config", path), str(path), "did you mean [classify]?")
    path.write_text("[classify]\nlimit = 0\n")  # right by its type
    refused(run("classify", model, "--config", path), "0", "1 sentence", code=2)


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


def test_show_without_a_file_is_every_default(run):
    outcome = run("config", "show")
    assert outcome.code == 0
    shown = tomllib.loads(outcome.stdout)
    assert sorted(shown) == COMMANDS
    for command, table in shown.items():
        for param in click_command(command).params:
            default = getattr(param.default, "value", param.default)
            assert table.get(param.name) == default, (command, param.name)
        lines = outcome.stdout.partition(f"[{command}]\n")[2].partition("\n\n")[0].splitlines()
        assert all(line.startswith("# ") or line.endswith("  # default") for line in lines)
    for kind in map(thresholds_of, ("classify", "insights")):  # each has a line above it
        assert {*meanings_of(kind)} == {*kind.__dataclass_fields__}


def test_show_lays_the_file_over_the_defaults(run, tmp_path):
    path = tmp_path / "mine.toml"
    again = tmp_path / "again.toml"
    path.write_text(FILE, encoding="utf-8")
    outcome = run("config", "show", "--config", path)
    shown = tomllib.loads(outcome.stdout)
    assert (shown["classify"]["limit"], shown["classify"]["seed"]) == (7, 0)
    assert shown["classify"]["text"] == 'a "quoted"\u00e9 path'
    thresholds = shown["classify"]["thresholds"]
    assert (thresholds["rare"], thresholds["positional"]) == (0.25, 0.9)
    assert shown["rank"]["share_projections"] == "48,96"
    assert shown["diff"]["fail_on"] == ["role-lost", "metric-drop=2%"]
    assert (shown["prune"]["method"], shown["prune"]["fraction"]) == (["fisher"], [0.25, 1.0])
    assert shown["limits"] == tomllib.loads(FILE)["limits"]
    for line in (
        f"limit = 7  # from {path}\n",
        f"rare = 0.25  # from {path}\n",
        "seed = 0  # default\n",
    ):
        assert line in outcome.stdout
    # What is shown is a config file with the same effect.
    again.write_text(outcome.stdout, encoding="utf-8")
    second = run("config", "show", "--config", again)
    assert second.code == 0, second.stderr
    assert tomllib.loads(second.stdout) == shown
    # One table.
    assert set(tomllib.loads(run("config", "show", "depth").stdout)) == {"depth"}
    limits = run("config", "show", "limits", "--config", path).stdout
    assert tomllib.loads(limits) == {"limits": shown["limits"]}
    assert "no limit is set" in run("config", "show", "limits").stdout


@pytest.mark.parametrize(
    ("command", "values", "expected"),
    [
        ("rank", {"biases": "exclude", "rtol": None}, {"biases": False}),
        ("depth", {"no_validate": True, "log": True, "format": "csv"}, {"validate": False}),
        ("spectrum", {"resume": False, "output": Path("o")}, {"resume": False}),
        (
            "prune",
            {"method": ["fisher"], "repair": ["none"], "keep_roles": "a, b,"},
            {"methods": ["fisher"], "repairs": ["none"], "keep_roles": ["a", "b"]},
        ),
        ("report", {"only": "rank,", "text": Path("t"), "limit": 3}, {"only": ["rank"]}),
        (
            "classify",
            {"thresholds": {"rare": 0.3, "q": 0.1}, "threshold": [" rare = 0.2"]},
            {"thresholds": headscope.Thresholds(rare=0.2, q=0.1)},
        ),
    ],
)
def test_options_become_arguments(command, values, expected):
    assert arguments_of(getattr(headscope, command).options, values) == expected


@pytest.mark.parametrize(
    ("command", "values", "said"),
    [
        ("rank", {"share_projections": "4,x"}, "share_projections cannot be read: '4,x' is not"),
        ("prune", {"keep_roles": ","}, "keep_roles cannot be read: name a role"),
        ("classify", {"text": Path("t"), "treebank": Path("t")}, "does not go with"),
    ],
)
def test_slips_are_told_where_they_stand(command, values, said, run):
    words = [word for name, value in values.items() for word in (f"--{name}", value)]
    flags = [str(word).replace("_", "-") for word in words]
    refused(run(command, "demo", *flags), said.partition(" ")[2], code=2)
    with pytest.raises(InputError) as failure:
        table_arguments(command, values)
    assert f"[{command}] " in str(failure.value)
    assert said in str(failure.value)


def test_sections_take_their_table_and_the_flags(tmp_path):
    text = tmp_path / "a.txt"
    trees = tmp_path / "a.conllu"
    path = tmp_path / "mine.toml"
    text.write_text("the cat\n")
    trees.write_text("1\tcat\t_\t_\t_\t_\t0\troot\t_\t_\n\n")
    path.write_text(
        f"[classify]\ntext = '{text}'\nlanguage = 'en'\noutput = 'o'\ndtype = 'float64'\n"
        "[depth]\ndtype = 'float32'\n[prune]\nlimit = 3\nsave = 'x'\n"
    )
    context = typer.Context(GROUP)
    names = ("validate", "classify", "rank", "depth", "prune")
    settings.read_settings(path, context)
    arguments = section_settings(context, names, {"treebank": None, "text": None, "limit": None})
    assert arguments["classify"].pop("corpus").name == str(text)
    assert arguments == {
        "validate": {},
        "rank": {},
        "classify": {"language": "en"},
        "depth": {"dtype": "float32"},
        "prune": {"limit": 3},
    }
    arguments = section_settings(context, names, {"treebank": trees, "text": text, "limit": 9})
    assert arguments["classify"].pop("corpus").name == str(trees)
    assert arguments["classify"] == {"language": "en", "limit": 9}
    assert arguments["rank"] == {"text": text, "limit": 9}
    assert arguments["depth"] == {"text": text, "dtype": "float32"}
    assert arguments["prune"] == {"limit": 3}
