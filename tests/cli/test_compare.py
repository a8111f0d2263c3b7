"""``headscope compare``: planted numbers in every format, what differs is said, hostile files."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from result_files import INSIGHTS, changed, read, write
from tiny_models import tiny_bert

import headscope
from headscope.results import SECTIONS, to_json
from headscope.show.view import view_of
from headscope.verdicts.reading import read_results

Run = Callable[..., Any]
HOSTILE = "</td><script>alert(1)</script>|x\x1b[31m\n@org/team [a](http://e.vil) \u202e\ud800"
COSINE = "cosine with all scores symmetric"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a tiny model, measured on as little as will do."""
    base = tmp_path_factory.mktemp("compare")
    model = headscope.load(str(tiny_bert(base / "model")))
    plain: Any = {"validate": False}
    few: Any = {"sentences": 2, "alone": False, **plain}
    results = {
        "explain": headscope.explain(model, "the cat sat on the mat", **plain),
        "classify": headscope.classify(model, limit=20, **plain),
        "rank": headscope.rank(model, fresh=False, control_seeds=2, **plain),
        "spectrum": headscope.spectrum(model, length=16, sequences=4, **plain),
        "depth": headscope.depth(model, length=16, sequences=4, control=False, **plain),
        "flow": headscope.flow(model, limit=20, control=False, **plain),
        "linear": headscope.linear(model, control=False, **few),
        "symmetric": headscope.symmetric(model, **few),
        "prune": headscope.prune(
            model,
            methods=["magnitude", "random"],
            repairs=["none"],
            fractions=[0.5],
            limit=8,
            calibration_limit=8,
            roles=False,
            ablation=False,
            **plain,
        ),
    }
    (base / "a").mkdir()
    for name, result in results.items():
        (base / "a" / f"{name}.json").write_text(to_json(result))
    write(base / "a" / "insights.json", INSIGHTS)
    return base / "a"


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


def plant(folder: Path, name: str, *place: Any, to: Any) -> None:
    path = folder / f"{name}.json"
    write(path, changed(read(path), *place, to=to))


def row_of(found: Any, what: str) -> Any:
    (row,) = [row for row in found["rows"] if row["what"] == what]
    return row


# --- the table -----------------------------------------------------------------------------------


