"""What commands print and write when all goes well, and when a gate fails."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import headscope.pipeline.classify.run
from headscope import __version__
from headscope.cli.app import main
from headscope.errors import CheckpointError

Run = Callable[..., Any]

COMMANDS = (
    *("classify", "depth", "flow", "insights", "prune", "rank", "report", "spectrum", "transfer"),
    "validate",
)
#: (form, head, relation) of each word; the two sentences have pieces, punctuation and a subtype.
TREES = [
    [
        ("The", 2, "det"),
        ("zebra", 3, "nsubj"),
        ("saw", 0, "root"),
        ("a", 6, "det"),
        ("big", 6, "amod"),
        ("house", 3, "obj"),
        (".", 3, "punct"),
    ],
    [
        ("He", 3, "nsubj:pass"),
        ("was", 3, "aux:pass"),
        ("bitten", 0, "root"),
        ("by", 6, "case"),
        ("the", 6, "det"),
        ("wombat", 3, "obl:agent"),
        ("!", 3, "punct"),
    ],
]
RELATIONS = {rel.partition(":")[0] for tree in TREES for _, _, rel in tree if rel != "root"}
OFFSETS = [str(r) for r in range(-5, 6) if r]


@pytest.fixture(scope="session")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten times the two sentences."""
    lines: list[str] = []
    for tree in TREES * 10:
        for i, (form, head, relation) in enumerate(tree, start=1):
            lines.append("\t".join([str(i), form, *"____", str(head), relation, "_", "_"]))
        lines.append("")
    path = tmp_path_factory.mktemp("data") / "en_tiny-ud-test.conllu"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("The zebra saw a big house.\n\nHe wasn't bitten; the wombat was!\n" * 5)
    return path


