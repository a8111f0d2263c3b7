"""What every command keeps to: one row for each, run once per format; the properties look at that.

A command of the list without a row fails. What is special to a command is in its own file.
"""

import functools
import os
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import typer.main
from outcomes import Command, Ended, fits, read_rows, refused, strict_json
from processes import Run, cold
from result_files import changed, read, write

from headscope import __version__
from headscope.cli.app import app, click_command
from headscope.cli.settings import options_by_command
from headscope.commands import COMMANDS, SECTIONS
from headscope.core.serialise import from_dict, to_dict, to_json
from headscope.reports.list import KINDS, entries_of
from headscope.show.view import view_of

PAINTS = True
ROOT = Path(__file__).parents[2]
GROUP = typer.main.get_command(app)
OPTIONS = options_by_command(typer.Context(GROUP))
WITH_SCHEMA = [row.name for row in COMMANDS.values() if row.result_class]


@dataclass(frozen=True)
class Row:
    """The smallest quick options of a command, and what it writes with -o.

    ``pictures`` are written as SVG, of one command also as PNG; ``table`` is what --format csv
    prints.
    """

    options: dict[str, Any]
    table: str = ""
    files: str = ""
    pictures: str = ""

    def flags(self) -> list[object]:
        """The options as words of a command line."""
        words: list[object] = []
        for name, value in self.options.items():
            flag = "--" + name.replace("_", "-")
            if name in ("sentence", "first", "second"):
                words.append(value)
            elif value is True:
                words.append(flag)
            elif value is False:
                words.append(flag.replace("--", "--no-"))
            else:
                values = value if isinstance(value, list) else [value]
                words += [word for one in values for word in (flag, one)]
        return words

    def names(self, command: str) -> set[str]:
        kinds = _figures(command)[1].split(",")
        pictures = {f"{name}.{kind}" for name in self.pictures.split() for kind in kinds}
        return {f"{command}.json", self.table, *self.files.split(), *pictures}


def _figures(command: str) -> tuple[str, str]:
    return "--figures", "png,svg" if command == "explain" else "svg"


SMALL = {"length": 16, "sequences": 4}
FEW = {"sentences": 3, "limit": 20}
#: Commands that measure a model: one for each section of a report.
ROWS = {
    "validate": Row({}),
    "explain": Row(
        {"sentence": "the cat sat", "layer": 1, "head": 2},
        "explain.csv",
        "explain.html explain-heads.csv",
        "explain",
    ),
    "classify": Row({"limit": 20}, "heads.csv", "relations.csv", "roles"),
    "attribute": Row(
        {"first": "the cat sat", "second": "a dog ran", "tokens": True, "curves": True},
        "attribute.csv",
        "attribute_parts.csv attribute_tokens.csv attribute_pairs.csv attribute_curves.csv "
        "attribute.html",
        "attribute_removed attribute_direct attribute_heads attribute_curves",
    ),
    "rank": Row(
        {"fresh": False, "control_seeds": 2},
        "rank.csv",
        "",
        "cumulative_qk cumulative_ov effective_rank",
    ),
    "spectrum": Row(SMALL, "spectrum.csv", "", "spectrum_curves spectrum_map"),
    "depth": Row(SMALL, "depth.csv", "protected.csv", "depth protected"),
    "flow": Row({"limit": 24}, "flow.csv", "", "flow"),
    "linear": Row(
        FEW,
        "linear.csv",
        "linear_forms.csv linear_memory.csv linear_correlations.csv",
        "linear_coherence",
    ),
    "symmetric": Row(FEW, "symmetric.csv", "symmetric_sets.csv", "symmetric_curves"),
    "transfer": Row(
        {
            **{"sizes": "16", "steps": 2, "seeds": 1, "spread_seeds": 2, "search": False},
            **{"variants": "head,layernorm", "random": "head", "train_limit": 60, "test_limit": 20},
        },
        "transfer.csv",
        "transfer_curves.csv transfer_differences.csv transfer_rates.csv transfer_runs.csv",
        "transfer",
    ),
    "prune": Row(
        {
            **{"method": ["magnitude"], "repair": ["none"], "fraction": [0.5], "limit": 8},
            **{"calibration_limit": 8},
        },
        "curves.csv",
        "scores.csv",
        "curves scores",
    ),
    "insights": Row(
        {"skip": "classify,spectrum,depth,flow,transfer,linear,symmetric"}, "insights.csv"
    ),
}
each = pytest.mark.parametrize("name", ROWS)


