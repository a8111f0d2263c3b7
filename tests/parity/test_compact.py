"""What a folder without some heads says, old ones included, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import padded_batch, tiny
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM

import headscope
from headscope.core.errors import CheckpointError, InputError
from headscope.models.certificate.certificate import validate_model
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import random_twin, removed_heads

IDS, VALID = padded_batch()
REAL = VALID.bool()


#: Some of a layer, all of a layer, and the first head of another.
SOME = [(0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]


def with_gates(loaded: LoadedModel, removed: Any) -> Tensor:
    gates = torch.ones(loaded.n_layers, loaded.n_heads)
    for layer, head in removed:
        gates[layer, head] = 0.0
    with gated(loaded, gates) as run:
        return run(IDS, VALID)[0][REAL]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def plain(loaded: LoadedModel) -> Tensor:
    with torch.no_grad():
        return loaded.forward(IDS, VALID)[REAL]


@pytest.mark.parametrize(
    ("family", "heads", "message"),
    [
        ("bert", [(0, 4)], r"no head L.*layers 0 to 2 with heads 0 to 3"),
        ("bert", [(layer, h) for layer in range(3) for h in range(4)], "every head"),
        ("albert", [(1, h) for h in range(4)], "every head"),  # one layer is all of them
        ("bert", ["L0H1"], r"'L0H1' names no head; give one as \(layer, head\)"),
        ("bert", [(0,)], r"\(0,\) names no head"),
    ],
)
def test_heads_that_cannot_go(family, heads, message):
    with pytest.raises(InputError, match=message):
        headscope.remove_heads(headscope.wrap(tiny(family)), heads)


@pytest.mark.parametrize("shape", [(3, 4), (3, 3, 4, 9)])
def test_layers_without_heads(shape):
    """Gates (n_layers, n_heads), by example and by token work on them, and a control has them."""
    compact = headscope.remove_heads(headscope.wrap(tiny("bert", "float64")), SOME)
    gates = torch.ones(shape, dtype=torch.float64, requires_grad=True)
    with gated(compact, gates, gradients=True) as run:
        hidden, _ = run(IDS, VALID)
        (gradient,) = torch.autograd.grad(hidden[REAL].square().sum(), gates)
    torch.testing.assert_close(hidden[REAL].detach(), plain(compact))
    if gradient.dim() > 2:  # (batch, n_layers, n_heads[, pos])
        gradient = gradient.abs().movedim(0, -1).flatten(2).sum(dim=2)
    exists = torch.zeros(3, 4, dtype=torch.bool)
    for site in compact.sites:
        exists[site.layer, : site.n_heads] = True
    assert torch.equal(gradient != 0, exists)
    twin = random_twin(compact, seed=0)
    assert [site.head_ids for site in twin.sites] == [site.head_ids for site in compact.sites]


def test_the_manifest_says_what_was_kept(tmp_path):
    loaded = headscope.wrap(tiny("bert"), name="source")
    compact = headscope.remove_heads(loaded, SOME)
    headscope.save(compact, tmp_path / "x", repair="scale", provenance={"seed": 3})
    manifest = json.loads((tmp_path / "x" / "headscope.json").read_text())
    assert manifest["form"] == "compact"
    kept, removed = ([0, 2, 3], [], [1, 2, 3]), ([1], [0, 1, 2, 3], [0])
    for layer, found in enumerate(manifest["attention"]):
        module = {"module": f"encoder.layer.{layer}.attention.self", "stack": "encoder"}
        heads = {"layers": [layer], "kept": kept[layer], "removed": removed[layer]}
        assert found == {**module, **heads}
    assert (manifest["repair"], manifest["provenance"]) == ("scale", {"seed": 3})
    assert manifest["source"] == {"id": "source", "revision": None, "weights_sha256": None}
    state = load_file(tmp_path / "x" / "model.safetensors")
    assert state["encoder.layer.1.attention.output.dense.weight"].shape == (32, 0)


def test_half_precision_weights_stay_half_and_tied(tmp_path):
    model = tiny("bert", "float16", auto=AutoModelForMaskedLM).float()
    compact = headscope.remove_heads(headscope.wrap(model), SOME)
    headscope.save(compact, tmp_path / "half")
    state = load_file(tmp_path / "half" / "model.safetensors")
    assert {v.dtype for v in state.values()} == {torch.float16}
    assert "cls.predictions.decoder.weight" not in state
    again = headscope.load(str(tmp_path / "half"), task_head="mlm", need_tokenizer=False)
    close(plain(again), plain(compact))
    with torch.no_grad():  # one weight that float16 cannot hold
        compact.model.embeddings.LayerNorm.bias[0] = 1 / 3
    headscope.save(compact, tmp_path / "full")
    kinds = {v.dtype for v in load_file(tmp_path / "full" / "model.safetensors").values()}
    assert kinds == {torch.float32}


def test_a_folder_of_others_is_not_overwritten(tmp_path):
    loaded = headscope.wrap(tiny("bert"))
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        headscope.save(loaded, tmp_path / "x")
    with pytest.raises(InputError, match="is a file"):
        headscope.save(loaded, tmp_path / "x" / "thesis.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x" / "thesis.txt").read_text() == "mine"


def test_nothing_half_written_stays(tmp_path, monkeypatch):
    loaded = headscope.wrap(tiny("bert"))

    def full_disk(folder: Path, **_: Any) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loaded.network, "save_pretrained", full_disk)
    with pytest.raises(OSError, match="No space"):
        headscope.save(loaded, tmp_path / "a" / "b" / "model")
    assert not any(tmp_path.iterdir())


def old_checkpoint(family: str, folder: Path, pruned: dict[int, list[int]]) -> Any:
    """What ``prune_heads`` of transformers 4 wrote, by hand; checked against 4.46 itself."""
    model = tiny(family)
    path, *inputs, out = {
        "albert": "encoder.albert_layer_groups.{}.albert_layers.0.attention query key value dense",
    }.get(
        family.partition(",")[0],
        "encoder.layer.{}.attention self.query self.key self.value output.dense",
    ).split()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    for layer, gone in pruned.items():
        kept = [i for i in range(32) if i // 8 not in gone]
        prefix = path.format(layer)
        for name in inputs:
            for part in ("weight", "bias"):
                state[f"{prefix}.{name}.{part}"] = state[f"{prefix}.{name}.{part}"][kept].clone()
        key = f"{prefix}.{out}.weight"
        state[key] = state[key][:, kept].clone()
    folder.mkdir()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**model.config.to_dict(), "pruned_heads": {str(k): v for k, v in pruned.items()}}
    (folder / "config.json").write_text(json.dumps(config))
    return model


@pytest.mark.parametrize("family", ["bert", "albert, two groups"])
def test_old_pruned_heads(family, tmp_path):
    pruned = {0: [1], 1 if "groups" in family else 2: [0, 3]}
    model = old_checkpoint(family, tmp_path / "old", pruned)
    with pytest.raises(RuntimeError, match="mismatch"):
        AutoModel.from_pretrained(tmp_path / "old")
    loaded = headscope.load(str(tmp_path / "old"), need_tokenizer=False)
    whole = headscope.wrap(model)
    modules = list(dict.fromkeys(site.module for site in whole.sites))
    gone = [(s.layer, h) for s in whole.sites for h in pruned.get(modules.index(s.module), [])]
    assert removed_heads(loaded) == tuple(sorted(gone))
    close(plain(loaded), with_gates(whole, gone))
    assert validate_model(loaded).passed


def test_old_pruned_heads_of_a_gpt2(tmp_path):
    """Its config.json says n_head, and keeps one map for q, k and v, transposed."""
    small = headscope.remove_heads(headscope.wrap(tiny("gpt2")), [(0, 1), (2, 0), (2, 3)])
    save_file(small.network.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    config = {**small.model.config.to_dict(), "pruned_heads": {"0": [1], "2": [0, 3]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = headscope.load(str(tmp_path), need_tokenizer=False)
    assert removed_heads(loaded) == removed_heads(small)
    close(plain(loaded), plain(small))


@pytest.mark.parametrize(
    ("pruned", "message"),
    [
        ([1], "not an object"),
        ({"first": [1]}, "layer 'first'"),
        ({"0": [4]}, "below 4"),
        ({"0": [1, 1]}, "different numbers"),
        ({"7": [1]}, "attention module 7, but the model has 3"),
        ({"0": [1, 2]}, r"wrong shape for 7 of the model's tensors \(.*layer.0.attention"),
    ],
)
def test_old_pruned_heads_that_make_no_sense(pruned, message, tmp_path):
    old_checkpoint("bert", tmp_path / "old", {0: [1]})
    path = tmp_path / "old" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pruned_heads": pruned}))
    with pytest.raises(CheckpointError, match=message):
        headscope.load(str(tmp_path / "old"), need_tokenizer=False)
