"""Every command runs on a second device, here a simulated one, and finds what it finds on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated_device import NAME, Simulated, simulated_device
from tiny_models import tiny_bert

import headscope
from headscope import widest

SENTENCES = ["the big house", "she saw a dog on the mat and ran", "he sat", "it is a cat in"]

Runs = dict[str, Callable[..., Any]]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(SENTENCES * 3) + "\n")
    return path


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labelled") / "labelled.tsv"
    rows = [f"{text} {i}\t{i % 2}" for i, text in enumerate(SENTENCES * 8)]
    path.write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture(params=[True, False], ids=["with float64", "without"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulated]:
    if not request.param:
        monkeypatch.setattr(widest, "WITHOUT_FLOAT64", {NAME})
    with simulated_device(monkeypatch, float64=request.param) as simulated:
        yield simulated


def calls(bert: Path, text: Path, labelled: Path) -> dict[str, Callable[..., Any]]:
    quick = {"limit": 6, "calibration_limit": 6, "ablation": False, "fractions": [0.5]}
    return {
        "validate": lambda **o: headscope.validate(bert, **o),
        "classify": lambda **o: headscope.classify(
            bert, limit=6, norm_weighted=True, ablate=True, **o
        ),
        "rank": lambda **o: headscope.rank(bert, text=text, **o),
        "spectrum": lambda **o: headscope.spectrum(
            bert, text, length=8, sequences=2, efficient=True, **o
        ),
        "depth": lambda **o: headscope.depth(bert, text, length=8, sequences=2, **o),
        "flow": lambda **o: headscope.flow(bert, limit=4, control=False, **o),
        "linear": lambda **o: headscope.linear(bert, text, sentences=2, control=False, **o),
        "symmetric": lambda **o: headscope.symmetric(bert, text, sentences=3, **o),
        "explain": lambda **o: headscope.explain(bert, "the cat sat", **o),
        "prune": lambda **o: headscope.prune(bert, **quick, **o),
        "transfer": lambda **o: headscope.transfer(
            bert,
            labelled,
            sizes=[8],
            seeds=1,
            spread_seeds=1,
            steps=2,
            train_limit=16,
            test_limit=12,
            search=False,
            **o,
        ),
    }


NAMES = tuple(calls(Path(), Path(), Path()))


@pytest.mark.parametrize("name", NAMES)
def test_a_command_runs_on_another_device(
    name: str, bert: Path, text: Path, labelled: Path, device: Simulated
) -> None:
    result = calls(bert, text, labelled)[name](device=NAME)
    assert device.operations > 100
    assert result.provenance["device"] == f"{NAME}:0"