@dataclass(frozen=True)
class Kept:
    """A run, and the folder that it wrote."""

    ended: Ended
    folder: Path

    def content(self) -> dict[str, str]:
        """What is written as text and is the same for equal runs; pages quote the command."""
        files = (p for p in self.folder.iterdir() if p.suffix in (".json", ".csv", ".txt"))
        return {p.name: timeless(p.read_text()) for p in files}


def timeless(text: str) -> str:
    """Leave out what may differ between two equal runs: when, and the words of the command."""
    return re.sub(r'"(created|command)": "[^"]*"', "", text)


@pytest.fixture(scope="module")
def outcome(
    model: Path, tmp_path_factory: pytest.TempPathFactory, run: Command
) -> Callable[[str], Kept]:
    """Run a command once: as JSON, with a folder if it writes one."""

    @functools.cache
    def call(name: str) -> Kept:
        folder = tmp_path_factory.mktemp(name) / "made" / "out"
        words = [name, model, *ROWS[name].flags(), "--format", "json", "--quiet", "--verbose"]
        words += ["-o", folder, *_figures(name)] if "output" in OPTIONS[name] else []
        return Kept(run(*words), folder)

    return call


def _toml(value: Any) -> str:
    return repr(value).lower() if isinstance(value, bool) else repr(value)


@each
def test_json_is_strict_complete_and_reads_back(name, outcome, model):
    data = outcome(name).ended.json
    kind = COMMANDS[name].result
    result = from_dict(kind, data)
    assert strict_json(to_json(result)) == data
    assert from_dict(kind, to_dict(result)) == result
    assert data["schema"] == 2
    provenance = data["provenance"]
    assert {"headscope", "torch", "transformers", "command", "created", "seed"} <= set(provenance)
    assert provenance["command"].startswith(f"headscope {name} ")
    assert provenance["device"].partition(":")[0] in ("cpu", "cuda")
    assert provenance["dtype"] == ("float64" if name == "depth" else "float32")
    assert provenance["model"]["id"] == str(model)
    assert (provenance["model"]["n_layers"], provenance["model"]["n_heads"]) == (2, 4)
    assert re.fullmatch("[0-9a-f]{64}", provenance["model"]["weights_sha256"])
    if name != "validate":
        assert data["validation"]["passed"] is True
    if "heads" in data and isinstance(data["heads"], list):
        places = [(head["layer"], head["head"]) for head in data["heads"]]
        assert places == [(layer, head) for layer in range(2) for head in range(4)]
    table = view_of(name).csv(result)
    rows = read_rows(table)
    assert rows
    assert all(None not in row and None not in row.values() for row in rows)
    assert not re.search(r"(^|,)-?(nan|inf)(,|$)", table, re.MULTILINE | re.IGNORECASE)
    if ROWS[name].table:
        assert table == (outcome(name).folder / ROWS[name].table).read_text()


