"""A model that has lost heads becomes a graph that runs without headscope and torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from outcomes import Command
from tiny_models import tiny_bert
from tokenizers import Tokenizer

import headscope

TEXTS = [
    ("the cat sat on the mat", "a dog ran"),
    ("the big cat", "he saw it was red and she ran to the house"),
    ("she sat", "on the mat"),
    ("it is a red house", "the dog is big"),
    ("he ran", "she ran"),
    ("of the cat and the dog", "it was in the house on the big mat"),
]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, run: Command) -> Path:
    """A classifier of pairs that has lost two heads of one layer and one of the other, as a graph.

    Its tokenizer tells which of two texts a token is of.
    """
    room = tmp_path_factory.mktemp("export")
    tiny_bert(room / "model", layers=2, heads=4, seed=3, task_head="classification")
    path = room / "model" / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    path.write_text(json.dumps(settings), encoding="utf-8")
    whole = headscope.load(str(room / "model"), task_head="auto")
    headscope.save(headscope.remove_heads(whole, [(0, 1), (0, 2), (1, 0)]), room / "small")
    ended = run("export", room / "small", "onnx")
    assert ended.code == 0, ended.stderr
    return room


def predicted(room: Path, file: str) -> Any:
    """Classify with onnxruntime and tokenizers alone."""
    tokenizer = Tokenizer.from_file(str(room / "small" / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=0)
    encoded = tokenizer.encode_batch(TEXTS)
    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    feed = {name: np.array([getattr(e, at) for e in encoded]) for name, at in columns.items()}
    session = onnxruntime.InferenceSession(str(room / "small" / "onnx" / file))
    assert [item.name for item in session.get_inputs()] == list(columns)
    return session.run(["logits"], feed)[0]


def test_the_graph_is_the_pruned_classifier(room):
    """Against the full model with gates of zero."""
    logits = predicted(room, "model.onnx")
    full = headscope.load(str(room / "model"), task_head="auto")
    expected, gates = [], torch.ones(2, 4)
    gates[0, 1] = gates[0, 2] = gates[1, 0] = 0.0
    for pair in TEXTS:
        made = full.tokenizer(*pair, return_tensors="pt")
        with headscope.models.run.intervene.gated(full, gates) as ours:
            expected.append(
                ours(made["input_ids"], made["attention_mask"], made["token_type_ids"])[1]
            )
    np.testing.assert_allclose(logits, torch.cat(expected).detach().numpy(), atol=2e-5)
