"""``headscope diff`` on the command line: silence, exit codes, formats, hostile files."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from result_files import changed, make_results, read, write
from tiny_models import tiny_bert

from headscope.cli.diff import diff
from headscope.verdicts.diff.compare import TOLERANCE
from headscope.verdicts.diff.rules import RULES
from headscope.verdicts.limits import LIMIT_NAMES

Run = Callable[..., Any]

HOSTILE = "</td><script>alert(1)</script>|x\x1b[31m\n@org/team [a](http://e.vil) \u202e\ud800"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("diff")
    return make_results(tiny_bert(base / "model"), base / "out")


@pytest.fixture
def new(folder: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(folder, tmp_path / "new"))


def plant(folder: Path, name: str, *place: Any, to: Any) -> None:
    path = folder / f"{name}.json"
    write(path, changed(read(path), *place, to=to))


def lose_a_role(folder: Path, new: Path) -> Path:
    """Plant a role in a copy of the old results that the new ones do not have."""
    old = Path(shutil.copytree(folder, new.parent / "old"))
    plant(old, "classify", "heads", 5, "roles", to=["self"])
    return old


# --- equal --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["human", "json", "md"])
def test_equal_results_print_nothing(format: str, folder: Path, new: Path, run: Run) -> None:
    for path in new.glob("*.json"):
        plant(new, path.stem, "provenance", "created", to="2031")
    every = ("--fail-on", "any", "--fail-on", "metric-drop=0")
    for arguments in ((), every):
        outcome = run("diff", folder, new, "--format", format, *arguments)
        assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "", "")


def test_the_same_run_twice_is_equal(run: Run, model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run("classify", model, "--limit", 20, "-o", tmp_path / name).code == 0
    outcome = run("diff", tmp_path / "a" / "classify.json", tmp_path / "b")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "", "")


# --- different ----------------------------------------------------------------------------------


def test_other_weights_are_said_first(run: Run, tmp_path: Path) -> None:
    """Two real models of the same shape."""
    for seed in (0, 1):
        path = tiny_bert(tmp_path / f"model{seed}", seed=seed)
        run("rank", path, "--no-fresh", "--no-validate", "-o", tmp_path / f"out{seed}")
    outcome = run("diff", tmp_path / "out0", tmp_path / "out1")
    assert outcome.code == 0
    lines = outcome.stdout.splitlines()
    # A long path goes on in the next line.
    first = [line for line in lines if line.startswith(("OLD ", "NEW ", "DIFFERENT "))]
    assert lines[0] == first[0]
    assert [line.partition(" ")[0] for line in first[:3]] == ["OLD", "NEW", "DIFFERENT"]
    assert first[2].startswith("DIFFERENT MODEL: ")
    assert "Rank: numbers beyond interval or tolerance" in lines
    assert all(len(line) <= 80 for line in lines)


def test_more_sentences_of_the_same_treebank(run: Run, model: Path, tmp_path: Path) -> None:
    for limit in (20, 40):  # two and four of them are longer than the model allows
        run("classify", model, "--limit", limit, "-o", tmp_path / str(limit))
    outcome = run("diff", tmp_path / "20", tmp_path / "40", "--format", "json")
    found = json.loads(outcome.stdout)
    assert [(row["name"], row["old"], row["new"]) for row in found["identity"]] == [
        ("sentences", "18", "36")
    ]
    assert found["within"] > 0
    assert found["schema"] == 2


def test_a_lost_role_in_every_format(folder: Path, new: Path, run: Run, tmp_path: Path) -> None:
    old = lose_a_role(folder, new)
    human = run("diff", old, new).stdout
    assert "1 head changed role" in human
    assert re.search(r"L1H1 .* -self", human)
    page = run("diff", old, new, "--format", "md").stdout
    assert page.startswith("### headscope diff\n")
    assert "| L1H1 | none | none | -self |" in page
    found = json.loads(run("diff", old, new, "--format", "json").stdout)
    assert found["roles"] == [
        {
            "section": "classify",
            "where": "L1H1",
            "name": "roles",
            "gained": [],
            "lost": ["self"],
            "old": "none",
            "new": "none",
        }
    ]
    run("diff", old, new, "-o", tmp_path / "out")
    assert (tmp_path / "out" / "diff.md").read_text() == page
    assert read(tmp_path / "out" / "diff.json") == found


def test_what_moved_within_doubt_is_one_sentence(folder: Path, new: Path, run: Run) -> None:
    plant(new, "rank", "heads", 0, "ov", "stable_rank", to=lambda v: v * 1.001)
    outcome = run("diff", folder, new)
    assert outcome.code == 0
    assert "1 more number differs, but within" in outcome.stdout
    assert run("diff", folder, new, "--tolerance", 0.0001).stdout.count("ov stable") == 1


# --- rules --------------------------------------------------------------------------------------


def test_a_rule_that_fires_exits_with_3(folder: Path, new: Path, run: Run) -> None:
    old = lose_a_role(folder, new)
    outcome = run("diff", old, new, "--fail-on", "role-lost", "--fail-on", "metric-drop=0.05")
    assert outcome.code == 3
    assert outcome.stderr == "headscope: role-lost: 1 head lost a role: L1H1 (-self)\n"
    assert "role-lost" in outcome.stdout
    other = run("diff", new, old, "--fail-on", "role-lost")
    assert (other.code, other.stderr) == (0, "")


def test_several_reasons(folder: Path, new: Path, run: Run) -> None:
    plant(new, "prune", "baseline", "value", to=0.2)
    plant(new, "depth", "validation", "passed", to=False)
    outcome = run("diff", folder, new, "--fail-on", "metric-drop=0.05,validation", "--quiet")
    assert outcome.code == 3
    assert "metric-drop=0.05: worse: unpruned model cosine 1 -> 0.2" in outcome.stderr
    assert "validation: " in outcome.stderr
    assert "depth: validation FAILED" in outcome.stderr


def test_validation_fires_even_where_nothing_differs(new: Path, run: Run) -> None:
    plant(new, "rank", "validation", "passed", to=None)
    path = new / "rank.json"
    outcome = run("diff", path, path, "--fail-on", "validation")
    assert outcome.code == 3
    assert "rank: not validated" in outcome.stderr


def test_a_rule_without_anything_to_look_at_is_noticed(folder: Path, run: Run) -> None:
    path = folder / "rank.json"
    outcome = run("diff", path, path, "--fail-on", "role-changed")
    assert (outcome.code, outcome.stdout) == (0, "")
    assert "role-changed had nothing to compare" in outcome.stderr
    assert run("diff", path, path, "--fail-on", "role-changed", "-q").stderr == ""


def test_rules_of_a_config_file(folder: Path, new: Path, run: Run, tmp_path: Path) -> None:
    old = lose_a_role(folder, new)
    path = tmp_path / "limits.toml"
    path.write_text('[diff]\nfail_on = ["role-lost"]\nformat = "md"\n')
    outcome = run("diff", old, new, "--config", path)
    assert outcome.code == 3
    assert outcome.stdout.startswith("### headscope diff")


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{dir}/rank.json", "{dir}/none.json"), "no file or folder"),
        (("{dir}/rank.json", "{dir}/depth.json"), "nothing to compare"),
        (("{dir}", "{dir}/../model"), "holds no results"),
        (("{dir}", "{dir}/../model/config.json"), "no result of headscope"),
        (("{dir}", "{dir}", "--fail-on", "role-chnged"), "did you mean 'role-changed'"),
        (("{dir}", "{dir}", "--tolerance", "-1"), "tolerance"),
        (("{dir}", "{dir}", "--tolerance", "nan"), "tolerance"),
    ],
)
def test_known_failures(arguments: tuple[str, ...], words: str, folder: Path, run: Run) -> None:
    outcome = run("diff", *(item.format(dir=folder) for item in arguments))
    assert outcome.code == 1
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("headscope: ")
    assert words in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_nothing_is_left_behind_by_a_failure(folder: Path, run: Run, tmp_path: Path) -> None:
    assert run("diff", folder, tmp_path / "none", "-o", tmp_path / "out").code == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", ["human", "json", "md"])
def test_hostile_strings_do_nothing(format: str, folder: Path, new: Path, run: Run) -> None:
    for place in (("provenance", "model", "id"), ("provenance", "dtype"), ("heads", 0, "primary")):
        plant(new, "classify", *place, to=HOSTILE)
    plant(new, "classify", "heads", 1, "roles", to=[HOSTILE, "self"])
    plant(new, "classify", "provenance", "model", "weights_sha256", to=HOSTILE)
    plant(new, "insights", "insights", 0, "verdict", to=HOSTILE)
    outcome = run(
        "diff", folder / "classify.json", new, "--format", format, "--fail-on", "role-changed"
    )
    assert outcome.code == 3
    outcome_all = run("diff", folder, new, "--format", format)
    for text in (outcome.stderr, outcome_all.stdout if format != "json" else ""):
        assert "\x1b" not in text
        assert "\u202e" not in text
    if format == "md":
        assert "<" not in outcome_all.stdout
        rows = [line for line in outcome_all.stdout.splitlines() if line.startswith("|")]
        assert {row.count("|") for row in rows} <= {3, 5, 6, 7}
        assert not re.search(r"@org|http://e|\]\(", outcome_all.stdout)
    if format == "json":
        json.loads(outcome_all.stdout)


# --- light --------------------------------------------------------------------------------------


def test_neither_torch_nor_transformers_is_imported(folder: Path, new: Path, spawn: Run) -> None:
    plant(new, "rank", "heads", 0, "ov", "stable_rank", to=1.0)
    code = (
        "import sys; sys.argv = ['headscope', 'diff', *sys.argv[1:]]\n"
        "from headscope.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "heavy = {'torch', 'transformers', 'pandas', 'matplotlib', 'scipy', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    outcome = spawn("-c", code, folder, new)
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout.splitlines()[-1] == "[]"
    assert "ov stable" in outcome.stdout


# --- documented ---------------------------------------------------------------------------------


def test_every_rule_and_limit_is_documented(run: Run) -> None:
    docs = Path(__file__).parents[2] / "docs"
    page, config = ((docs / name).read_text() for name in ("diff.md", "config.md"))
    help_text = re.sub(r"[\s│]+", "", run("diff", "--help").stdout)
    for rule in RULES:
        assert f"`{rule}" in page, rule
        assert rule in help_text, rule
    for limit in LIMIT_NAMES:
        assert f"`{limit}" in config, limit


def test_the_tolerance_of_the_command_is_that_of_the_function() -> None:
    assert inspect.signature(diff).parameters["tolerance"].default == TOLERANCE


# --- limits of a report --------------------------------------------------------------------------


def test_limits_end_a_report_with_3_after_it_was_written(
    run: Run, model: Path, tmp_path: Path
) -> None:
    out, path = tmp_path / "out", tmp_path / "limits.toml"
    few = ("--only", "validate,classify", "--limit", 20, "-q")
    path.write_text("[limits]\nvalidation = true\nmax_without_role = 8\n")
    outcome = run("report", model, "--config", path, "-o", out, *few)
    assert (outcome.code, outcome.stderr) == (0, "")
    path.write_text("[limits]\nmin_positional = 3\nmetric_min = 0.5\n")
    outcome = run("report", model, "--config", path, "-o", tmp_path / "other", *few)
    assert outcome.code == 3
    assert outcome.stderr == (
        "headscope: 2 limits failed: min_positional = 3: 0 heads are positional; metric_min = 0.5: "
        "the report has no result of prune.\n"
    )
    assert (tmp_path / "other" / "report.json").is_file()
    assert run("diff", out, tmp_path / "other").stdout == ""


def test_the_baseline_may_be_the_folder_that_is_written(
    run: Run, model: Path, tmp_path: Path
) -> None:
    out, path = tmp_path / "out", tmp_path / "limits.toml"
    few = ("--only", "classify", "-q", "-o", out, "--config", path)
    path.write_text(
        f"[limits]\nbaseline = '{out}'\nfail_on = ['role-changed', 'setting-changed']\n"
        "[classify]\nablate = false\nprefix_matching = false\n"
    )
    missing = run("report", model, *few)
    assert missing.code == 1
    assert str(out) in missing.stderr
    assert not out.exists()
    assert run("classify", model, "--limit", 20, "-o", out).code == 0
    assert run("report", model, "--limit", 20, *few).code == 0
    outcome = run("report", model, "--limit", 40, *few)
    assert outcome.code == 3
    assert "setting-changed against" in outcome.stderr
    assert "sentences 18 -> 36" in outcome.stderr
