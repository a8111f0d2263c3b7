"""``headscope compare`` and ``diff``: planted numbers, what differs is said, hostile files."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from outcomes import Ended, read_rows, refused
from result_files import changed, make_results, plant, read, write
from tiny_models import tiny_bert

from headscope.reports.reading import read_results
from headscope.reports.registry import SECTIONS
from headscope.show.cells import tidy
from headscope.show.view import view_of

HOSTILE = "</td><script>alert(1)</script>|x\x1b[31m\n@org/team [a](http://e.vil) \u202e\ud800"
COSINE = "cosine with all scores symmetric"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("compare")
    return make_results(tiny_bert(base / "model"), base / "a")


@pytest.fixture
def second(first: Path, tmp_path: Path) -> Path:
    """A copy that says it is of another model, and whose cosine is known."""
    folder = Path(shutil.copytree(first, tmp_path / "b"))
    for path in folder.glob("*.json"):
        document = read(path)
        if document.get("provenance"):
            write(path, changed(document, "provenance", "model", "id", to="org/other"))
    cosine = {"value": 0.25, "low": 0.125, "high": 0.375}
    plant(folder, "symmetric", "whole", "symmetric", "cosine", to=cosine)
    return folder


def row_of(comparison: Any, name: str) -> Any:
    (row,) = [row for row in comparison["rows"] if row["what"] == name]
    return row


def test_numbers_stand_side_by_side_in_every_format(first, second, run, tmp_path):
    out = tmp_path / "out"
    human = run("compare", first, second, "-o", out)
    assert (human.code, human.stderr) == (0, "")
    assert "B org/other (" in human.flat
    assert "schema, data, seeds and settings are the same" in human.flat
    text = "0.250 [0.125, 0.375]"
    assert text in human.stdout

    first_cell, second_cell = row_of(read(out / "compare.json"), COSINE)["cells"]
    assert second_cell["number"] == {"value": 0.25, "low": 0.125, "high": 0.375}
    assert (second_cell["text"], second_cell["control"]) == (text, first_cell["control"])
    assert first_cell["number"] == read(first / "symmetric.json")["whole"]["symmetric"]["cosine"]

    rows = read_rows((out / "compare.csv").read_text())
    (line,) = [row for row in rows if row["what"] == COSINE and row["report"] == "B"]
    assert line["model"] == "org/other"
    assert (line["value"], line["low"], line["high"]) == ("0.25", "0.125", "0.375")
    assert f"| symmetric | {COSINE} | " in (out / "compare.md").read_text()
    assert f"<td>{tidy(text)}<br>" in (out / "compare.html").read_text()
    for format in ("json", "csv", "md", "html"):
        printed = run("compare", first, second, "--format", format).stdout
        assert printed == (out / f"compare.{format}").read_text()


def test_every_section_has_the_rows_of_its_view_in_the_order_of_a_report(first, second, run):
    comparison = run("compare", first, second, "--format", "json").json
    expected: list[tuple[str, str, str]] = []
    for section, result in read_results(first).sections.items():
        view = view_of(section)
        numbers = [*view.compared(result), *view.key_numbers(result)]
        expected += [(section, number.what, number.text) for number in numbers]
    rows = comparison["rows"]
    assert [(row["section"], row["what"], row["cells"][0]["text"]) for row in rows] == expected
    assert {row["section"] for row in rows} == set(SECTIONS) - {"validate", "transfer"}

    numbers = [row["cells"][0]["number"] for row in rows]
    known = [number for number in numbers if number["low"] is not None]
    assert len(known) >= 5
    assert all(number["low"] <= number["value"] <= number["high"] for number in known)


def test_roles_verdicts_and_what_one_lacks(first, second, run):
    plant(second, "classify", "heads", 0, "roles", to=["self"])
    plant(second, "classify", "heads", 1, "roles", to=["self", "special"])
    plant(second, "insights", "insights", 1, "verdict", to="holds")
    (second / "depth.json").unlink()
    comparison = run("compare", first, second, "--format", "json").json
    heads = read(second / "classify.json")["heads"]
    n_self = len([head for head in heads if "self" in head["roles"]])
    cell = row_of(comparison, "self heads")["cells"][1]
    assert cell["number"]["value"] == n_self
    assert cell["text"] == f"{n_self} of 8 ({n_self / 8:.0%})"
    collapse = row_of(comparison, "7. collapse")
    assert [cell["text"] for cell in collapse["cells"]] == ["mixed", "holds"]
    assert [report["missing"] for report in comparison["reports"]] == [[], ["depth"]]
    depth = [row["cells"] for row in comparison["rows"] if row["section"] == "depth"]
    assert depth
    for first_cell, second_cell in depth:
        assert first_cell is not None
        assert second_cell is None


def test_other_data_seeds_and_schemas_are_said_first(first, second, run, tmp_path):
    third = Path(shutil.copytree(second, tmp_path / "c"))
    plant(second, "rank", "provenance", "seed", to=7)
    plant(third, "depth", "provenance", "data", to={"name": "wiki.txt", "sha256": "f" * 64})
    plant(third, "flow", "schema", to=1)
    out = run("compare", first, second, third, "--format", "md").stdout
    before = out.partition("| section |")[0]
    assert "* **DIFFERENT SCHEMA (flow)**: A, B: 2; C: 1" in before
    assert re.search(
        r"\* \*\*DIFFERENT DATA \(depth\)\*\*: A, B: .*; C: wiki\.txt \(sha256 f{8}\)", before
    )
    assert "* **Setting seed (rank)**: A, C: 0; B: 7" in before
    assert "other" not in before.partition("DIFFERENT")[2]  # other models are the point


def test_a_file_whose_parts_do_not_fit_together(first, second, run):
    for name, path, value in (
        ("spectrum", ("controls",), {}),
        ("prune", ("curves", 0, "points", 2, "value"), [1.0, 2.0, 3.0]),
    ):
        file = second / f"{name}.json"
        intact = file.read_bytes()
        plant(second, name, *path, to=value)
        refused(run("compare", first, second), f"({name}) is damaged")
        file.write_bytes(intact)


def test_strings_of_reports_are_inert(first, second, run, tmp_path):
    plant(second, "rank", "provenance", "model", "id", to=HOSTILE)
    plant(second, "rank", "provenance", "model", "family", to=HOSTILE)
    plant(second, "insights", "insights", 0, "claim", to=HOSTILE)
    for path in second.glob("*.json"):
        if path.stem not in ("rank", "insights"):
            path.unlink()
    out = tmp_path / "out"
    human = run("compare", first, second, "-o", out)
    assert human.code == 0
    assert "\x1b[31m" not in human.stdout
    assert "\u202e" not in human.stdout
    page = (out / "compare.html").read_text()
    note = (out / "compare.md").read_text()
    assert page.count("<script") == 2  # the data, and the page's own
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    for words in ("<script>", "@org", "](http"):
        assert words not in note


@pytest.fixture
def new(first: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(first, tmp_path / "new"))


@pytest.fixture
def old(first: Path, tmp_path: Path) -> Path:
    """A copy with a role that the new results do not have."""
    folder = Path(shutil.copytree(first, tmp_path / "old"))
    plant(folder, "classify", "heads", 5, "roles", to=["self"])
    return folder


@pytest.mark.parametrize(
    ("format", "rules"), [("human", ()), ("md", ("--fail-on", "any,metric-drop=0"))]
)
def test_equal_results_print_nothing(format, rules, first, new, run):
    for path in new.glob("*.json"):
        plant(new, path.stem, "provenance", "created", to="2031")
    assert run("diff", first, new, "--format", format, *rules) == Ended(0, "", "")


def test_rules_that_fire_exit_with_3(old, new, run, tmp_path):
    outcome = run("diff", old, new, "--fail-on", "role-lost", "--fail-on", "metric-drop=0.05")
    assert outcome.code == 3
    assert outcome.stderr == "headscope: role-lost: 1 head lost a role: L1H1 (-self)\n"
    assert "role-lost" in outcome.stdout
    gained = run("diff", new, old, "--fail-on", "role-lost")
    assert (gained.code, gained.stderr) == (0, "")
    path = tmp_path / "diff.toml"
    path.write_text('[diff]\nfail_on = ["role-lost"]\nformat = "md"\n')
    outcome = run("diff", old, new, "--config", path)
    assert outcome.code == 3
    assert outcome.stdout.startswith("### What changed")


def test_the_reasons_of_all_rules_that_fired_are_printed(first, new, run):
    plant(new, "prune", "baseline", "value", "value", to=0.2)
    plant(new, "depth", "validation", "passed", to=False)
    outcome = run("diff", first, new, "--fail-on", "metric-drop=0.05,validation", "--quiet")
    assert outcome.code == 3
    assert "metric-drop=0.05: worse: unpruned model cosine 1 -> 0.2" in outcome.stderr
    assert "validation: " in outcome.stderr
    assert "depth: validation FAILED" in outcome.stderr


def test_a_rule_on_equal_results_fires_where_they_are_not_valid(new, run):
    plant(new, "rank", "validation", "passed", to=None)
    rank = new / "rank.json"
    outcome = run("diff", rank, rank, "--fail-on", "validation")
    assert outcome.code == 3
    assert "rank: not validated" in outcome.stderr


def test_a_rule_without_anything_to_compare_is_named_and_does_not_fire(new, run):
    rank = new / "rank.json"
    outcome = run("diff", rank, rank, "--fail-on", "role-changed")
    assert (outcome.code, outcome.stdout) == (0, "")
    assert "role-changed had nothing to compare" in outcome.stderr
    assert run("diff", rank, rank, "--fail-on", "role-changed", "-q") == Ended(0, "", "")


def test_rules_are_held_against_every_report_after_the_first(first, old, new, run, tmp_path):
    """``diff`` says of two what ``compare`` says of each, and both end with 3 when a rule fires."""
    rule = ("--fail-on", "role-lost")
    outcome = run("compare", old, first, new, *rule, "--format", "json", "-o", tmp_path / "out")
    assert outcome.code == 3
    said = "role-lost: 1 head lost a role: L1H1 (-self)"
    assert outcome.stderr == f"headscope: {first}: {said}; {new}: {said}\n"
    alone = [run("diff", old, other, *rule, "--format", "json") for other in (first, new)]
    assert json.loads(outcome.stdout)["changes"] == [json.loads(one.stdout) for one in alone]
    page = run("diff", old, new, *rule, "--format", "md").stdout
    assert (tmp_path / "out" / "compare.md").read_text().endswith(page)
    assert "1 head lost a role" in run("compare", old, new, *rule).flat


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{dir}", "{dir}/../model"), "holds no results"),
        (("{dir}", "{dir}/../model/config.json"), "no result of headscope"),
        (("{dir}", "{dir}", "--tolerance", "nan"), "tolerance"),
    ],
)
def test_known_failures(arguments, words, first, run, tmp_path):
    words_of_command = [item.format(dir=first) for item in arguments]
    refused(run("diff", *words_of_command, "-o", tmp_path / "out"), words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", ["human", "md"])
def test_hostile_strings_do_nothing(format, first, new, run):
    for path in (("provenance", "model", "id"), ("provenance", "dtype"), ("heads", 0, "primary")):
        plant(new, "classify", *path, to=HOSTILE)
    plant(new, "classify", "heads", 1, "roles", to=[HOSTILE, "self"])
    plant(new, "classify", "provenance", "model", "weights_sha256", to=HOSTILE)
    plant(new, "insights", "insights", 0, "verdict", to=HOSTILE)
    rules = ("--fail-on", "role-changed") if format == "human" else ()
    outcome = run("diff", first, new, "--format", format, *rules)
    assert outcome.code == (3 if rules else 0)
    for text in (outcome.stderr, outcome.stdout):
        assert "\x1b" not in text
        assert "\u202e" not in text
    if format == "md":
        assert "<" not in re.sub("</?(?:details|summary)>", "", outcome.stdout)
        rows = [line for line in outcome.stdout.splitlines() if line.startswith("|")]
        assert {row.count("|") for row in rows} <= {3, 5, 6, 7}
        assert not re.search(r"@org|http://e|\]\(", outcome.stdout)


def test_the_baseline_may_be_the_folder_that_is_written(run, model, tmp_path):
    out = tmp_path / "out"
    path = tmp_path / "limits.toml"
    few = ("--only", "classify", "-q", "-o", out, "--config", path)
    path.write_text(
        f"[limits]\nbaseline = '{out}'\nfail_on = ['role-changed', 'setting-changed']\n"
        "[classify]\nablate = false\nprefix_matching = false\n"
    )
    refused(run("report", model, *few), str(out))
    assert not out.exists()
    assert run("classify", model, "--limit", 8, "-o", out).code == 0
    assert run("report", model, "--limit", 8, *few).code == 0
    outcome = run("report", model, "--limit", 16, *few)
    assert outcome.code == 3
    assert re.search(r"setting-changed against .*\bsentences \d+ -> \d+", outcome.stderr, re.S)
