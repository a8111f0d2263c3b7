"""What docs/migration.md says of transformers 5, and its commands, on tiny models."""

import gc
import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from families import COVERED
from safetensors.torch import load_file, save_file
from tiny_models import tiny_bert
from transformers import AutoModel, pytorch_utils

import headscope
from headscope.cli.app import main
from headscope.models.run.intervene import gated

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
IDS = torch.tensor([[5, 6, 7, 8, 9]])


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "bart", "t5"])
def test_masks_of_heads_are_ignored_in_silence(name):
    family = next(family for family in COVERED if family.name == name)
    model = family.model()
    decoder_inputs = {"decoder_input_ids": IDS} if "cross" in family.stacks else {}
    names = ("head_mask", "decoder_head_mask", "cross_attn_head_mask")
    masks = dict.fromkeys(names[: len(family.stacks)], torch.zeros(3, 4))
    with torch.no_grad():
        assert torch.equal(
            model(IDS, **decoder_inputs)[0], model(IDS, **decoder_inputs, **masks)[0]
        )
    assert not hasattr(model, "prune_heads")
    assert not hasattr(model, "get_head_mask")


HEADS = {0: [1], 1: [0, 3]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A classifier, so that its labelled examples can be read."""
    folder = tmp_path_factory.mktemp("migration")
    return tiny_bert(folder / "my-bert", task_head="classification")


@pytest.fixture(scope="module")
def pruned(model):
    """The same folder as transformers 4 saved it after ``prune_heads``: rows and columns gone."""
    folder = model.parent / "pruned-by-transformers-4"
    headscope_free = AutoModel.from_pretrained(model)
    headscope_free.save_pretrained(folder)
    for path in model.glob("tokenizer*"):
        (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    for layer, gone in HEADS.items():
        rows = [8 * head + i for head in range(4) if head not in gone for i in range(8)]
        attention = f"encoder.layer.{layer}.attention"
        for key in weights:
            if key.startswith(f"{attention}.self"):
                weights[key] = weights[key][rows].clone()
        out = f"{attention}.output.dense.weight"
        weights[out] = weights[out][:, rows].clone()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["pruned_heads"] = {str(layer): gone for layer, gone in HEADS.items()}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_it_is_what_the_mask_did(model, pruned):
    """With head_mask, columns of W_O that read a masked head were zeros."""
    network = AutoModel.from_pretrained(model)
    for layer, gone in HEADS.items():
        weight = network.encoder.layer[layer].attention.output.dense.weight.data
        for head in gone:
            weight[:, 8 * head : 8 * head + 8] = 0
    full = headscope.load(str(model))
    old = headscope.load(str(pruned))
    heads = []
    for layer, heads_of_layer in HEADS.items():
        heads += [(layer, head) for head in heads_of_layer]
    gates = torch.ones(full.n_layers, full.n_heads)
    gates[tuple(zip(*heads, strict=True))] = 0
    removed = headscope.remove_heads(full, heads)
    with torch.no_grad():
        expected = network(IDS).last_hidden_state
        for loaded, some in ((full, gates), (removed, None), (old, None)):
            with gated(loaded, some) as run:
                hidden, _ = run(IDS, torch.ones_like(IDS))
            torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_transformers_5_and_what_was_written_before(pruned):
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        AutoModel.from_pretrained(pruned)
    options = {"ignore_mismatched_sizes": True, "output_loading_info": True}
    assert len(AutoModel.from_pretrained(pruned, **options)[1]["mismatched_keys"]) == 2 * 7
    assert not hasattr(pytorch_utils, "find_pruneable_heads_and_indices")
    assert hasattr(pytorch_utils, "prune_linear_layer")


def test_the_commands_run(model, pruned, monkeypatch, capsys):
    monkeypatch.chdir(model.parent)
    for name in ("dev", "train"):
        texts = [f"the {word} {name} sat\t{i % 2}" for i, word in enumerate(["cat", "dog"] * 20)]
        Path(f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *texts]) + "\n")
    commands = [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) >= 4
    for words in commands:
        assert words[0] == "headscope"
        shorter = ["--no-validate"] if words[1] == "prune" else []
        monkeypatch.setattr("sys.argv", [*words, *shorter])
        with pytest.raises(SystemExit) as stopped:
            main()
        gc.unfreeze()  # the command line expects that the process ends with it
        assert not stopped.value.code, (words, capsys.readouterr().err)
    smaller = headscope.load("smaller")
    assert [site.head_ids for site in smaller.sites] == [(0, 1, 3), (1, 2)]
