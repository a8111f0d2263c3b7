"""Checkpoints of encoder-decoder models as they are found: computed tables, tied maps, gaps."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import KINDS, network, tiny
from safetensors.torch import load_file, save_file
from torch import Tensor

import headscope
from headscope.errors import CheckpointError, InputError
from headscope.models.certificate import validate_model
from headscope.models.loaded import LoadedModel
from headscope.models.network import _check_complete
from headscope.models.source import Source

#: A tensor of each family that nothing else can stand for.
NEEDED = {
    "marian": "model.decoder.layers.1.encoder_attn.k_proj.weight",
    "pegasus": "model.encoder.layers.0.fc1.weight",
    "bart": "model.encoder.embed_positions.weight",  # learned, not computed
    "mbart": "model.decoder.layer_norm.weight",
    "t5": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
}
TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
GIVEN = {
    "input_ids": torch.tensor([[7, 8, 9, 10, 11]]),
    "attention_mask": torch.ones(1, 5, dtype=torch.long),
    "decoder_input_ids": torch.tensor([[2, 12, 13]]),
}


def saved(kind: str, folder: Path, without: tuple[str, ...] = ()) -> tuple[Any, dict[str, Tensor]]:
    """Let transformers save a model, then take tensors out of the file."""
    model = network(kind)
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    store(folder, {name: tensor for name, tensor in state.items() if name not in without})
    return model, state


def store(folder: Path, state: dict[str, Tensor]) -> None:
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def opened(folder: Path, task_head: str | None) -> LoadedModel:
    return headscope.load(str(folder), task_head=task_head, need_tokenizer=False, device="cpu")


@pytest.mark.parametrize(
    ("kind", "task_head"),
    [*((kind, "auto") for kind in KINDS), ("marian", None), ("marian", "seq2seq"), ("t5", None)],
)
def test_what_transformers_saved_opens(kind, task_head, tmp_path):
    model, state = saved(kind, tmp_path, TABLES if kind in ("marian", "pegasus") else ())
    assert not any(name.startswith("lm_head") for name in state)  # tied to the embeddings
    loaded = opened(tmp_path, task_head)
    assert loaded.task_head == (task_head and "seq2seq")
    with torch.no_grad():
        expected = model(**GIVEN, output_hidden_states=True)
        hidden, logits = loaded.run(**GIVEN)
    torch.testing.assert_close(hidden, expected.decoder_hidden_states[-1], rtol=0, atol=1e-5)
    if task_head:
        torch.testing.assert_close(logits, expected.logits, rtol=0, atol=1e-5)
        head, words = loaded.network.get_output_embeddings(), loaded.model.get_input_embeddings()
        assert head.weight is words.weight
    result = validate_model(loaded)
    assert result.passed, result.reasons


@pytest.mark.parametrize("kind", ["marian", "pegasus"])
def test_a_table_that_is_stored_counts_as_it_stands(kind, tmp_path):
    model, state = saved(kind, tmp_path, TABLES)
    # Marian itself does not store them, or the test above would prove nothing.
    assert kind != "marian" or not {*TABLES} & state.keys()
    own = {name: model.state_dict()[name] + 0.25 for name in TABLES}
    store(tmp_path, {**state, **own})
    loaded = opened(tmp_path, "seq2seq")
    for name, tensor in own.items():
        assert torch.equal(loaded.network.state_dict()[name], tensor)


def test_a_missing_table_must_hold_what_its_module_computes(tmp_path):
    model = network("marian")
    info = {"missing_keys": [*TABLES]}
    _check_complete(model, info, Source("tiny", tmp_path))
    with torch.no_grad():
        model.get_parameter(TABLES[1])[3, 3] += 0.01
    with pytest.raises(CheckpointError, match=r"lacks 1 of the model's tensors.*decoder.embed_pos"):
        _check_complete(model, info, Source("tiny", tmp_path))


@pytest.mark.parametrize(
    ("kind", "task_head"), [*((kind, "auto") for kind in KINDS), ("marian", None), ("t5", None)]
)
def test_a_tensor_that_is_really_missing(kind, task_head, tmp_path):
    saved(kind, tmp_path, (NEEDED[kind],))
    name = NEEDED[kind] if task_head else NEEDED[kind].removeprefix("model.")
    with pytest.raises(CheckpointError, match=f"lacks 1 of the model's tensors.*{name}"):
        opened(tmp_path, task_head)


def test_embeddings_that_are_missing_altogether(tmp_path):
    saved("marian", tmp_path, ("model.shared.weight",))
    with pytest.raises(CheckpointError, match="it is not a whole model"):
        opened(tmp_path, "auto")


def test_a_base_model_has_no_head_of_its_own(tmp_path):
    model = network("bart", tie_word_embeddings=False)
    state = {name: t for name, t in model.state_dict().items() if name != "lm_head.weight"}
    model.save_pretrained(tmp_path)
    store(tmp_path, {name: tensor.clone() for name, tensor in state.items()})
    assert opened(tmp_path, None).task_head is None
    with pytest.raises(InputError, match="has no sequence-to-sequence head"):
        opened(tmp_path, "seq2seq")


def test_code_beside_a_family_that_transformers_has_is_not_run(tmp_path):
    """Folders of the hub name code in auto_map that transformers has had itself for long."""
    model = tiny("nomic_bert")
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    path.write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise RuntimeError('code of the folder was run')")
    loaded = headscope.load(str(tmp_path), need_tokenizer=False)
    assert type(loaded.model).__module__.startswith("transformers.")
    assert headscope.validate(loaded).passed
