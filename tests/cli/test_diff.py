"""``headscope diff`` on the command line: silence, exit codes, formats, revisions."""

import inspect
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from outcomes import refused
from result_files import make_results, plant, read, write
from tiny_models import tiny_bert

from headscope.cli.diff import diff
from headscope.results import to_dict
from headscope.results.validate import ValidationResult
from headscope.verdicts.diff.compare import TOLERANCE
from headscope.verdicts.diff.rules import RULES
from headscope.verdicts.limits import LIMIT_NAMES

HOSTILE = "</td><script>alert(1)</script>|x\x1b[31m\n@org/team [a](http://e.vil) \u202e\ud800"
SILENT = (0, "", "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("diff")
    return make_results(tiny_bert(base / "model"), base / "out")


@pytest.fixture
def new(folder: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(folder, tmp_path / "new"))


@pytest.fixture
def old(folder: Path, tmp_path: Path) -> Path:
    """A copy with a role that the new results do not have."""
    found = Path(shutil.copytree(folder, tmp_path / "old"))
    plant(found, "classify", "heads", 5, "roles", to=["self"])
    return found


def ended(outcome: Any) -> tuple[int, str, str]:
    return outcome.code, outcome.stdout, outcome.stderr


@pytest.mark.parametrize("format", ["human", "json", "md"])
def test_equal_results_print_nothing(format, folder, new, run):
    for path in new.glob("*.json"):
        plant(new, path.stem, "provenance", "created", to="2031")
    for rules in ((), ("--fail-on", "any", "--fail-on", "metric-drop=0")):
        assert ended(run("diff", folder, new, "--format", format, *rules)) == SILENT


def test_runs_of_the_same_and_of_more_sentences_and_other_weights(run, model, tmp_path):
    call = ("classify", model, "--no-validate")
    for name, limit in (
        ("a", 20),
        ("b", 20),
        ("c", 40),
    ):  # 2, 2, 4 are longer than the model allows
        assert run(*call, "--limit", limit, "-o", tmp_path / name).code == 0
    assert ended(run("diff", tmp_path / "a" / "classify.json", tmp_path / "b")) == SILENT
    found = run("diff", tmp_path / "a", tmp_path / "c", "--format", "json").json
    assert [(row["name"], row["old"], row["new"]) for row in found["identity"]] == [
        ("sentences", "18", "36")
    ]
    assert found["within"] > 0
    assert found["schema"] == 2
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


def test_a_lost_role_in_every_format(old, new, run, tmp_path):
    human = run("diff", old, new).stdout
    assert "1 head changed role" in human
    assert re.search(r"L1H1 .* -self", human)
    page = run("diff", old, new, "--format", "md").stdout
    assert page.startswith("### headscope diff\n")
    assert "| L1H1 | none | none | -self |" in page
    found = run("diff", old, new, "--format", "json").json
    row = {"section": "classify", "where": "L1H1", "name": "roles", "gained": []}
    assert found["roles"] == [{**row, "lost": ["self"], "old": "none", "new": "none"}]
    run("diff", old, new, "-o", tmp_path / "out")
    assert (tmp_path / "out" / "diff.md").read_text() == page
    assert read(tmp_path / "out" / "diff.json") == found


def test_what_moved_within_doubt_is_one_sentence(folder, new, run):
    plant(new, "rank", "heads", 0, "ov", "stable_rank", to=lambda v: v * 1.001)
    outcome = run("diff", folder, new)
    assert outcome.code == 0
    assert "1 more number differs, but within" in outcome.stdout
    assert run("diff", folder, new, "--tolerance", 0.0001).stdout.count("ov stable") == 1


def test_rules_that_fire_exit_with_3(folder, old, new, run, tmp_path):
    outcome = run("diff", old, new, "--fail-on", "role-lost", "--fail-on", "metric-drop=0.05")
    assert outcome.code == 3
    assert outcome.stderr == "headscope: role-lost: 1 head lost a role: L1H1 (-self)\n"
    assert "role-lost" in outcome.stdout
    other = run("diff", new, old, "--fail-on", "role-lost")
    assert (other.code, other.stderr) == (0, "")
    path = tmp_path / "limits.toml"
    path.write_text('[diff]\nfail_on = ["role-lost"]\nformat = "md"\n')
    outcome = run("diff", old, new, "--config", path)
    assert outcome.code == 3
    assert outcome.stdout.startswith("### headscope diff")
    plant(new, "prune", "baseline", "value", to=0.2)
    plant(new, "depth", "validation", "passed", to=False)
    outcome = run("diff", folder, new, "--fail-on", "metric-drop=0.05,validation", "--quiet")
    assert outcome.code == 3
    assert "metric-drop=0.05: worse: unpruned model cosine 1 -> 0.2" in outcome.stderr
    assert "validation: " in outcome.stderr
    assert "depth: validation FAILED" in outcome.stderr
    # It fires even where nothing differs; and a rule without anything to look at is noticed.
    plant(new, "rank", "validation", "passed", to=None)
    rank = new / "rank.json"
    outcome = run("diff", rank, rank, "--fail-on", "validation")
    assert outcome.code == 3
    assert "rank: not validated" in outcome.stderr
    outcome = run("diff", rank, rank, "--fail-on", "role-changed")
    assert (outcome.code, outcome.stdout) == (0, "")
    assert "role-changed had nothing to compare" in outcome.stderr
    assert ended(run("diff", rank, rank, "--fail-on", "role-changed", "-q")) == SILENT


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
def test_known_failures(arguments, words, folder, run, tmp_path):
    given = [item.format(dir=folder) for item in arguments]
    refused(run("diff", *given, "-o", tmp_path / "out"), words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", ["human", "json", "md"])
def test_hostile_strings_do_nothing(format, folder, new, run):
    for place in (("provenance", "model", "id"), ("provenance", "dtype"), ("heads", 0, "primary")):
        plant(new, "classify", *place, to=HOSTILE)
    plant(new, "classify", "heads", 1, "roles", to=[HOSTILE, "self"])
    plant(new, "classify", "provenance", "model", "weights_sha256", to=HOSTILE)
    plant(new, "insights", "insights", 0, "verdict", to=HOSTILE)
    call = ("diff", folder, new, "--format", format)
    outcome = run("diff", folder / "classify.json", *call[2:], "--fail-on", "role-changed")
    assert outcome.code == 3
    shown = run(*call).stdout
    for text in (outcome.stderr, shown if format != "json" else ""):
        assert "\x1b" not in text
        assert "\u202e" not in text
    if format == "md":
        assert "<" not in shown
        rows = [line for line in shown.splitlines() if line.startswith("|")]
        assert {row.count("|") for row in rows} <= {3, 5, 6, 7}
        assert not re.search(r"@org|http://e|\]\(", shown)
    if format == "json":
        json.loads(shown)


def test_every_rule_and_limit_is_documented(run):
    docs = Path(__file__).parents[2] / "docs"
    page, config = ((docs / name).read_text() for name in ("diff.md", "config.md"))
    help_text = re.sub(r"[\s│]+", "", run("diff", "--help").stdout)
    for rule in RULES:
        assert f"`{rule}" in page, rule
        assert rule in help_text, rule
    for limit in LIMIT_NAMES:
        assert f"`{limit}" in config, limit
    assert inspect.signature(diff).parameters["tolerance"].default == TOLERANCE


def test_the_baseline_may_be_the_folder_that_is_written(run, model, tmp_path):
    out, path = tmp_path / "out", tmp_path / "limits.toml"
    few = ("--only", "classify", "-q", "-o", out, "--config", path)
    path.write_text(
        f"[limits]\nbaseline = '{out}'\nfail_on = ['role-changed', 'setting-changed']\n"
        "[classify]\nablate = false\nprefix_matching = false\n"
    )
    refused(run("report", model, *few), str(out))
    assert not out.exists()
    assert run("classify", model, "--limit", 20, "-o", out).code == 0
    assert run("report", model, "--limit", 20, *few).code == 0
    outcome = run("report", model, "--limit", 40, *few)
    assert outcome.code == 3
    assert "setting-changed against" in outcome.stderr
    assert "sentences 18 -> 36" in outcome.stderr


# --- revisions ----------------------------------------------------------------------------------


def git(folder: Path, *words: str) -> None:
    told = {f"GIT_{who}_{it}": "t@t" for who in ("AUTHOR", "COMMITTER") for it in ("NAME", "EMAIL")}
    told |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", *words], cwd=folder, check=True, env=os.environ | told)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same certificate in two commits, then one that failed in the working tree's branch."""
    top = tmp_path_factory.mktemp("repository")
    (top / "out").mkdir()
    git(top, "init", "-q", "-b", "main")
    for name, reasons in (("one", ()), ("two", ()), ("three", ("layer 0 differs",))):
        found = ValidationResult(not reasons, (), 0.0, 0.0, {}, reasons)
        write(top / "out" / "validate.json", to_dict(found))
        (top / "note.txt").write_text(name)
        git(top, "add", "-A")
        git(top, "commit", "-q", "-m", name)
        git(top, "tag", name)
    return top


def test_revisions_are_compared_as_folders_are(repository, run):
    out = repository / "out"
    assert ended(run("diff", "--git", "one", "two", out, "--fail-on", "any")) == SILENT
    other = run("diff", out, "--git", "two", "HEAD", "--fail-on", "validation", "--format", "md")
    assert other.code == 3
    assert f"{out}" in other.stdout.splitlines()[2]
    assert "two:" in other.stdout.splitlines()[2]
    assert "validation FAILED" in other.stderr
    back = run("diff", "--git", "HEAD", "two", out / "validate.json", "--fail-on", "validation")
    assert (back.code, back.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("out",), 2, "--git REV1 REV2"),
        (("--git", "one", "two", "out", "out"), 2, "--git compares one PATH with itself"),
        (("--git", "one", "two"), 2, "Missing argument 'OLD'"),
        (("--git", "--output=evil", "two", "out"), 1, "git knows no revision"),
        (("--git", "one", "nowhere", "out"), 1, "git knows no revision 'nowhere'"),
        (("--git", "one", "two", "gone"), 1, "There is no gone in revision one."),
        (("--git", "one", "two", "note.txt"), 1, "one:note.txt is not whole JSON"),
    ],
)
def test_revisions_that_cannot_be_compared(words, code, said, repository, run, monkeypatch):
    monkeypatch.chdir(repository)
    refused(run("diff", *words), said, code=code)
    assert not (repository / "evil").exists()
