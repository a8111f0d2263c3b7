"""The task head is what the weights hold, whatever config.json says; in every family with one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import headscope
from headscope.core.errors import CheckpointError, InputError
from headscope.models.run.task_heads import TASK_HEADS

AUTO = {
    "mlm": AutoModelForMaskedLM,
    "classification": AutoModelForSequenceClassification,
    "token-classification": AutoModelForTokenClassification,
    "question-answering": AutoModelForQuestionAnswering,
}
FAMILIES = (
    *("bert", "roberta", "distilbert", "albert", "electra", "mpnet", "deberta-v2, as v3"),
    "modernbert",
)
CASES = [*(("bert", head) for head in AUTO), *((family, "mlm") for family in FAMILIES[1:])]


def opened(folder: Path, head: str | None = "auto") -> Any:
    return headscope.load(str(folder), need_tokenizer=False, task_head=head, device="cpu")


def names(folder: Path, architecture: str | None) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": [architecture]}))


def states(loaded: Any) -> torch.Tensor:
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        return loaded.forward(ids, torch.ones_like(ids))


@pytest.mark.parametrize(("family", "head"), CASES)
def test_a_class_without_its_head_is_a_base_model(family, head, tmp_path):
    """And with its head it has it; what is missing is named, and is of the head."""
    whole = tiny(family, auto=AUTO[head])
    folder, bare = tmp_path / "whole", tmp_path / "bare"
    whole.save_pretrained(folder)
    assert opened(folder).task_head == head
    tiny(family).save_pretrained(bare)
    expected = states(opened(bare))
    names(bare, type(whole).__name__)
    loaded = opened(bare)
    assert (loaded.task_head, loaded.network is loaded.model) == (None, True)
    torch.testing.assert_close(states(loaded), expected, rtol=0, atol=0)
    with pytest.raises(InputError) as refused:
        opened(bare, head)
    said = str(refused.value)
    assert f"config.json names {type(whole).__name__}, but the weights lack " in said
    assert "checkpoint holds" not in said
    first = said.partition("weights lack ")[2].split(",")[0].split(" and ")[0].split(";")[0]
    assert first in whole.state_dict()
    assert first not in load_file(bare / "model.safetensors")


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_half_a_head_is_none_and_it_is_said(family, tmp_path):
    whole = tiny(family, auto=AutoModelForSequenceClassification)
    whole.save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    (bias,) = (key for key in held if key in ("classifier.bias", "classifier.out_proj.bias"))
    del held[bias]
    save_file(held, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = opened(tmp_path)
    assert loaded.task_head is None
    (remark,) = loaded.remarks
    assert f"the weights lack {bias}." in remark
    result = headscope.validate(loaded)
    assert result.passed
    assert remark in result.provenance["warnings"]
    with pytest.raises(InputError, match=f"the weights lack {bias};"):
        opened(tmp_path, "classification")


def test_a_head_of_another_size_is_none(tmp_path):
    tiny("bert", auto=AutoModelForSequenceClassification).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    labels = {str(i): f"LABEL_{i}" for i in range(5)}
    path.write_text(json.dumps({**json.loads(path.read_text()), "id2label": labels}))
    assert opened(tmp_path).task_head is None
    with pytest.raises(InputError, match=r"weights lack classifier\.bias and classifier\.weight"):
        opened(tmp_path, "classification")


@pytest.mark.parametrize("family", ["marian", "t5"])
def test_tied_heads_are_legitimately_absent(family, tmp_path):
    """The weights of an encoder-decoder hold its embeddings once, and its head is those."""
    network = tiny(family, auto=AutoModelForSeq2SeqLM, tie_word_embeddings=True)
    network.save_pretrained(tmp_path)
    assert not [key for key in load_file(tmp_path / "model.safetensors") if "lm_head" in key]
    loaded = opened(tmp_path)
    assert loaded.task_head == "seq2seq"
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        ours = loaded.network(input_ids=ids, decoder_input_ids=ids).logits
        torch.testing.assert_close(ours, network(input_ids=ids, decoder_input_ids=ids).logits)


def test_a_base_model_whose_weights_are_missing_is_still_refused(tmp_path):
    tiny("bert", auto=AutoModelForMaskedLM).save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    kept = {key: held[key] for key in held if "layer.1.attention.self.query" not in key}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for head in ("auto", None, "mlm"):
        with pytest.raises(CheckpointError, match=r"lacks 2 of the model's tensors \(.*query"):
            opened(tmp_path, head)


def test_a_missing_pooler_is_the_same_in_every_run(tmp_path):
    network = tiny("bert", auto=AutoModel)
    network.pooler = None
    network.save_pretrained(tmp_path)
    first, second = (dict(opened(tmp_path).model.named_parameters()) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert set(TASK_HEADS) >= set(AUTO)
