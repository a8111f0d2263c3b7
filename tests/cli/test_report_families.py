"""Reports of every supported family, and of models that have lost heads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from families import tiny
from tiny_models import VOCABULARY, tiny_bert, tiny_tokenizer

Run = Callable[..., Any]

QUICK = """
[classify]
ablate_limit = 4
limit = 16
control = false
[rank]
limit = 4
control_seeds = 2
[spectrum]
length = 12
sequences = 2
[depth]
length = 12
sequences = 2
control = false
[flow]
limit = 16
control = false
[transfer]
sizes = [16]
variants = ["layernorm"]
random = []
seeds = 1
spread_seeds = 1
steps = 2
train_limit = 100
test_limit = 40
[linear]
sentences = 3
control = false
[symmetric]
sentences = 3
[prune]
fraction = [0.5]
ablation = false
repair = ["none"]
limit = 8
calibration_limit = 8
"""


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    path = tmp_path / "quick.toml"
    path.write_text(QUICK)
    return path


@pytest.mark.parametrize("family", ["roberta", "distilbert", "electra", "albert"])
def test_every_family(run: Run, quick: Path, tmp_path: Path, family: str) -> None:
    folder = tmp_path / "model"
    tiny(family, vocab_size=len(VOCABULARY), max_position_embeddings=64).save_pretrained(folder)
    tiny_tokenizer(max_length=48).save_pretrained(folder)
    done = run("report", folder, "--config", quick, "-o", tmp_path / "out")
    assert done.code == 0, done.stderr
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["left_out"] == {}
    assert len(document["insights"]["insights"]) == 11
    assert len(document["samples"]) == 2


def test_a_model_without_some_heads_keeps_their_numbers(
    run: Run, quick: Path, tmp_path: Path
) -> None:
    import headscope

    loaded = headscope.load(str(tiny_bert(tmp_path / "whole", layers=3)))
    smaller = headscope.remove_heads(loaded, [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)])
    headscope.save(smaller, tmp_path / "smaller")
    out = tmp_path / "out"
    done = run("report", tmp_path / "smaller", "--config", quick, "-o", out)
    assert done.code == 0, done.stderr
    page = (out / "report.html").read_text()
    assert page.count('class="cell gone"') == 6
    shown = {f"L{layer}H{head}" for layer, heads in ((0, (1, 3)), (2, range(4))) for head in heads}
    document = json.loads((out / "report.json").read_text())
    for sample in document["samples"]:
        assert set(sample["patterns"]) == shown
    for section in ("classify", "rank", "spectrum"):
        heads = document[section]["heads"]
        assert {f"L{head['layer']}H{head['head']}" for head in heads} == shown, section