def strict_json(text: str) -> Any:
    """One JSON document, without NaN and infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in the JSON")

    return json.loads(text, parse_constant=refuse)


def without_created(text: str) -> str:
    shortened, n = re.subn(r'"created": "[^"]*"', '"created": ""', text)
    assert n == 1
    return shortened


# --- help and version -------------------------------------------------------------------------


def test_help_of_the_root(run: Run) -> None:
    outcome = run("--help")
    assert (outcome.code, outcome.stderr) == (0, "")
    assert all(command in outcome.stdout for command in COMMANDS)
    assert "Example" in outcome.stdout
    assert "headscope classify demo" in outcome.stdout


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_commands(command: str, flag: str, run: Run) -> None:
    outcome = run(command, flag)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert "Example" in outcome.stdout
    assert f"headscope {command} demo" in outcome.stdout


def test_version(run: Run) -> None:
    outcome = run("--version")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, f"headscope {__version__}\n", "")


def test_no_arguments_show_the_help(run: Run) -> None:
    outcome = run()
    assert outcome.code == 2
    assert "classify" in outcome.stdout + outcome.stderr


@pytest.mark.parametrize(
    "arguments", [("--help",), ("classify", "--help"), ("spectrum", "-h"), ("--version",)]
)
def test_help_imports_nothing_heavy(arguments: tuple[str, ...], spawn: Run) -> None:
    program = (
        "import sys\n"
        "from headscope.cli.app import main\n"
        f"sys.argv = ['headscope', *{list(arguments)!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as stopped:\n    assert not stopped.code\n"
        "heavy = {'torch', 'transformers', 'pandas', 'matplotlib', 'scipy', 'numpy', 'wordfreq'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)))\n"
    )
    outcome = spawn("-c", program)
    assert outcome.stderr.strip() == ""
    assert outcome.stdout


# --- validate ---------------------------------------------------------------------------------


def test_validate_for_people(run: Run, model: Path) -> None:
    outcome = run("validate", model)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert "PASSED" in outcome.stdout
    assert max(map(len, outcome.stdout.splitlines())) <= 80


def test_validate_json(run: Run, model: Path) -> None:
    outcome = run("validate", model, "--format", "json")
    assert (outcome.code, outcome.stderr) == (0, "")
    result = strict_json(outcome.stdout)
    assert result["passed"] is True
    assert result["reasons"] == []
    assert [check["layer"] for check in result["layers"]] == [0, 1]
    for check in result["layers"]:
        assert set(check) == {
            "stack",
            "layer",
            "calls",
            "max_abs_pattern",
            "max_abs_out",
            "mean_abs_pattern",
            "rounding_pattern",
            "rounding_out",
            "scale",
            "scale_error",
            "rounding_z",
            "z_scale",
            "z_scale_error",
        }
        assert 0 <= check["rounding_z"] <= result["tolerance"]["rounding"]
        assert abs(check["z_scale"] - 1) < result["tolerance"]["scale"]
        assert 0 <= check["rounding_pattern"] <= result["tolerance"]["rounding"]
        assert abs(check["scale"] - 1) < result["tolerance"]["scale"] == 1e-3
        assert (check["stack"], check["calls"]) == ("encoder", 1)
        assert 0 <= check["max_abs_pattern"] <= result["tolerance"]["pattern"] == 1e-5
        assert 0 <= check["max_abs_out"] <= result["tolerance"]["out"]
    for name in ("max_abs_hidden_eager", "max_abs_hidden_sdpa"):
        assert 0 <= result[name] <= result["tolerance"]["hidden"] == 1e-4
    assert result["padded"] > 0
    assert [probe["name"] for probe in result["probes"]] == ["right-padded", "unpadded"]
    assert result["provenance"]["model"]["id"] == str(model)
    assert result["provenance"]["model"]["weights"] == "file"


def test_validate_csv(run: Run, model: Path) -> None:
    outcome = run("validate", model, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(outcome.stdout)))
    assert [(row["stack"], row["layer"], row["calls"]) for row in rows] == [
        ("encoder", "0", "1"),
        ("encoder", "1", "1"),
    ]
    assert all(float(row["max_abs_pattern"]) < 1e-5 for row in rows)


@pytest.mark.parametrize("format", ["human", "json", "csv"])
def test_a_failed_certificate_exits_with_3(format: str, run: Run, unknown: Path) -> None:
    outcome = run("validate", unknown, "--format", format)
    assert outcome.code == 3
    assert outcome.stderr.startswith("headscope: validation failed: headscope knows no")
    assert outcome.stderr.count("\n") == 1
    if format == "json":
        result = strict_json(outcome.stdout)
        assert result["passed"] is False
        assert [check["calls"] for check in result["layers"]] == [0, 0]
        assert result["reasons"]
    elif format == "human":
        assert "FAILED" in outcome.stdout


def test_classify_refuses_what_fails_validation(run: Run, unknown: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = run("classify", unknown, "--limit", 2, "-o", out)
    assert (outcome.code, outcome.stdout) == (3, "")
    assert outcome.stderr.startswith("headscope: ")
    assert outcome.stderr.count("\n") == 1
    assert "fails validation" in outcome.stderr
    assert not out.exists()


def test_no_message_but_ours_on_stderr(spawn: Run, model: Path, unknown: Path) -> None:
    """In a process of its own, where libraries' loggers write to the real stderr."""
    start = "from headscope.cli.app import main; main()"
    passed = spawn("-c", start, "validate", model, "--format", "csv")
    assert (passed.code, passed.stderr) == (0, "")
    failed = spawn("-c", start, "validate", unknown, "--format", "csv")
    assert failed.code == 3
    assert failed.stderr.count("\n") == 1


# --- classify: JSON ---------------------------------------------------------------------------


@pytest.fixture
def result(run: Run, model: Path, treebank: Path) -> dict[str, Any]:
    outcome = run("classify", model, "--treebank", treebank, "--format", "json")
    assert (outcome.code, outcome.stderr) == (0, "")
    found: dict[str, Any] = strict_json(outcome.stdout)
    return found


