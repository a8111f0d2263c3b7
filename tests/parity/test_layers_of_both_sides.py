"""Whole layers of encoder-decoders: equal to layers that return their input, saved, generating."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import BY_NAME
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM

import headscope
from headscope.core.errors import UnsupportedModelError
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import random_twin
from headscope.models.surgery.layers import Layer, removed_layers
from headscope.session.provenance import provenance

TWO: list[Layer] = [("decoder", 1), ("encoder", 0)]
FOUR: list[Layer] = [("encoder", 2), ("decoder", 0), ("decoder", 2), ("encoder", 0)]
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]])


def opened(name: str, **more: Any) -> LoadedModel:
    """A model of three layers on each side."""
    counts = {"t5": ("num_layers",), "umt5": ("num_layers", "encoder_layers")}
    counts_3 = dict.fromkeys(counts.get(name, ("encoder_layers",)), 3)
    network = BY_NAME[name].model(**counts_3, **more)
    return headscope.wrap(network, name=f"tiny {name}")


def states(network: Any) -> Tensor:
    with torch.no_grad():
        out = network(input_ids=IDS, decoder_input_ids=IDS.flip(0), output_hidden_states=True)
    return out.decoder_hidden_states[-1]


def written(network: Any) -> list[list[int]]:
    settings = {"do_sample": False, "num_beams": 2, "max_new_tokens": 9, "min_new_tokens": 9}
    return network.generate(input_ids=IDS, **settings).tolist()


def bypass(network: Any, gone: list[Layer]) -> None:
    """Exchange the forwards of layers by what hands their input on, and nothing else of theirs."""

    def instead(own: Callable[..., Any]) -> Callable[..., Any]:
        def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            out = own(x, *args, **kwargs)  # T5's first layer makes the biases of all
            return (x, *out[1:]) if isinstance(out, tuple) else x

        return forward

    for stack, number in gone:
        side = network.get_encoder() if stack == "encoder" else network.get_decoder()
        layers: nn.ModuleList = side.block if hasattr(side, "block") else side.layers
        layers[number].forward = instead(layers[number].forward)


@pytest.mark.parametrize(
    ("name", "gone"), [("bart", TWO), ("t5", FOUR), ("umt5", TWO), ("marian", FOUR)]
)
def test_a_removed_layer_returns_its_input(name: str, gone: list[Layer], tmp_path: Path) -> None:
    loaded = opened(name)
    cut = headscope.remove_layers(loaded, gone)
    left = {
        (s.stack, s.layer)
        for s in loaded.sites
        if ("decoder" if s.stack == "cross" else s.stack, s.layer) not in gone
    }
    assert {(s.stack, s.layer) for s in cut.sites} == left
    assert set(removed_layers(cut)) == set(gone)
    assert removed_layers(loaded) == ()
    before = states(loaded.network)
    bypass(loaded.network, gone)
    expected = states(loaded.network)
    assert float((before - expected).abs().max()) > 1e-3  # the layers matter
    size = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(states(cut.network), expected, rtol=0, atol=1e-5 * size)
    # Saved: a plain folder of its family, which writes the same tokens.
    tokens = written(cut.network)
    folder = headscope.save(cut, tmp_path / "small")
    manifest = json.loads((folder / "headscope.json").read_text())
    assert manifest["opens"] == "transformers"
    config = json.loads((folder / "config.json").read_text())
    counts = [sum(stack == side for stack, _ in gone) for side in ("encoder", "decoder")]
    names = [("encoder_layers", "decoder_layers"), ("num_layers", "num_decoder_layers")]
    keys = names[name.endswith("t5")]
    assert [config[key] for key in keys] == [3 - count for count in counts]
    plain = AutoModelForSeq2SeqLM.from_pretrained(str(folder)).eval()
    assert type(plain) is type(loaded.network)
    torch.testing.assert_close(states(plain), states(cut.network))
    assert written(plain) == tokens
    again = headscope.load(str(folder), need_tokenizer=False, task_head="seq2seq")
    assert [(s.stack, s.layer, s.name) for s in again.sites] == [
        (s.stack, s.layer, s.name) for s in cut.sites
    ]
    torch.testing.assert_close(states(again.network), states(cut.network))
    assert written(again.network) == tokens
    assert headscope.validate(again).passed


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_layers_neurons_and_heads_in_any_order(name: str, tmp_path: Path) -> None:
    loaded = opened(name)
    heads = [("encoder", 1, 0), ("cross", 2, 3), ("decoder", 1, 1)]
    layers: list[Layer] = [("encoder", 0), ("decoder", 0)]
    one = headscope.remove_layers(headscope.remove_heads(loaded, heads), layers)
    networks = [f for f in headscope.feed_forwards(one) if f.stack == "decoder"]
    one = headscope.remove_neurons(one, {networks[0].name: range(0, 48, 5)})
    other = headscope.remove_layers(loaded, [layers[1], layers[0]])
    other = headscope.remove_neurons(other, {networks[0].name: range(0, 48, 5)})
    folder = headscope.save(headscope.remove_heads(other, heads), tmp_path / "small")
    again = headscope.load(str(folder), need_tokenizer=False, task_head="seq2seq")
    torch.testing.assert_close(states(again.network), states(one.network), rtol=0, atol=2e-5)
    assert written(again.network) == written(one.network)
    assert removed_layers(again) == (("encoder", 0), ("decoder", 0))
    model = provenance(again, command="x", seed=0)["model"]
    assert model["removed_layers"] == [("encoder", 0), ("decoder", 0)]
    less = headscope.remove_layers(again, [("decoder", 1), ("encoder", 2)])
    twice = headscope.save(less, tmp_path / "smaller")
    last = headscope.load(str(twice), need_tokenizer=False, task_head="seq2seq")
    assert {(s.stack, s.layer) for s in last.sites} == {
        ("encoder", 1),
        ("decoder", 2),
        ("cross", 2),
    }
    torch.testing.assert_close(states(last.network), states(less.network))
    assert [s.head_ids for s in random_twin(last, 0).sites] == [s.head_ids for s in last.sites]
    headscope.save_dense(less, tmp_path / "dense")
    dense = headscope.load(str(tmp_path / "dense"), need_tokenizer=False, task_head="seq2seq")
    torch.testing.assert_close(states(dense.network), states(less.network), rtol=0, atol=2e-5)
    if name == "t5":  # its modules cannot run with fewer heads by themselves
        return
    script = headscope.save(less, tmp_path / "alone")
    alone = AutoModelForSeq2SeqLM.from_pretrained(str(script), trust_remote_code=True).eval()
    torch.testing.assert_close(states(alone), states(less.network), rtol=0, atol=2e-5)


def test_a_t5_that_could_not_generate_is_refused() -> None:
    t5 = opened("t5")
    with pytest.raises(UnsupportedModelError, match="cannot be removed: transformers cannot"):
        headscope.remove_layers(t5, [("encoder", 1)])
