"""Models without some heads: equal to zeroing by name, saved, generating; old folders; refusals."""

import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from families import (
    SITES,
    Named,
    batch,
    ids_and_mask,
    opened,
    out_name,
    padded_batch,
    real,
    run,
    tiny,
    zeroed,
)
from safetensors.torch import load_file, save_file
from tiny_models import write_translator
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM

import headscope
from headscope.core.errors import CheckpointError, InputError, UnwrittenError
from headscope.models.certificate.certificate import validate_model
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import random_twin, removed_heads

IDS, VALID = padded_batch()
REAL = VALID.bool()
STACKS = ("encoder", "decoder", "cross")
#: Some of a layer, all of a layer, and the first head of another.
SOME = [(0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]
#: Some of a layer in every stack, and the first layer of the decoder whole: T5's keeps the table of
#: biases that the other layers use.
OF_STACKS: list[Named] = [
    *(("encoder", 1, head) for head in (0, 3)),
    *(("decoder", 0, head) for head in range(4)),
    ("decoder", 2, 1),
    *(("cross", 1, head) for head in (1, 2)),
]
each_kind = pytest.mark.parametrize("kind", ["bart", "t5"])


def every_head(layers: Iterable[int]) -> list[tuple[int, int]]:
    """All four heads of some layers."""
    return list(product(layers, range(4)))


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def plain(loaded: LoadedModel) -> Tensor:
    with torch.no_grad():
        return loaded.forward(IDS, VALID)[REAL]


def own_run(loaded: LoadedModel, network: Any, implementation: str = "eager") -> Tensor:
    """Run another network of the same family in the model's own way."""
    network.set_attn_implementation(implementation)
    return run(headscope.wrap(network), batch(loaded))


def reopened(folder: Path, task_head: str | None = "auto") -> LoadedModel:
    return headscope.load(str(folder), task_head=task_head, need_tokenizer=False, device="cpu")


# --- encoder-decoders -----------------------------------------------------------------------------


@each_kind
def test_removed_is_zeroed_and_stays_so_when_saved(kind, tmp_path):
    loaded = opened(kind)
    compact = headscope.remove_heads(loaded, OF_STACKS)
    expected = own_run(loaded, zeroed(kind, loaded.network, OF_STACKS))
    close(run(compact, batch(compact)), expected)
    with gated(compact) as through_ours:
        close(through_ours(**batch(compact))[0][real(batch(compact))], expected)
    for site in compact.sites:
        gone = {h for stack, layer, h in OF_STACKS if (stack, layer) == (site.stack, site.layer)}
        assert {*range(4)} - {*site.head_ids} == gone
        out = compact.network.get_parameter(out_name(kind, site.stack, site.layer))
        assert out.shape == (32, 8 * (4 - len(gone)))
    headscope.save(compact, tmp_path / "compact")
    for task_head in ("auto", None):
        again = reopened(tmp_path / "compact", task_head)
        assert again.task_head == ("seq2seq" if task_head else None)
        with torch.no_grad():
            close(again.run(**batch(again))[0][real(batch(again))], expected)
        result = validate_model(again)
        assert result.passed, result.reasons
        assert [s.head_ids for s in again.sites] == [s.head_ids for s in compact.sites]

    # Cut once more, and saved over the folder that it was read from.
    more: list[Named] = [("encoder", 1, 1), ("decoder", 2, 3), ("cross", 0, 0)]
    once = reopened(tmp_path / "compact")
    headscope.save(headscope.remove_heads(once, more), tmp_path / "compact")
    twice = reopened(tmp_path / "compact")
    expected = own_run(loaded, zeroed(kind, loaded.network, [*OF_STACKS, *more]))
    close(run(twice, batch(twice)), expected)
    assert twice.sites[1].head_ids == (2,)
    assert twice.origin["id"] == f"tiny {kind}"
    with pytest.raises(InputError, match="cross:L0H0 has been removed"):
        headscope.remove_heads(twice, [("cross", 0, 0)])


@pytest.mark.parametrize(("kind", "stack"), [("bart", "encoder"), ("t5", "cross")])
def test_a_layer_a_stack_and_heads_of_a_view_may_go(kind, stack):
    loaded = opened(kind)
    layers = [layer for name, layer in SITES if name == stack]
    for gone in ([0], layers):
        heads = [(stack, layer, head) for layer, head in every_head(gone)]
        compact = headscope.remove_heads(loaded, heads)
        for implementation in ("eager", "sdpa"):
            expected = own_run(loaded, zeroed(kind, loaded.network, heads), implementation)
            compact.network.set_attn_implementation(implementation)
            close(run(compact, batch(compact)), expected)
        assert validate_model(compact).passed, validate_model(compact).reasons
    # Heads of a view are named by layer and head, or in full.
    heads_of_view = [(0, 1), (1, 0), (1, 3)]
    named = [(stack, *head) for head in heads_of_view]
    expected = own_run(loaded, zeroed(kind, loaded.network, named))
    for names in (heads_of_view, named):
        view = headscope.remove_heads(loaded.only(stack), names)
        assert view.stacks == (stack,)
        assert removed_heads(view) == tuple(heads_of_view)
        close(run(view.view_of, batch(loaded)), expected)


@each_kind
def test_gates_of_a_view_are_those_of_its_rows_and_so_are_their_gradients(kind):
    loaded = opened(kind)
    random_gates = torch.rand(8, 4, generator=torch.Generator().manual_seed(4))
    for stack in STACKS:
        rows = [row for row, (name, _) in enumerate(SITES) if name == stack]
        gates_of_stack = torch.ones(8, 4)
        gates_of_stack[rows] = random_gates[rows]
        with gated(loaded.only(stack), random_gates[rows]) as through_ours:
            by_view = through_ours(**batch(loaded))
        with gated(loaded, gates_of_stack) as through_ours:
            by_model = through_ours(**batch(loaded))
        torch.testing.assert_close(by_view, by_model, rtol=0, atol=0)
    scaled = zeroed(kind, loaded.network, [])
    with torch.no_grad():
        for (stack, layer), factors in zip(SITES, random_gates, strict=True):
            scaled.get_parameter(out_name(kind, stack, layer)).mul_(factors.repeat_interleave(8))
    with gated(loaded, random_gates) as through_ours:
        close(through_ours(**batch(loaded))[0][real(batch(loaded))], own_run(loaded, scaled))

    # A gate scales a head's columns of W_O: d loss / d gate is the sum of W_O * d loss / d W_O.
    gates = torch.ones(8, 4, requires_grad=True)
    weights = torch.linspace(-1, 1, 32)
    with gated(loaded, gates, gradients=True) as through_ours:
        hidden, _ = through_ours(**batch(loaded))
        (gradients,) = torch.autograd.grad((hidden[real(batch(loaded))] @ weights).sum(), gates)
    network = loaded.network
    network.set_attn_implementation("eager")
    out = network(**batch(loaded), output_hidden_states=True)
    (out.decoder_hidden_states[-1][real(batch(loaded))] @ weights).sum().backward()
    for row, site in enumerate(SITES):
        W_O = network.get_parameter(out_name(kind, *site))
        by_head = (W_O * W_O.grad).detach().sum(0).view(4, 8).sum(1)
        torch.testing.assert_close(gradients[row], by_head, rtol=1e-3, atol=1e-3)
    assert bool((gradients.abs() > 1e-3).any(1).all())


def generated(model: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Return ten tokens a sentence, and what each of them was chosen by."""
    ids, mask = ids_and_mask((9, 5, 7), 1)
    options |= {"max_new_tokens": 10, "min_new_tokens": 10, "num_beams": 1, "do_sample": False}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    out = model.generate(input_ids=ids, attention_mask=mask, **options)
    return out.sequences, torch.stack(out.logits)


@each_kind
def test_a_compact_model_generates_what_the_zeroed_one_does(kind):
    """With and without a cache of keys and values, whose shape a removed head changes."""
    # transformers makes T5's cache as long as its encoder
    loaded = opened(kind, "float64", **({"num_layers": 3} if kind == "t5" else {}))
    for heads in (OF_STACKS, [head for head in OF_STACKS if head[:2] != ("decoder", 0)]):
        compact = headscope.remove_heads(loaded, heads)
        tokens, logits = generated(zeroed(kind, loaded.network, heads), use_cache=False)
        assert float((generated(loaded.network)[1] - logits).abs().max()) > 1e-2  # they matter
        for cached in (True, False):
            tokens_of_compact, logits_of_compact = generated(compact.network, use_cache=cached)
            assert torch.equal(tokens_of_compact, tokens)
            # (T5's norms are computed in float32, whatever its weights are)
            torch.testing.assert_close(logits_of_compact, logits, rtol=0, atol=1e-5)
    assert loaded.network.config.use_cache is not False


def test_stacks_may_have_different_numbers_of_heads(tmp_path):
    loaded = opened("bart", encoder_attention_heads=2, decoder_attention_heads=4)
    assert [site.n_heads for site in loaded.sites] == [2] * 2 + [4] * 6
    compact = headscope.remove_heads(
        loaded, [("encoder", 0, 1), ("decoder", 1, 0), ("cross", 2, 1)]
    )
    headscope.save(compact, tmp_path / "x")
    again = reopened(tmp_path / "x")
    assert [site.head_ids for site in again.sites] == [site.head_ids for site in compact.sites]
    close(run(again, batch(again)), run(compact, batch(compact)))
    assert validate_model(again).passed, validate_model(again).reasons


def test_rounding_that_a_model_magnifies_is_no_other_model(tmp_path):
    """This one's logits differ by 2e-4 between eager attention and SDPA, of equal weights."""
    loaded = reopened(write_translator(tmp_path / "model", "bart"))
    headscope.save(headscope.remove_heads(loaded, [("cross", 0, 0)]), tmp_path / "smaller")
    assert reopened(tmp_path / "smaller").sites[4].head_ids == (1, 2, 3)


# --- one stack ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "view", "heads", "words"),
    [
        ("bert", "all", [(0, 4)], r"no head L.*layers 0 to 2 with heads 0 to 3"),
        ("bert", "all", every_head(range(3)), "every head"),
        ("albert", "all", every_head([1]), "every head"),  # one layer is all of them
        ("bert", "all", ["L0H1"], r"'L0H1' names no head; give one as \(layer, head\)"),
        ("bert", "all", [(0,)], r"\(0,\) names no head"),
        ("bart", "all", [(0, 1)], r"several stacks: name a head as \(stack, layer, head\)"),
        ("bart", "all", [("cross", 0, 4)], "no head cross:L0H4.*layers 0 to 2"),
        ("bart", "cross", [("encoder", 0, 0)], "no stack 'encoder'; it has cross"),
    ],
)
def test_heads_that_cannot_go(family, view, heads, words):
    with pytest.raises(InputError, match=words):
        headscope.remove_heads(opened(family).only(view), heads)


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
    present = ([0, 2, 3], [], [1, 2, 3])
    removed = ([1], [0, 1, 2, 3], [0])
    for layer, entry in enumerate(manifest["attention"]):
        assert entry == {
            "module": f"encoder.layer.{layer}.attention.self",
            "stack": "encoder",
            "layers": [layer],
            "kept": present[layer],
            "removed": removed[layer],
        }
    assert (manifest["repair"], manifest["provenance"]) == ("scale", {"seed": 3})
    assert manifest["source"] == {"id": "source", "revision": None, "weights_sha256": None}
    state = load_file(tmp_path / "x" / "model.safetensors")
    assert state["encoder.layer.1.attention.output.dense.weight"].shape == (32, 0)


def test_folders_of_earlier_versions_open(tmp_path):
    """Of 0.1: with zeros in place of heads, or with fewer rows of the vocabulary."""
    loaded = headscope.wrap(tiny("bert"), name="source")
    folder = headscope.save(loaded, tmp_path / "x")
    path = folder / "headscope.json"
    manifest = json.loads(path.read_text())
    manifest["form"] = "dense"
    manifest["attention"][0]["kept"] = [1, 2, 3]  # the first head's columns of W_O are zeros
    manifest["vocabulary"] = {"rows": 30522, "kept": "0-89"}
    path.write_text(json.dumps(manifest))
    again = reopened(folder, None)
    assert [site.head_ids for site in again.sites] == [(0, 1, 2, 3)] * 3
    close(plain(again), plain(loaded))


def test_half_precision_weights_stay_half_and_tied(tmp_path):
    model = tiny("bert", "float16", auto=AutoModelForMaskedLM).float()
    compact = headscope.remove_heads(headscope.wrap(model), SOME)
    headscope.save(compact, tmp_path / "half")
    state = load_file(tmp_path / "half" / "model.safetensors")
    assert {v.dtype for v in state.values()} == {torch.float16}
    assert "cls.predictions.decoder.weight" not in state
    close(plain(reopened(tmp_path / "half", "mlm")), plain(compact))
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
    with pytest.raises(UnwrittenError, match="the disk is full"):
        headscope.save(loaded, tmp_path / "a" / "b" / "model")
    assert not any(tmp_path.iterdir())


# --- folders of transformers 4, whose config.json has pruned_heads --------------------------------

ALBERT = "encoder.albert_layer_groups.{}.albert_layers.0.attention query key value dense"
BERT = "encoder.layer.{}.attention self.query self.key self.value output.dense"


def old_checkpoint(family: str, folder: Path, pruned: dict[int, list[int]]) -> Any:
    """What ``prune_heads`` of transformers 4 wrote, by hand; checked against 4.46 itself."""
    model = tiny(family)
    path, *inputs, out = (ALBERT if "albert" in family else BERT).split()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    for layer, gone in pruned.items():
        columns = [i for i in range(32) if i // 8 not in gone]
        prefix = path.format(layer)
        for name, tensor_name in product(inputs, ("weight", "bias")):
            key = f"{prefix}.{name}.{tensor_name}"
            state[key] = state[key][columns].clone()
        key = f"{prefix}.{out}.weight"
        state[key] = state[key][:, columns].clone()
    write_old(folder, state, model.config, pruned)
    return model


def write_old(folder: Path, state: dict[str, Tensor], config: Any, pruned: Any) -> None:
    folder.mkdir()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    stated = {**config.to_dict(), "pruned_heads": {str(k): v for k, v in pruned.items()}}
    (folder / "config.json").write_text(json.dumps(stated))


@pytest.mark.parametrize("family", ["bert", "albert, two groups"])
def test_old_pruned_heads(family, tmp_path):
    second = 1 if "groups" in family else 2
    pruned = {0: [1], second: [0, 3]}
    full = headscope.wrap(old_checkpoint(family, tmp_path / "old", pruned))
    with pytest.raises(RuntimeError, match="mismatch"):
        AutoModel.from_pretrained(tmp_path / "old")
    loaded = reopened(tmp_path / "old")
    modules = list(dict.fromkeys(site.module for site in full.sites))
    gates = torch.ones(full.n_layers, full.n_heads)
    for site in full.sites:
        gates[site.layer, pruned.get(modules.index(site.module), [])] = 0.0
    assert removed_heads(loaded) == tuple(map(tuple, (gates == 0).nonzero().tolist()))
    with gated(full, gates) as through_ours:
        close(plain(loaded), through_ours(IDS, VALID)[0][REAL])
    assert validate_model(loaded).passed


def test_old_pruned_heads_of_a_gpt2(tmp_path):
    """Its config.json says n_head, and keeps one map for q, k and v, transposed."""
    small = headscope.remove_heads(headscope.wrap(tiny("gpt2")), [(0, 1), (2, 0), (2, 3)])
    pruned = {0: [1], 2: [0, 3]}
    write_old(tmp_path / "old", small.network.state_dict(), small.model.config, pruned)
    loaded = reopened(tmp_path / "old")
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
        reopened(tmp_path / "old")
