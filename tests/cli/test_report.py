"""``headscope report`` and ``headscope insights`` from the command line, on a tiny model."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

QUICK = """
[classify]
ablate_limit = 4
limit = 24
[rank]
limit = 8
[spectrum]
length = 16
sequences = 4
[depth]
length = 16
sequences = 4
[flow]
limit = 24
[transfer]
sizes = [16]
variants = ["head", "layernorm"]
random = []
seeds = 2
steps = 4
train_limit = 100
test_limit = 40
[linear]
sentences = 4
[symmetric]
sentences = 4
alone = false
[prune]
step = 0.5
ablation = false
repair = ["none"]
limit = 16
calibration_limit = 16
"""


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    path = tmp_path / "quick.toml"
    path.write_text(QUICK)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Every file's bytes, without what ``created`` says."""
    made = re.compile(rb'"created": "[^"]*"')
    return {path.name: made.sub(b"", path.read_bytes()) for path in sorted(folder.iterdir())}


def test_report_is_whole_and_the_same_twice(
    run: Run, model: Path, quick: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    first = run("report", model, "--config", quick, "-o", out)
    assert first.code == 0, first.stderr
    document = json.loads((out / "report.json").read_text())
    sections = ("validate", "classify", "rank", "spectrum", "depth", "flow", "transfer", "prune")
    sections += ("insights",)
    assert all(document[name] for name in (*sections, "linear", "symmetric"))
    assert document["settings"]["classify"] == {"limit": 24, "ablate_limit": 4}
    before = contents(out)
    assert {"report.html", "report.md", "heads.csv", "roles.png", "curves.csv"} <= set(before)
    assert not [name for name in before if name.startswith(".")]

    again = run("report", model, "--config", quick, "-o", out)
    assert "Unchanged, taken from" in again.stdout
    assert "prune, insights" in " ".join(again.stdout.split())
    assert contents(out) == before

    fresh = run("report", model, "--config", quick, "-o", out, "--fresh")
    assert "Unchanged" not in fresh.stdout
    assert contents(out) == before


def test_sections_are_the_commands_own_json(
    run: Run, model: Path, quick: Path, tmp_path: Path
) -> None:
    run("report", model, "--config", quick, "--only", "depth", "-o", tmp_path / "r")
    section = json.loads((tmp_path / "r" / "report.json").read_text())["depth"]
    own = json.loads(run("depth", model, "--config", quick, "--format", "json").stdout)
    for result in (section, own):
        result["provenance"].pop("created")
        result["provenance"].pop("command")
    assert section == own


def test_only_what_changed_is_measured_again(
    run: Run, model: Path, quick: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    arguments = ("report", model, "--config", quick, "--skip", "prune,transfer,insights", "-o", out)
    run(*arguments)
    quick.write_text(QUICK.replace("[depth]\nlength = 16", "[depth]\nlength = 12"))
    (out / "rank.csv").write_text("spoilt")
    done = run(*arguments)
    taken = " ".join(done.stdout.split()).partition("taken from")[2]
    assert "validate, explain, classify, rank, spectrum, flow, linear" in taken
    assert "depth" not in taken
    assert json.loads((out / "report.json").read_text())["depth"]["length"] == 12
    assert (out / "rank.csv").read_text() != "spoilt"


def test_a_section_that_was_tampered_with_is_measured_again(
    run: Run, model: Path, quick: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    arguments = ("report", model, "--config", quick, "--only", "classify", "-o", out)
    run(*arguments)
    honest = (out / "report.json").read_text()
    document = json.loads(honest)
    document["classify"]["heads"][0]["entropy"] = 99.0
    (out / "report.json").write_text(json.dumps(document))
    run(*arguments)
    assert json.loads((out / "report.json").read_text())["classify"] != document["classify"]


def test_files_of_sections_that_are_gone_go_and_others_stay(
    run: Run, model: Path, quick: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    run("report", model, "--config", quick, "--only", "classify,depth", "-o", out)
    (out / "notes.txt").write_text("mine")
    run("report", model, "--config", quick, "--only", "classify", "-o", out)
    assert not (out / "depth.csv").exists()
    assert (out / "heads.csv").exists()
    assert (out / "notes.txt").read_text() == "mine"
    assert json.loads((out / "report.json").read_text())["depth"] is None


def test_step_summary_gets_the_markdown(
    run: Run, model: Path, quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    out = tmp_path / "report"
    run("report", model, "--config", quick, "--only", "validate,classify", "-o", out)
    assert summary.read_text() == "before\n" + (out / "report.md").read_text()


def test_a_limit_fails_after_the_report_is_written(
    run: Run, model: Path, quick: Path, tmp_path: Path
) -> None:
    quick.write_text(QUICK + "[limits]\nmin_positional = 99\n")
    out = tmp_path / "report"
    done = run("report", model, "--config", quick, "--only", "classify", "-o", out)
    assert done.code == 3
    assert "min_positional" in done.stderr
    assert (out / "report.html").is_file()


def test_a_model_that_is_not_known_gets_its_certificate_and_nothing_else(
    run: Run, unknown: Path, quick: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    done = run("report", unknown, "--config", quick, "-o", out)
    assert done.code == 3
    assert "fails validation" in done.stderr
    document = json.loads((out / "report.json").read_text())
    assert document["validate"]["passed"] is False
    assert document["classify"] is None
    assert "Validation FAILED" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "clasify"), "no section 'clasify'"),
        (("--only", "depth", "--skip", "depth"), "No section is left"),
        (("--draws", "5"), "39 or more"),
    ],
)
def test_slips_are_said_and_nothing_is_left(
    run: Run, model: Path, quick: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    out = tmp_path / "report"
    skip = () if "--only" in arguments else ("--only", "classify,insights")
    done = run("report", model, "--config", quick, "-o", out, *skip, *arguments)
    assert done.code == 1
    assert said in done.stderr
    assert not out.exists()


def test_hostile_folder_name(run: Run, model: Path, quick: Path, tmp_path: Path) -> None:
    name = "a|b <img src=x onerror=alert(1)> @octocat \u202ertl"
    shutil.copytree(model, tmp_path / name)
    out = tmp_path / "report"
    done = run("report", tmp_path / name, "--config", quick, "--only", "classify", "-o", out)
    assert done.code == 0, done.stderr
    page, text = ((out / f"report.{kind}").read_text() for kind in ("html", "md"))
    assert "<img" not in page
    assert "\u202e" not in page + text
    assert not re.search(r"<img|@octocat|(?<!\\)\|b ", text)


def test_insights_in_every_format(run: Run, model: Path, quick: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("insights", model, "--config", quick, "--format", "json", "-o", out)
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    assert [item["number"] for item in found["insights"]] == list(range(11))
    for item in found["insights"]:
        assert item["verdict"] != "not measured yet"  # 4: "not applicable"
        assert item["claim"]
        assert item["rule"]
    assert json.loads((out / "insights.json").read_text()) == found
    assert (out / "insights.csv").read_text().startswith("number,claim,verdict")


def test_thresholds_decide(run: Run, model: Path, quick: Path) -> None:
    quick.write_text(QUICK + "[insights.thresholds]\nasymmetry = 1.9\n")
    done = run("insights", model, "--config", quick, "--format", "json")
    assert json.loads(done.stdout)["insights"][0]["verdict"] == "does not hold"
    assert json.loads(done.stdout)["thresholds"]["asymmetry"] == 1.9
