"""``headscope compare``: planted numbers in every format, what differs is said, hostile files."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from outcomes import read_rows, refused
from result_files import changed, make_results, plant, read, write
from tiny_models import tiny_bert

from headscope.results import SECTIONS
from headscope.show.view import view_of
from headscope.verdicts.reading import read_results

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
        if (found := read(path)).get("provenance"):
            write(path, changed(found, "provenance", "model", "id", to="org/other"))
    cosine = {"value": 0.25, "low": 0.125, "high": 0.375}
    plant(folder, "symmetric", "whole", "symmetric", "cosine", to=cosine)
    return folder


def row_of(found: Any, what: str) -> Any:
    (row,) = [row for row in found["rows"] if row["what"] == what]
    return row


def test_numbers_stand_side_by_side_in_every_format(first, second, run, tmp_path):
    out = tmp_path / "out"
    human = run("compare", first, second, "-o", out)
    assert (human.code, human.stderr) == (0, "")
    assert "B org/other (" in human.flat
    assert "schema, data, seeds and settings are the same" in human.flat
    text = "0.250 [0.125, 0.375]"
    assert text in human.stdout
    found = read(out / "compare.json")
    mine, other = row_of(found, COSINE)["cells"]
    assert other["number"] == {"value": 0.25, "low": 0.125, "high": 0.375}
    assert (other["text"], other["control"]) == (text, mine["control"])
    assert mine["number"] == read(first / "symmetric.json")["whole"]["symmetric"]["cosine"]
    rows = read_rows((out / "compare.csv").read_text())
    (line,) = [row for row in rows if row["what"] == COSINE and row["report"] == "B"]
    assert [line[name] for name in ("model", "value", "low", "high")] == [
        *("org/other", "0.25", "0.125", "0.375"),
    ]
    assert f"| symmetric | {COSINE} | " in (out / "compare.md").read_text()
    assert f"<td>{text}<br>" in (out / "compare.html").read_text()
    for format in ("json", "csv", "md", "html"):
        printed = run("compare", first, second, "--format", format).stdout
        assert printed == (out / f"compare.{format}").read_text()
    # Every section has its rows: those of its view, in the order of a report.
    results = read_results(first)
    assert [(r["section"], r["what"], r["cells"][0]["text"]) for r in found["rows"]] == [
        (name, row.what, row.text)
        for name, result in results.sections.items()
        for row in (*view_of(name).compared(result), *view_of(name).key_numbers(result))
    ]
    assert {row["section"] for row in found["rows"]} == set(SECTIONS) - {"validate", "transfer"}
    known = [cell["number"] for row in found["rows"] for cell in row["cells"]]
    assert sum(number["low"] is not None for number in known) >= 10
    assert all(n["low"] <= n["value"] <= n["high"] for n in known if n["low"] is not None)


def test_roles_verdicts_and_what_one_lacks(first, second, run):
    plant(second, "classify", "heads", 0, "roles", to=["self"])
    plant(second, "classify", "heads", 1, "roles", to=["self", "special"])
    plant(second, "insights", "insights", 1, "verdict", to="holds")
    (second / "depth.json").unlink()
    found = run("compare", first, second, "--format", "json").json
    heads = read(second / "classify.json")["heads"]
    n = sum("self" in head["roles"] for head in heads)
    cell = row_of(found, "self heads")["cells"][1]
    assert (cell["number"]["value"], cell["text"]) == (n, f"{n} of 8 ({n / 8:.0%})")
    assert [cell["text"] for cell in row_of(found, "7. collapse")["cells"]] == ["mixed", "holds"]
    assert [report["missing"] for report in found["reports"]] == [[], ["depth"]]
    cells = [row["cells"] for row in found["rows"] if row["section"] == "depth"]
    assert cells
    assert all(mine is not None and other is None for mine, other in cells)


def test_many_reports_each_have_a_name_of_their_own(first, run):
    found = run("compare", *[first / "rank.json"] * 28, "--format", "json").json
    labels = [report["label"] for report in found["reports"]]
    assert labels[:2] + labels[25:] == ["A", "B", "Z", "AA", "AB"]
    human = run("compare", *[first / "rank.json"] * 7).stdout
    assert len(re.findall(r"^rank ", human, re.MULTILINE)) == 3


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


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("spectrum", ("controls",), {}),
        ("prune", ("curves", 0, "points", 2, "ci"), [1.0, 2.0, 3.0]),
    ],
)
def test_a_file_whose_parts_do_not_fit_together(name, place, value, first, second, run):
    plant(second, name, *place, to=value)
    refused(run("compare", first, second), f"({name}) is damaged")


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
    page, note = ((out / f"compare.{kind}").read_text() for kind in ("html", "md"))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    for words in ("<script>", "@org", "](http"):
        assert words not in note
