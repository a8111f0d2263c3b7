"""``--pooling``: the commands that compare embeddings have it, and their results record it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

#: As small as each command can be run.
SMALL = {
    "prune": ("--heads", "L0H1", "--no-roles", "--limit", "8", "--no-ablation"),
    "rank": ("--no-fresh", "--control-seeds", "2"),
    "spectrum": ("--length", "8", "--sequences", "4", "--efficient"),
}


@pytest.mark.parametrize("command", SMALL)
def test_a_result_records_the_option(command: str, run: Run, model: Path) -> None:
    found = run(command, model, *SMALL[command], "--pooling", "cls", "--format", "json")
    assert found.code == 0, found
    recorded = json.loads(found.stdout)["provenance"]["model"]
    assert (recorded["pooling"], recorded["pooling_from"]) == ("cls", "option")


def test_a_file_can_set_it_and_other_words_are_refused(
    run: Run, model: Path, tmp_path: Path
) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[rank]\npooling = "max"\n')
    found = run("rank", model, *SMALL["rank"], "--config", config, "--format", "json")
    assert json.loads(found.stdout)["provenance"]["model"]["pooling"] == "max"
    refused = run("rank", model, "--pooling", "sum")
    assert refused.code == 2
    assert "mean" in refused.stderr