def test_numbers_stand_side_by_side_in_every_format(
    first: Path, second: Path, run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    human = run("compare", first, second, "-o", out)
    assert (human.code, human.stderr) == (0, "")
    paths = (str(first), str(tmp_path))  # as long as they are
    lines = [line for line in human.stdout.splitlines() if not any(p in line for p in paths)]
    assert all(len(line) <= 80 for line in lines)
    assert "B org/other (" in " ".join(human.stdout.split())
    text = "0.250 [0.125, 0.375]"
    assert text in human.stdout
    found = read(out / "compare.json")
    mine, other = row_of(found, COSINE)["cells"]
    assert other["number"] == {"value": 0.25, "low": 0.125, "high": 0.375}
    assert (other["text"], other["control"]) == (text, mine["control"])
    own = read(first / "symmetric.json")["whole"]["symmetric"]["cosine"]
    assert mine["number"] == own
    lines = list(csv.DictReader(io.StringIO((out / "compare.csv").read_text())))
    (line,) = [row for row in lines if row["what"] == COSINE and row["report"] == "B"]
    assert (line["model"], line["value"], line["low"], line["high"]) == (
        *("org/other", "0.25", "0.125", "0.375"),
    )
    assert f"| symmetric | {COSINE} | " in (out / "compare.md").read_text()
    assert f"<td>{text}<br>" in (out / "compare.html").read_text()
    for format in ("json", "csv", "md", "html"):
        printed = run("compare", first, second, "--format", format).stdout
        assert printed == (out / f"compare.{format}").read_text()


def test_every_section_has_its_rows(first: Path, second: Path, run: Run) -> None:
    """Those that its view says, in the order of a report, with the words of the view."""
    found = json.loads(run("compare", first, second, "--format", "json").stdout)
    results = read_results(first)
    expected = [
        (name, row.what, row.text)
        for name, result in results.sections.items()
        for row in (*view_of(name).compared(result), *view_of(name).key_numbers(result))
    ]
    assert [(r["section"], r["what"], r["cells"][0]["text"]) for r in found["rows"]] == expected
    assert {row["section"] for row in found["rows"]} == set(SECTIONS) - {"validate", "transfer"}
    known = [cell["number"] for row in found["rows"] for cell in row["cells"]]
    assert sum(number["low"] is not None for number in known) >= 10
    assert all(n["low"] <= n["value"] <= n["high"] for n in known if n["low"] is not None)


def test_roles_and_verdicts_are_counted(first: Path, second: Path, run: Run) -> None:
    plant(second, "classify", "heads", 0, "roles", to=["self"])
    plant(second, "classify", "heads", 1, "roles", to=["self", "special"])
    plant(second, "insights", "insights", 1, "verdict", to="holds")
    found = json.loads(run("compare", first, second, "--format", "json").stdout)
    heads = read(second / "classify.json")["heads"]
    n = sum("self" in head["roles"] for head in heads)
    cell = row_of(found, "self heads")["cells"][1]
    assert (cell["number"]["value"], cell["text"]) == (n, f"{n} of 8 ({n / 8:.0%})")
    assert [cell["text"] for cell in row_of(found, "7. collapse")["cells"]] == ["mixed", "holds"]


def test_many_reports_each_have_a_name_of_their_own(first: Path, run: Run) -> None:
    found = json.loads(run("compare", *[first / "rank.json"] * 28, "--format", "json").stdout)
    labels = [report["label"] for report in found["reports"]]
    assert labels[:2] + labels[25:] == ["A", "B", "Z", "AA", "AB"]
    human = run("compare", *[first / "rank.json"] * 7).stdout
    assert len(re.findall(r"^rank ", human, re.MULTILINE)) == 3


def test_a_section_that_one_lacks(first: Path, second: Path, run: Run) -> None:
    (second / "depth.json").unlink()
    found = json.loads(run("compare", second, first, "--format", "json").stdout)
    assert [report["missing"] for report in found["reports"]] == [["depth"], []]
    cells = [row["cells"] for row in found["rows"] if row["section"] == "depth"]
    assert cells
    assert all(mine is None and other is not None for mine, other in cells)


# --- what differs --------------------------------------------------------------------------------


def test_what_was_measured_alike_is_said_to_be(first: Path, second: Path, run: Run) -> None:
    human = run("compare", first, second).stdout
    assert "schema, data, seeds and settings are the same" in " ".join(human.split())


def test_other_data_seeds_and_schemas_are_said_first(
    first: Path, second: Path, run: Run, tmp_path: Path
) -> None:
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


# --- what cannot be compared ---------------------------------------------------------------------


@pytest.mark.parametrize("given", [0, 1])
def test_fewer_than_two(given: int, first: Path, run: Run) -> None:
    outcome = run("compare", *[first] * given)
    assert outcome.code == 2
    assert "REPORT" in outcome.stderr
    assert outcome.stdout == ""


def test_nothing_in_common(first: Path, run: Run) -> None:
    outcome = run("compare", first / "rank.json", first / "depth.json")
    assert outcome.code == 1
    assert "nothing in common to compare: " in outcome.stderr
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("spectrum", ("controls",), {}),
        ("depth", ("variants", "full"), []),
        ("symmetric", ("whole",), {}),
        ("prune", ("curves", 0, "points", -1, "ci"), [1.0, 2.0, 3.0]),
    ],
)
def test_a_file_whose_parts_do_not_fit_together(
    name: str, place: tuple[Any, ...], value: Any, first: Path, second: Path, run: Run
) -> None:
    plant(second, name, *place, to=value)
    outcome = run("compare", first, second)
    assert (outcome.code, outcome.stdout) == (1, "")
    assert outcome.stderr.count("\n") == 1
    assert f"({name}) is damaged" in outcome.stderr


def test_strings_of_reports_are_inert(first: Path, second: Path, run: Run, tmp_path: Path) -> None:
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
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    note = (out / "compare.md").read_text()
    assert "<script>" not in note
    assert "@org" not in note
    assert "](http" not in note