@each
def test_a_second_run_from_a_file_is_for_people_and_replaces_the_folder(
    name, outcome, run, model, unpainted
):
    """All options come from a file whose format a flag overrules; what is not ours stays."""
    first_run = outcome(name)
    row = ROWS[name]
    path = first_run.folder.parent.parent / "own.toml"
    lines = [f"{key} = {_toml(value)}" for key, value in row.options.items()]
    path.write_text("\n".join([f"[{name}]", f"model = '{model}'", 'format = "json"', *lines]))
    words = [name, "--config", path, "--format", "human", "--quiet"]
    # Where no state is left, resuming is beginning; the state that it makes is taken away too.
    words += ["--resume"] if "resume" in OPTIONS[name] else []
    before = {}
    if "output" in OPTIONS[name]:
        before = first_run.content()
        assert {path.name for path in first_run.folder.iterdir()} == row.names(name)
        assert (first_run.folder / f"{name}.json").read_text() == first_run.ended.stdout
        for file in first_run.folder.iterdir():
            start = {".png": b"\x89PNG", ".svg": b"<?xml"}.get(file.suffix, b"")
            assert file.read_bytes().startswith(start)
        (first_run.folder / "notes.txt").write_text("mine")
        words += [f"-o{first_run.folder}", *_figures(name)]
    again = run(*words)
    assert (again.code, again.stderr) == (0, "")
    fits(again.stdout)
    assert not re.search(r"\bnan\b", again.stdout)
    assert name != "validate" or "PASSED" in again.flat
    if before:
        after = first_run.content()
        assert after.pop("notes.txt") == "mine"
        (first_run.folder / "notes.txt").unlink()
        assert after == before
        assert {path.name for path in first_run.folder.iterdir()} == row.names(name)


@each
def test_models_that_cannot_be_measured(name, run, unknown, tmp_path, monkeypatch):
    out = tmp_path / "a" / "out"
    folder = ("-o", out) if "output" in OPTIONS[name] else ()
    rest = (*ROWS[name].flags(), *folder)
    refused(run(name, "/nowhere/at/all", *rest), "/nowhere/at/all")
    if name != "validate":
        refused(run(name, unknown, *rest), "fails validation", "headscope validate", code=3)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headscope.session.opening.load", interrupted)
    assert run(name, "demo", *rest) == Ended(130, "", "headscope: interrupted\n")
    assert list(tmp_path.iterdir()) == []


#: Commands that measure nothing, with words that would do; {old} and {new} are results.
OTHERS: dict[str, tuple[str, ...]] = {
    "compare": ("{old}", "{new}"),
    "diff": ("{old}", "{new}"),
    "list": ("methods",),
    "schema": ("rank",),
    "report": ("{model}", "--only", "validate,rank", "--quiet"),
    "config": ("show", "rank"),
    "shrink": ("{model}", "--runtime", "torch", "--limit", "20"),
    "export": ("{model}", "onnx"),
    "serve": ("{model}", "--port", "0"),
}


def test_every_command_has_a_row():
    assert {*ROWS, *OTHERS} == {*COMMANDS}
    assert set(ROWS) == set(SECTIONS)