def test_json_fields(result: dict[str, Any], model: Path, treebank: Path) -> None:
    assert {"schema", "provenance", "validation", "corpus", "heads", "control"} <= set(result)
    assert result["schema"] == 2
    assert result["control"]["swapped"] == {"labels": 0, "heads": 0}
    assert result["control"]["heads"] is None
    assert "50 trials in each half" in result["untestable"]["syntactic"]
    assert "20 tokens" in result["untestable"]["broad"]
    validation = result["validation"]
    fields = {"passed", "max_abs_hidden", "max_abs_pattern", "calls", "layers"}
    assert set(validation) == fields
    assert (validation["passed"], validation["calls"], validation["layers"]) == (True, 2, 2)
    corpus = result["corpus"]
    assert (corpus["sentences"], corpus["skipped"]) == (20, 0)
    assert corpus["queries"] > 20 * 7
    assert corpus["language"] == "en"
    assert corpus["frequencies"].startswith("wordfreq ")


def test_provenance(result: dict[str, Any], model: Path, treebank: Path) -> None:
    found = result["provenance"]
    assert {"headscope", "torch", "transformers", "command", "created", "seed"} <= set(found)
    assert (found["dtype"], found["seed"]) == ("float32", 0)
    assert found["device"].partition(":")[0] in ("cpu", "cuda")
    assert found["model"]["id"] == str(model)
    assert (found["model"]["n_layers"], found["model"]["n_heads"]) == (2, 4)
    assert re.fullmatch("[0-9a-f]{64}", found["model"]["weights_sha256"])
    assert found["data"]["name"] == str(treebank)
    assert re.fullmatch("[0-9a-f]{64}", found["data"]["sha256"])
    assert found["command"].startswith("headscope classify ")


def test_every_head_is_there(result: dict[str, Any]) -> None:
    places = [(head["layer"], head["head"]) for head in result["heads"]]
    assert places == [(layer, head) for layer in range(2) for head in range(4)]
    for head in result["heads"]:
        assert {"primary", "roles", "labels"} <= set(head)
        assert {label["role"] for label in head["labels"]} == set(head["roles"])
        for name in ("confidence", "special_mass", "punctuation_mass"):
            assert 0 <= head[name] <= 1
        assert head["entropy"] > 0


def test_positional_fields(result: dict[str, Any]) -> None:
    for head in result["heads"]:
        positional = head["positional"]
        assert list(positional["rates"]) == list(positional["mass"]) == OFFSETS
        rates = {offset: rate for offset, rate in positional["rates"].items() if rate is not None}
        assert positional["score"] == max(rates.values()) == rates[str(positional["offset"])]


def test_syntactic_fields(result: dict[str, Any]) -> None:
    edges = [(rel.partition(":")[0]) for tree in TREES for _, _, rel in tree if rel != "root"]
    expected = {(relation, way) for relation in RELATIONS for way in ("dep->head", "head->dep")}
    for head in result["heads"]:
        scores = head["syntactic"]
        found = [(score["relation"], score["direction"]) for score in scores]
        assert len(found) == len(set(found))
        assert set(found) == expected
        for score in scores:
            assert {"accuracy", "baseline", "baseline_offset", "trials"} <= set(score)
            assert 0 <= score["accuracy"] <= 1
            assert 0 < score["baseline"] <= 1
            if score["direction"] == "dep->head":
                assert score["trials"] == 10 * edges.count(score["relation"])


def test_rare_fields(result: dict[str, Any]) -> None:
    for head in result["heads"]:
        rare = head["rare"]
        assert {"rate", "two_rarest", "chance", "queries"} <= set(rare)
        assert rare["queries"] == 20 * 6  # zebra and wombat are the rarest
        assert 0 <= rare["rate"] <= rare["two_rarest"] <= 1
        assert rare["chance"] == pytest.approx(1 / 6)


def test_plain_text_has_no_syntactic_roles(run: Run, model: Path, text: Path) -> None:
    arguments = ("classify", model, "--text", text)
    result = strict_json(run(*arguments, "--format", "json").stdout)
    assert all(head["syntactic"] == [] for head in result["heads"])
    assert (result["corpus"]["sentences"], result["corpus"]["trees"]) == (10, False)
    assert "the corpus itself" in result["corpus"]["frequencies"]
    human = run(*arguments)
    assert human.code == 0
    assert "No syntactic roles: plain text has no gold trees" in human.stdout


