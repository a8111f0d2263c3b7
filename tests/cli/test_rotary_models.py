"""The commands on models with rotary positions, windows, shared keys, and a causal one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from families import COVERED
from tiny_models import VOCABULARY, tiny_tokenizer

IDS = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "mask_token_id": 4}
KINDS = ("modernbert", "eurobert", "gpt2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a tiny model of each kind, and its tokenizer."""
    found = {}
    for family in COVERED:
        if family.kind in KINDS:
            more = {"bos_token_id": 2, "eos_token_id": 3, **IDS}
            model = family.model(vocab_size=len(VOCABULARY), max_position_embeddings=64, **more)
            found[family.kind] = tmp_path_factory.mktemp(family.kind)
            model.save_pretrained(found[family.kind])
            tiny_tokenizer().save_pretrained(found[family.kind])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_commands(kind: str, folders: dict[str, Path], tmp_path: Path, run: Any) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\nhe saw a big red dog in the house\n" * 20)
    pruned = tmp_path / "pruned"
    options = ("--limit", "12", "--method", "magnitude", "--fraction", "0.5", "--repair", "none")
    for arguments in (
        ("validate", folders[kind]),
        ("classify", folders[kind], "--limit", "8"),
        ("spectrum", folders[kind], "--text", text, "--length", "32"),
        ("prune", folders[kind], *options, "--save", pruned),
        ("validate", pruned),
        ("spectrum", pruned, "--text", text, "--length", "32"),
    ):
        outcome = run(*arguments)
        assert outcome.code == 0, outcome.stderr
        assert "Warning" not in outcome.stderr
    removed = json.loads((pruned / "headscope.json").read_text())["attention"]
    assert sum(len(entry["removed"]) for entry in removed) == 2 * len(removed)
    outcome = run("rank", folders[kind], "--control-seeds", "2")
    assert (outcome.code == 0) == (kind == "gpt2")
    if kind != "gpt2":
        assert "rotates queries and keys by their positions" in outcome.stderr


def test_no_padding_warning_reaches_the_user(folders: dict[str, Path], run: Any) -> None:
    """Padded queries of ModernBERT have no key in their window; nobody looks at them."""
    outcome = run("classify", folders["modernbert"], "--limit", "8", "--no-validate")
    assert outcome.code == 0
    assert "no key" not in outcome.stderr