@pytest.fixture(scope="module")
def result_files(
    outcome: Callable[[str], Kept], model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """The words of commands that read results of others."""
    folder = tmp_path_factory.mktemp("results")
    old = folder / "old"
    new = folder / "new"
    shutil.copytree(outcome("rank").folder, old)
    shutil.copytree(old, new)
    data = read(old / "rank.json")
    write(new / "rank.json", changed(data, "heads", 0, "ov", "stable_rank", to=1.0))
    places = {"old": old, "new": new, "model": model}
    return {name: [word.format(**places) for word in words] for name, words in OTHERS.items()}


def test_the_root(run):
    shown = run("--help")
    assert (shown.code, shown.stderr) == (0, "")
    assert all(re.search(rf"^│ {name} ", shown.stdout, re.M) for name in COMMANDS)
    assert "headscope classify demo" in shown.stdout
    assert run("--version") == Ended(0, f"headscope {__version__}\n", "")
    nothing = run()
    assert nothing.code == 2
    assert "classify" in nothing.stdout + nothing.stderr
    refused(run("clasify", "m"), "clasify", "classify", code=2)


@pytest.mark.parametrize("name", ["diff", "list"])
def test_every_format_of_commands_that_measure_nothing(name, result_files, run, tmp_path):
    """The format of a file is overruled; test_compare.py has those of compare."""
    words = [name, *result_files[name]]
    out = tmp_path / "out"
    words += ["-o", str(out)] if name == "diff" else []
    human = run(*words)
    assert (human.code, human.stderr) == (0, "")
    lines = human.stdout.splitlines()  # those with paths are as long as they are
    paths = (*result_files["diff"], str(out))
    fits("\n".join(line for line in lines if not any(path in line for path in paths)))
    (tmp_path / "own.toml").write_text(f'[{name}]\nformat = "human"\n')
    for form in OPTIONS[name]["format"].choices:
        shown = run(*words, "--format", form, "--config", tmp_path / "own.toml")
        assert (shown.code, shown.stderr) == (0, ""), form
        if form == "json":
            strict_json(shown.stdout)
            written = (out / "diff.json").read_text() if name == "diff" else shown.stdout
            assert timeless(written) == timeless(shown.stdout)
        elif form == "csv":
            assert all(None not in row and None not in row.values() for row in shown.rows)


def options_in(shown: str) -> set[str]:
    """The long names of the options that a help lists."""
    rows = re.findall(r"^│ (--[\w,-]+)", shown, re.MULTILINE)
    return {name.removeprefix("--") for row in rows for name in row.split(",")[:1]} - {"help"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_fits_a_screen_and_its_examples_are_understood(name, run, monkeypatch):
    monkeypatch.chdir(ROOT)  # where the config files are that examples name
    for variable in ("COLUMNS", "TERMINAL_WIDTH"):
        monkeypatch.setenv(variable, "80")
    short = run(name, "-h")
    assert (short.code, short.stderr) == (0, "")
    assert short == run(name, "--help")
    fits(short.stdout)
    assert len(short.stdout.splitlines()) <= 60
    assert "Example" in short.stdout
    example = f"headscope {name} demo" if name in ROWS else f"headscope {name}"
    assert example in short.flat
    if name == "config":
        return
    _, _, examples = re.sub(r"\x1b\[[\d;]*m", "", short.stdout).rpartition("╯\n")
    lines = (line.strip().removeprefix("Example: ") for line in examples.splitlines())
    for line in (line for line in lines if line not in ("", "Examples:")):
        assert line.startswith(f"headscope {name}"), f"a line was broken: {line}"
        bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", line.replace("reports/*", ""))
        assert not set(bare) & set("<>|&;()$`*?[]#~!{}"), f"a shell reads more than words: {line}"
        _, command, *rest = shlex.split(line)
        assert command == name
        click_command(name).make_context(name, rest, parent=typer.Context(GROUP))
    all_options = {
        param.opts[0].removeprefix("--")
        for param in click_command(name).params
        if param.opts[0].startswith("--")
    }
    shown = options_in(short.stdout)
    assert len(shown) <= 10
    assert shown <= options_in(run(name, "--help-all").stdout) == all_options
    hint = f"--help-all shows {len(all_options - shown)} more options"
    assert shown == all_options or hint in " ".join(short.stdout.replace("│", "").split())


def without(words: list[Any], flag: str) -> list[Any]:
    """Leave out a flag and its value: given twice it would be refused for that."""
    if flag not in words:
        return words
    place = words.index(flag)
    return [*words[:place], *words[place + 2 :]]


@pytest.mark.parametrize("name", COMMANDS)
def test_slips(name, result_files, model, run, tmp_path):
    out = tmp_path / "out"
    options = OPTIONS.get(name, {})
    words = [name, *(result_files[name] if name in OTHERS else [model, *ROWS[name].flags()])]
    if "output" in options:
        words += ["-o", out]
    refused(run(*words, "--nope"), "--nope", code=2)
    if "format" in options:
        refused(run(*words, "--format", "xml"), "--format", "xml", "json", code=2)
    if "model" in options:
        refused(run(name), "MODEL", code=2)
    for option, slip, why in (
        ("dtype", "int8", "float32"),
        ("device", "tpu", "cuda"),
        ("seed", "x", "integer"),
        ("limit", "many", "integer"),
        ("task", "similarty", "Did you mean 'similarity'?"),
    ):
        if option in options:
            once = without(words, f"--{option}")
            refused(run(*once, f"--{option}", slip), f"'--{option}'", why, code=2)
    path = tmp_path / "own.toml"
    if name in OPTIONS:
        path.write_text(f"[{name}]\nformt = 'json'\n")
        near = ["did you mean 'format'?"] if "format" in options else []
        refused(run(*words, "--config", path), str(path), "formt", *near)
    assert not out.exists()


@pytest.mark.parametrize("words", [("--help",), ("config", "show"), ("validate", "{model}")])
def test_nobody_reads_the_output_or_there_is_no_room_for_it(words, model):
    arguments = [word.format(model=model) for word in words]
    reading, writing = os.pipe()
    os.close(reading)
    ended = Run(*arguments, stdout=writing).end()
    os.close(writing)
    assert (ended.code, ended.stderr) == (141, "")
    if Path("/dev/full").exists():
        with open("/dev/full", "w") as full:
            ended = Run(*arguments, stdout=full.fileno()).end()
        assert (ended.code, ended.stderr.count("\n")) == (1, 1)
        assert "the disk is full" in ended.stderr


def test_help_and_what_reads_results_import_nothing_heavy(result_files):
    helps = [(name, "--help") for name in COMMANDS]
    light = [("--version",), ("--help",), ("config", "show", "--help"), ("spectrum", "-h")]
    lists = [("list", kind) for kind in KINDS if kind != "tasks"]
    started = cold(*light, *lists, *helps, ("config", "show"), ("diff", *result_files["diff"]))
    for ended in started:
        assert (ended.code, ended.stderr) == (0, ""), ended
        assert (ended.heavy, ended.sockets) == ([], []), ended
        assert ended.stdout
    assert "ov stable" in started[-1].stdout


def test_the_commands_with_a_schema_are_those_that_print_json(run):
    with_format = {name for name, options in OPTIONS.items() if "format" in options}
    assert set(WITH_SCHEMA) == with_format
    refused(run("schema", "clasify"), "did you mean 'classify'?")


@pytest.mark.parametrize("name", WITH_SCHEMA)
def test_every_command_writes_what_its_schema_says(
    name, outcome, result_files, run, tmp_path, unpainted
):
    if name in ROWS:
        document = outcome(name).ended.json
    else:
        folder = ("-o", tmp_path / "out") if "output" in OPTIONS[name] else ()
        document = run(name, *result_files[name], *folder, "--format", "json").json
    schema = run("schema", name).json
    check = jsonschema.Draft202012Validator(schema)
    assert check.is_valid(document)
    kind = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    missing = [error for error in check.iter_errors({}) if error.validator == "required"]
    assert len(missing) == len(kind["required"])
    spoilt = {
        field: "by hand"
        for field, field_schema in kind["properties"].items()
        if field_schema.get("type") in ("object", "array") and document.get(field)
    }
    wrong = check.iter_errors({**document, **spoilt})
    assert {error.path[0] for error in wrong} == {*spoilt}


DOCS = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))


@pytest.mark.parametrize("kind", KINDS)
def test_the_sources_of_every_entry_are_those_of_the_docs(kind):
    for entry in entries_of(kind).entries:
        page = (ROOT / entry.page).read_text(encoding="utf-8")
        for authors, paper in re.findall(r"(\w[^;]*?\d{4}), (arXiv:[\d.]+\d)", entry.source):
            assert authors in page, (entry.name, authors)
            assert paper in DOCS, (entry.name, paper)
        # A page that does not name an entry cannot say more about it.
        assert kind == "families" or re.search(rf"\b{re.escape(entry.name)}\b", page), entry.name