def test_limit(run: Run, model: Path, treebank: Path) -> None:
    arguments = ("classify", model, "--treebank", treebank, "--format", "json")
    assert strict_json(run(*arguments, "--limit", 3).stdout)["corpus"]["sentences"] == 3
    assert strict_json(run(*arguments, "--limit", 99).stdout)["corpus"]["sentences"] == 20


def test_no_validate_is_recorded(run: Run, model: Path, text: Path) -> None:
    arguments = ("classify", model, "--text", text, "--no-validate")
    result = strict_json(run(*arguments, "--format", "json").stdout)
    assert result["validation"]["passed"] is None
    assert "not validated" in run(*arguments).stdout


def test_control(run: Run, model: Path, text: Path) -> None:
    arguments = ("classify", model, "--text", text, "--control", "--seed", 7)
    result = strict_json(run(*arguments, "--format", "json").stdout)
    control = result["control"]
    assert (control["seed"], control["heads"], control["syntactic"]) == (7, 8, 0)


def test_frequencies_of_the_user(run: Run, model: Path, text: Path, tmp_path: Path) -> None:
    path = tmp_path / "counts.tsv"
    path.write_text("the\t9\nzebra\t1\n")
    outcome = run(
        "classify",
        model,
        "--text",
        text,
        "--frequencies",
        path,
        "--language",
        "en",
        "--format",
        "json",
    )
    assert strict_json(outcome.stdout)["corpus"]["frequencies"] == f"file {path}"


# --- classify: CSV and tables -----------------------------------------------------------------


def test_csv(run: Run, model: Path, treebank: Path) -> None:
    outcome = run("classify", model, "--treebank", treebank, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(outcome.stdout)))
    assert [(row["layer"], row["head"]) for row in rows] == [
        (str(layer), str(head)) for layer in range(2) for head in range(4)
    ]
    known = [row["best_relation"].split()[0] for row in rows if row["best_relation"]]
    assert set(known) <= set(RELATIONS)


@pytest.mark.parametrize("extra", [(), ("--control",), ("--threshold", "positional=0.2")])
def test_tables_fit_into_80_columns(
    extra: tuple[str, ...], run: Run, model: Path, treebank: Path
) -> None:
    outcome = run("classify", model, "--treebank", treebank, *extra)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert max(map(len, outcome.stdout.splitlines())) <= 80
    assert "Of 8 heads" in outcome.stdout
    assert "20 sentences, 0 skipped" in " ".join(outcome.stdout.split())
    assert "Controls:" in outcome.stdout


def test_thresholds_change_labels(run: Run, model: Path, treebank: Path) -> None:
    arguments = ("classify", model, "--treebank", treebank, "--format", "json")
    lenient = ("--threshold", "positional=0.2")
    before = strict_json(run(*arguments).stdout)
    after = strict_json(run(*arguments, *lenient).stdout)
    assert not any("positional" in head["roles"] for head in before["heads"])
    assert any("positional" in head["roles"] for head in after["heads"])
    thresholds = before["thresholds"]["positional"], after["thresholds"]["positional"]
    assert thresholds == (0.9, 0.2)


# --- config -----------------------------------------------------------------------------------


def test_config_sets_options_and_flags_win(
    run: Run, model: Path, treebank: Path, tmp_path: Path
) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(
        f"""
        [classify]
        treebank = '{treebank}'
        limit = 4
        no-validate = true
        format = "json"
        seed = 5
        [classify.thresholds]
        positional = 0.25
        broad_relative = 0.5
        [validate]
        format = "csv"
        """
    )
    from_file = strict_json(run("classify", model, "--config", path).stdout)
    assert (from_file["corpus"]["name"], from_file["corpus"]["sentences"]) == (str(treebank), 4)
    assert from_file["validation"]["passed"] is None
    assert from_file["provenance"]["seed"] == 5
    assert from_file["thresholds"]["positional"] == 0.25
    flags = ("--limit", 2, "--seed", 6, "--threshold", "positional=0.5")
    from_flags = strict_json(run("classify", model, *flags, "--config", path).stdout)
    assert from_flags["corpus"]["sentences"] == 2
    assert from_flags["provenance"]["seed"] == 6
    assert from_flags["thresholds"]["positional"] == 0.5
    assert from_flags["thresholds"]["broad_relative"] == 0.5
    assert run("validate", "--config", path, model).stdout.startswith("stack,layer")


