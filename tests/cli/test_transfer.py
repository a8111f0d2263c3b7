"""``headscope transfer`` on the command line, and what the others do with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headscope.show.page.parts import Part
from headscope.show.transfer import VIEW

Run = Callable[..., Any]

#: A few seconds' worth on a tiny model.
FEW = ("--sizes", "16,32", "--steps", 4, "--seeds", 2, "--spread-seeds", 2, "--no-search")
FEW += ("--random", "head,layernorm", "--train-limit", 120, "--test-limit", 30)


@pytest.fixture
def folder(run: Run, model: Path, tmp_path: Path) -> Path:
    out = tmp_path / "out"
    done = run("transfer", model, *FEW, "-o", out)
    assert (done.code, done.stderr) == (0, "")
    for text in ("From pretrained weights, 16 training examples", "LayerNorm only:", "majority"):
        assert text in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    return out


def test_files_and_page(folder: Path) -> None:
    from headscope.results import from_dict
    from headscope.results.sections import section_of

    names = {path.name for path in folder.iterdir()}
    assert {"transfer.json", "transfer.csv", "transfer.png", "transfer_curves.svg"} <= names
    result = from_dict(
        section_of("transfer").kind, json.loads((folder / "transfer.json").read_text())
    )
    part = VIEW.section(result)
    assert isinstance(part, Part)
    assert len(part.rows) == len(result.cells) + len(result.baselines)
    assert [found.what for found in VIEW.key_numbers(result)] == [
        "accuracy, LayerNorm only trained",
        "accuracy, everything trained",
    ]


def test_a_budget_that_ends_is_said(run: Run, model: Path) -> None:
    done = run("transfer", model, *FEW, "--budget", 1e-6)
    assert done.code == 0
    said = " ".join(done.stdout.split())
    assert "The budget of 1e-06 s did not reach 36 of 36 runs" in said
    assert "LayerNorm only (random, 32 examples): 2 runs" in said


def test_sizes_that_are_none(run: Run, model: Path) -> None:
    done = run("transfer", model, "--sizes", "64,many")
    assert done.code == 2
    assert "'64,many' is not a list of sizes" in done.stderr


def test_diff_knows_its_numbers(run: Run, model: Path, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    data = json.loads((folder / "transfer.json").read_text())
    data["cells"][0]["accuracy"] = 1.0
    data["cells"][0]["low"], data["cells"][0]["high"] = 0.5, 1.5
    other.write_text(json.dumps(data))
    done = run("diff", folder / "transfer.json", other)
    assert "head, pretrained, 16" in done.stdout
    assert "1 (0.500 to 1.500)" in done.stdout


def test_insights_says_beforehand_how_long_it_takes(run: Run, model: Path) -> None:
    """One budget for all of it: what the others leave is transfer's."""
    skip = "classify,rank,spectrum,depth,flow,linear,symmetric"
    done = run("insights", model, "--skip", skip, "--budget", 0.01, "--format", "json")
    assert done.code == 0, done.stderr
    assert "insights measures transfer: about" in done.stderr
    assert "ends 0.01 s after the start (budget). Skip transfer to leave out" in done.stderr
    verdicts = {i["number"]: i["verdict"] for i in json.loads(done.stdout)["insights"]}
    assert {verdicts[n] for n in (8, 9, 10)} == {"not measured"}
    refused = run("insights", model, "--budget", 0)
    assert refused.code == 1
    assert "budget is 0 seconds" in refused.stderr


def test_insights_can_skip_it(run: Run, model: Path) -> None:
    skip = "transfer,classify,rank,spectrum,depth"
    done = run("insights", model, "--skip", skip, "--format", "json", "--quiet")
    assert (done.code, done.stderr) == (0, "")
    verdicts = {i["number"]: i["verdict"] for i in json.loads(done.stdout)["insights"]}
    assert {verdicts[n] for n in (8, 9, 10)} == {"not measured yet"}
    refused = run("insights", model, "--skip", "transfers")
    assert refused.code == 1
    assert "no section 'transfers' to skip" in refused.stderr
