"""The head that predicts the next token: when it is opened, and when it is not there."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import write_tiny
from transformers import AutoModel, AutoModelForCausalLM

import headscope
from headscope.core.errors import InputError
from headscope.models.run.task_heads import task_head_of
from headscope.session.opening import open_for_tasks


@pytest.mark.parametrize(
    ("architecture", "head"),
    [
        ("LlamaForCausalLM", "causal"),
        ("GPT2LMHeadModel", "causal"),
        ("XLMWithLMHeadModel", "mlm"),
        ("LlamaModel", None),
    ],
)
def test_class_names(architecture: str, head: str | None) -> None:
    assert task_head_of(architecture) == head


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "model", "gpt2", template="$A")
    loaded = open_for_tasks(str(folder))
    assert loaded.task_head == "causal"
    ids, mask = loaded.pad([[5, 9, 7, 30]])
    with torch.no_grad():
        _, logits = loaded.run(ids, mask)
        expected = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
    assert logits is not None
    torch.testing.assert_close(logits, expected)  # eager against sdpa


def test_base_model_where_the_folder_embeds(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "model", "gpt2", template="$A")
    modules = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    (folder / "modules.json").write_text(json.dumps(modules))
    assert open_for_tasks(str(folder)).task_head is None
    assert open_for_tasks(str(folder), task="lm").task_head == "causal"


def test_unnamed_head_is_opened_for_its_task(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "model", "gpt2", template="$A")
    AutoModel.from_pretrained(folder).save_pretrained(folder)  # config.json names GPT2Model
    assert open_for_tasks(str(folder)).task_head is None
    assert open_for_tasks(str(folder), task="lm").task_head == "causal"


def test_missing_head_is_refused(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "model", "gpt2", template="$A")
    network = AutoModelForCausalLM.from_pretrained(folder)
    network.config.tie_word_embeddings = False
    network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.clone())
    network.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert headscope.load(str(folder), task_head="auto").task_head is None
    with pytest.raises(InputError, match=r"no causal-language-model head: .*lm_head\.weight"):
        open_for_tasks(str(folder), task="lm")
