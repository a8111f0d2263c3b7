"""The commands on models with relative positions, whose modules never ask for our attention."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_deberta, tiny_mpnet

Run = Callable[..., Any]
MAKERS = {"mpnet": tiny_mpnet, "deberta": tiny_deberta}


@pytest.fixture(scope="module", params=MAKERS)
def relative(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a bias by relative position; read only."""
    folder = tmp_path_factory.mktemp("relative") / request.param
    return MAKERS[request.param](folder)


def result(run: Run, *arguments: Any) -> dict[str, Any]:
    outcome = run(*arguments, "--format", "json", "-q")
    assert (outcome.code, outcome.stderr) == (0, "")
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


def test_classify(run: Run, relative: Path) -> None:
    found = result(run, "classify", relative, "--limit", 3)
    assert found["validation"]["passed"]
    assert len(found["heads"]) == 8


def test_spectrum(run: Run, relative: Path, tmp_path: Path) -> None:
    shown = run(
        *("spectrum", relative, "-n", 4, "--length", 8, "--efficient", "-q", "-o", tmp_path / "x")
    )
    assert shown.code == 0
    assert "Left out: pooled keys." in " ".join(shown.stdout.split())
    found = json.loads((tmp_path / "x" / "spectrum.json").read_text())
    assert len(found["heads"]) == 8
    assert found["efficient"]["left_out"] == ["pooled"]


def test_prune(run: Run, relative: Path, tmp_path: Path) -> None:
    """Two heads removed, repaired and saved; the saved folder passes."""
    found = result(
        *(run, "prune", relative, "--task", "fidelity", "--limit", 6, "--fraction", 0.25),
        *("--no-roles", "--no-ablation", "--draws", 5, "--save", tmp_path / "small"),
    )
    assert found["validation"]["passed"]
    assert found["baseline"]["value"] == pytest.approx(1.0)
    assert result(run, "validate", tmp_path / "small")["passed"]
