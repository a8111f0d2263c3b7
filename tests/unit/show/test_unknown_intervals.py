"""Seven examples tell no interval: every output says so, and none shows one of zero width."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from rich.console import Console
from tiny_models import tiny_bert

import headscope
from headscope.results import PruneResult, from_dict, to_json
from headscope.show.view import view_of


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> PruneResult:
    return headscope.prune(
        str(tiny_bert(tmp_path_factory.mktemp("few") / "model")),
        methods=["magnitude"],
        repairs=["none"],
        fractions=[0.25, 0.5],
        limit=7,
        calibration_limit=8,
        ablation=True,
        even=True,
        roles=False,
        validate=False,
    )


def test_results_hold_none_and_are_read_again(result: PruneResult) -> None:
    document = json.loads(to_json(result))
    points = document["curves"][0]["points"]
    everything = [document["baseline"], *points, *document["ablation"], *document["even"]]
    assert all(item["ci"] is None for item in everything)
    assert {point["p_value"] for point in points} == {1.0}
    assert all(row["p_adjusted"] == 1.0 for row in document["ablation"])
    assert from_dict(PruneResult, document) == result
    frame = result.to_frame()
    assert frame[["low", "high", "difference_low", "difference_high"]].isna().all(axis=None)


def test_the_terminal_says_so(result: PruneResult) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(*view_of("prune").human(result))
    text = console.export_text()
    assert "no interval" in text
    assert not re.search(r"\b(inf|nan|None)\b", text)


def test_files_have_empty_cells(result: PruneResult) -> None:
    files = view_of("prune").files(result)
    (table,) = (data for name, data in files.items() if name.startswith("ablation.csv"))
    text = table if isinstance(table, str) else table.decode()
    rows = list(csv.DictReader(text.splitlines()))
    assert {row["ci_low"] + row["difference_ci_high"] for row in rows} == {""}