def test_config_may_name_the_model(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(f"[validate]\nmodel = '{model}'\n")
    assert run("validate", "--config", path).code == 0


# --- the same again ---------------------------------------------------------------------------


def test_same_command_same_bytes(run: Run, model: Path, treebank: Path) -> None:
    arguments = ("classify", model, "--treebank", treebank, "--control", "--format", "json")
    first, second = (without_created(run(*arguments).stdout) for _ in range(2))
    assert first == second


FILES = {"classify.json", "heads.csv", "relations.csv"} | {
    f"{figure}.{kind}" for figure in ("roles", "relations") for kind in ("png", "svg")
}


@pytest.mark.parametrize("spelling", ["-o {}", "--output {}", "--output={}", "-o{}"])
def test_files_and_their_bytes(
    spelling: str, run: Run, model: Path, treebank: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        output = spelling.format(folder).split()
        outcome = run("classify", model, "--treebank", treebank, "--format", "json", *output)
        assert (outcome.code, outcome.stderr) == (0, "")
        assert {path.name for path in folder.iterdir()} == FILES
        assert (folder / "classify.json").read_text() == outcome.stdout
        assert (folder / "roles.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / "roles.svg").read_text().startswith("<?xml")
    for one, other in pairwise(folders):
        for name in FILES - {"classify.json"}:
            assert (one / name).read_bytes() == (other / name).read_bytes(), name
        documents = [without_created((f / "classify.json").read_text()) for f in (one, other)]
        assert documents[0] == documents[1]


def test_relations_csv_has_every_relation(
    run: Run, model: Path, treebank: Path, tmp_path: Path
) -> None:
    run("classify", model, "--treebank", treebank, "-o", tmp_path)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "relations.csv").read_text())))
    assert len(rows) == 8 * 2 * len(RELATIONS)


def test_files_of_plain_text(run: Run, model: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("classify", model, "--text", text, "-o", out).code == 0
    names = {path.name for path in out.iterdir()}
    assert names == {"classify.json", "heads.csv", "roles.png", "roles.svg"}


def test_a_folder_used_before_is_replaced(
    run: Run, model: Path, treebank: Path, text: Path, tmp_path: Path
) -> None:
    """Files of an earlier run must not be taken for files of this one."""
    run("classify", model, "--treebank", treebank, "-o", tmp_path / "out")
    run("classify", model, "--text", text, "-o", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "classify.json").read_text())["corpus"]["trees"] is False
    assert not (tmp_path / "out" / "relations.csv").exists()


# --- interrupted ------------------------------------------------------------------------------


def test_interrupted(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(headscope.pipeline.classify.run, "found_in", interrupted)
    outcome = run("classify", model, "-o", tmp_path / "out")
    assert (outcome.code, outcome.stdout) == (130, "")
    assert "Traceback" not in outcome.stderr
    assert outcome.stderr == "headscope: interrupted\n"
    assert not (tmp_path / "out").exists()


#: An interrupt that Python drops, as it does where a library's ``__del__`` runs.
_DROPPED = """
import time
import headscope.cli.app

class Cleaned:
    def __del__(self):
        raise {error}

def run():
    Cleaned()
    for _ in range(50):
        time.sleep(0.1)

headscope.cli.app.main = run
from headscope.__main__ import main
main()
"""


def test_an_interrupt_that_a_library_drops_still_ends_the_run(spawn: Run) -> None:
    outcome = spawn("-c", _DROPPED.format(error="KeyboardInterrupt"))
    assert (outcome.code, outcome.stdout, outcome.stderr) == (130, "", "")


def test_another_error_in_cleaning_up_is_shown(spawn: Run) -> None:
    outcome = spawn("-c", _DROPPED.format(error="OSError").replace("range(50)", "range(0)"))
    assert outcome.code == 0
    assert "OSError" in outcome.stderr


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["headscope", "validate", str(tmp_path), "--debug"])
    with pytest.raises(CheckpointError, match=r"config\.json"):
        main()
