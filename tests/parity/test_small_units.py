"""Neurons and whole layers removed for real: equal to zeroed or bypassed, saved, opened again."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from families import BY_NAME, FIRST, Family
from tiny_models import tiny_bert
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM
from transformers.pytorch_utils import Conv1D

import headscope
from headscope.core.errors import CheckpointError, InputError, UnsupportedModelError
from headscope.models.anatomy.feed_forward import FeedForward
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import random_twin
from headscope.models.surgery.layer_stacks import Layer
from headscope.models.surgery.layers import removed_layers
from headscope.models.surgery.neurons import removed_neurons
from headscope.session.provenance import provenance

NAMES = [family.name for family in FIRST if family.kind != "squeezebert"]
#: Families of one stack whose layers have weights of their own.
LAYERED = [f.name for f in FIRST if len(f.stacks) == 1 and f.kind != "albert"]
#: One of each way of keeping neurons and layers, where every family would take too long.
FEW = ("bert", "modernbert", "t5")


def opened(name: str) -> LoadedModel:
    return headscope.wrap(BY_NAME[name].model(), name=f"tiny {name}")


def load(folder: Path) -> LoadedModel:
    return headscope.load(str(folder), need_tokenizer=False, device="cpu")


def states(loaded: LoadedModel) -> Tensor:
    """Return the last states of real tokens; an encoder-decoder's are those of its decoder."""
    ids, mask = loaded.pad([[5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [11, 12, 13]])
    inputs = [ids, mask]
    if loaded.start_id is not None:
        inputs += loaded.pad([[0, 5, 6, 9]] * 2)
    with torch.no_grad():
        return loaded.forward(*inputs)[inputs[-1].bool()]


def close(actual: Tensor, expected: Tensor) -> None:
    size = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * size)


def some(items: tuple[FeedForward, ...]) -> dict[str, list[int]]:
    """Choose other neurons in each network, and none in the second."""
    chosen = {}
    for index, item in enumerate(items):
        if index != 1:
            chosen[item.name] = [j for j in range(item.width) if (j + index) % 4 == 0]
    return chosen


def n_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@contextmanager
def zeroed(item: FeedForward, numbers: list[int]) -> Iterator[None]:
    """Set by hand what these neurons hand on to zero: rows of the second map."""
    W = item.second.weight if isinstance(item.second, Conv1D) else item.second.weight.t()
    before = W.detach().clone()
    with torch.no_grad():
        W[numbers] = 0.0
        yield
        W.copy_(before)


# --- neurons --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, "eurobert, shared keys", "xmod"])
def test_removed_neurons_are_zeroed_neurons(name: str) -> None:
    loaded = opened(name)
    items = headscope.feed_forwards(loaded)
    chosen = some(items)
    with ExitStack() as stack:
        for item in items:
            stack.enter_context(zeroed(item, chosen.get(item.name, [])))
        expected = states(loaded)
    assert float((states(loaded) - expected).abs().max()) > 1e-3  # they matter
    cut = headscope.remove_neurons(loaded, chosen)
    close(states(cut), expected)
    assert removed_neurons(cut) == {key: tuple(value) for key, value in chosen.items()}
    assert removed_neurons(loaded) == {}
    # A neuron owns numbers of all of its maps but the bias of the second.
    n_removed = 0
    for item in items:
        n_numbers = sum(map(n_parameters, (*item.first, item.second)))
        bias = 0 if item.second.bias is None else item.second.bias.numel()
        n_removed += (n_numbers - bias) // item.width * len(chosen.get(item.name, ()))
    assert n_parameters(loaded.model) - n_parameters(cut.model) == n_removed


@pytest.mark.parametrize("name", FEW)
def test_neurons_saved_and_cut_again_keep_their_numbers(name: str, tmp_path: Path) -> None:
    loaded = opened(name)
    first = headscope.remove_neurons(loaded, some(headscope.feed_forwards(loaded)))
    headscope.save(first, tmp_path / "a")
    again = load(tmp_path / "a")
    assert removed_neurons(again) == removed_neurons(first)
    close(states(again), states(first))
    assert headscope.validate(again).passed
    item = headscope.feed_forwards(again)[0]
    less = headscope.remove_neurons(again, {item.name: [item.neuron_ids[5]]})
    assert item.neuron_ids[5] in removed_neurons(less)[item.name]
    with pytest.raises(InputError, match=r"has no neuron .* \(any more\)"):
        headscope.remove_neurons(less, {item.name: [item.neuron_ids[5]]})
    twin = random_twin(less, seed=0)
    assert removed_neurons(twin) == removed_neurons(less)


# --- layers ---------------------------------------------------------------------------------------


def handing_on(original: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's forward that hands its input on, and nothing else of its own."""

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        out = original(x, *args, **kwargs)
        if isinstance(out, dict):
            return {"feature_map": x}
        if isinstance(out, list):  # the first GPT
            return [x, *out[1:]]
        return (x, *out[1:]) if isinstance(out, tuple) else x

    return forward


def without_second_term(module: nn.Module, args: Any, out: Any) -> Any:
    """What a sum of XLM adds to the residual stream, times 0."""
    return (0 * args[0], *out[1:]) if isinstance(out, tuple) else 0 * out


def bypassed(family: Family, network: Any, gone: list[int]) -> None:
    """Let layers return their input, by exchanged forwards of the family's own layers."""
    if family.layout == "xlm":  # no module is a layer: its sums lose their second term
        for layer in gone:
            for module in (network.attentions[layer], network.ffns[layer]):
                module.register_forward_hook(without_second_term)
            for norms in (network.layer_norm1, network.layer_norm2):
                norms[layer] = nn.Identity()
        return
    stack: Any = next(
        module
        for module in network.modules()
        if isinstance(module, nn.ModuleList) and len(module) == network.config.num_hidden_layers
    )

    for layer in gone:
        stack[layer].forward = handing_on(stack[layer].forward)


@pytest.mark.parametrize(
    ("name", "gone"),
    [*((name, [1]) for name in LAYERED), ("modernbert", [0, 2])],
)
def test_a_removed_layer_returns_its_input(name: str, gone: list[int]) -> None:
    loaded = opened(name)
    cut = headscope.remove_layers(loaded, gone)
    windows = {site.layer: site.window for site in loaded.sites}
    remaining = [layer for layer in windows if layer not in gone]
    assert [site.layer for site in cut.sites] == remaining
    assert [site.window for site in cut.sites] == [windows[layer] for layer in remaining]
    assert [site.row for site in cut.sites] == list(range(len(remaining)))
    assert removed_layers(cut) == tuple(gone)
    assert cut.model.config.num_hidden_layers == len(remaining)
    before = states(loaded)
    bypassed(BY_NAME[name], loaded.model, gone)
    expected = states(loaded)
    assert float((before - expected).abs().max()) > 1e-3  # the layers matter
    close(states(cut), expected)


@pytest.mark.parametrize("name", ["modernbert", "xlm"])
def test_layers_saved_and_removed_again_keep_their_numbers(name: str, tmp_path: Path) -> None:
    loaded = opened(name)
    cut = headscope.remove_layers(loaded, [0])
    folder = headscope.save(cut, tmp_path / "a")
    again = load(folder)
    assert [(s.layer, s.head_ids) for s in again.sites] == [
        (s.layer, s.head_ids) for s in cut.sites
    ]
    close(states(again), states(cut))
    assert headscope.validate(again).passed
    # ModernBERT's first layer has no norm of its own, so its plain class cannot start elsewhere.
    plain = json.loads((folder / "headscope.json").read_text())["opens"] == "transformers"
    assert plain == (name != "modernbert")
    less = headscope.remove_layers(again, [2])
    headscope.save(less, tmp_path / "b")
    twice = load(tmp_path / "b")
    assert removed_layers(twice) == (0, 2)
    assert [site.layer for site in twice.sites] == [1, 3][: len(twice.sites)]
    close(states(twice), states(headscope.remove_layers(loaded, [0, 2])))
    if name == "modernbert":
        with pytest.raises(UnsupportedModelError, match="standalone is not possible"):
            headscope.save(headscope.remove_heads(cut, [(1, 0)]), tmp_path / "s", standalone=True)


# --- layers of encoder-decoders -------------------------------------------------------------------

TWO: list[Layer] = [("decoder", 1), ("encoder", 0)]
FOUR: list[Layer] = [("encoder", 2), ("decoder", 0), ("decoder", 2), ("encoder", 0)]
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]])


def three_a_stack(name: str) -> LoadedModel:
    counts = {"t5": ("num_layers",), "umt5": ("num_layers", "encoder_layers")}
    network = BY_NAME[name].model(**dict.fromkeys(counts.get(name, ("encoder_layers",)), 3))
    return headscope.wrap(network, name=f"tiny {name}")


def decoded(network: Any) -> Tensor:
    with torch.no_grad():
        out = network(input_ids=IDS, decoder_input_ids=IDS.flip(0), output_hidden_states=True)
    return out.decoder_hidden_states[-1]


def written(network: Any) -> list[list[int]]:
    settings = {"do_sample": False, "num_beams": 2, "max_new_tokens": 9, "min_new_tokens": 9}
    return network.generate(input_ids=IDS, **settings).tolist()


def seq2seq(folder: Path) -> LoadedModel:
    return headscope.load(str(folder), need_tokenizer=False, task_head="seq2seq")


@pytest.mark.parametrize(
    ("name", "gone"), [("bart", TWO), ("t5", FOUR), ("umt5", TWO), ("marian", FOUR)]
)
def test_a_removed_layer_of_two_stacks_returns_its_input(
    name: str, gone: list[Layer], tmp_path: Path
) -> None:
    loaded = three_a_stack(name)
    cut = headscope.remove_layers(loaded, gone)
    remaining = set()
    for site in loaded.sites:
        stack = "decoder" if site.stack == "cross" else site.stack
        if (stack, site.layer) not in gone:
            remaining.add((site.stack, site.layer))
    assert {(site.stack, site.layer) for site in cut.sites} == remaining
    assert set(removed_layers(cut)) == set(gone)
    assert removed_layers(loaded) == ()
    before = decoded(loaded.network)
    for stack, number in gone:
        network = loaded.network
        module = network.get_encoder() if stack == "encoder" else network.get_decoder()
        layers = module.block if hasattr(module, "block") else module.layers
        layer = layers[number]
        layer.forward = handing_on(layer.forward)  # T5's first layer makes the biases of all
    expected = decoded(loaded.network)
    assert float((before - expected).abs().max()) > 1e-3  # the layers matter
    close(decoded(cut.network), expected)
    # Saved: a plain folder of its family, which writes the same tokens.
    tokens = written(cut.network)
    folder = headscope.save(cut, tmp_path / "small")
    assert json.loads((folder / "headscope.json").read_text())["opens"] == "transformers"
    config = json.loads((folder / "config.json").read_text())
    n_encoder = 3 - [stack for stack, _ in gone].count("encoder")
    n_decoder = 3 - [stack for stack, _ in gone].count("decoder")
    names = ("encoder_layers", "decoder_layers")
    if name.endswith("t5"):
        names = ("num_layers", "num_decoder_layers")
    assert [config[key] for key in names] == [n_encoder, n_decoder]
    plain = AutoModelForSeq2SeqLM.from_pretrained(str(folder)).eval()
    assert type(plain) is type(loaded.network)
    again = seq2seq(folder)
    for network in (plain, again.network):
        torch.testing.assert_close(decoded(network), decoded(cut.network))
        assert written(network) == tokens
    assert [(s.stack, s.layer, s.name) for s in again.sites] == [
        (s.stack, s.layer, s.name) for s in cut.sites
    ]
    assert headscope.validate(again).passed


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_layers_neurons_and_heads_in_any_order(name: str, tmp_path: Path) -> None:
    loaded = three_a_stack(name)
    heads = [("encoder", 1, 0), ("cross", 2, 3), ("decoder", 1, 1)]
    layers: list[Layer] = [("encoder", 0), ("decoder", 0)]
    one = headscope.remove_layers(headscope.remove_heads(loaded, heads), layers)
    networks = [f for f in headscope.feed_forwards(one) if f.stack == "decoder"]
    one = headscope.remove_neurons(one, {networks[0].name: range(0, 48, 5)})
    other = headscope.remove_layers(loaded, [layers[1], layers[0]])
    other = headscope.remove_neurons(other, {networks[0].name: range(0, 48, 5)})
    again = seq2seq(headscope.save(headscope.remove_heads(other, heads), tmp_path / "small"))
    close(decoded(again.network), decoded(one.network))
    assert written(again.network) == written(one.network)
    assert removed_layers(again) == (("encoder", 0), ("decoder", 0))
    model = provenance(again, command="x", seed=0)["model"]
    assert model["removed_layers"] == [("encoder", 0), ("decoder", 0)]
    assert len(model["removed_heads"]) == len(heads)
    assert model["removed_neurons"] == {networks[0].name: 10}
    less = headscope.remove_layers(again, [("decoder", 1), ("encoder", 2)])
    last = seq2seq(headscope.save(less, tmp_path / "smaller"))
    remaining = {(site.stack, site.layer) for site in last.sites}
    assert remaining == {("encoder", 1), ("decoder", 2), ("cross", 2)}
    torch.testing.assert_close(decoded(last.network), decoded(less.network))
    assert [s.head_ids for s in random_twin(last, 0).sites] == [s.head_ids for s in last.sites]
    if name == "t5":  # its modules cannot run with fewer heads by themselves
        return
    script = headscope.save(less, tmp_path / "alone")
    alone = AutoModelForSeq2SeqLM.from_pretrained(str(script), trust_remote_code=True).eval()
    close(decoded(alone), decoded(less.network))


# --- together -------------------------------------------------------------------------------------


def test_names_with_gaps_in_every_table(tmp_path: Path) -> None:
    """Layers and heads keep their numbers where layers are missing; layer 0 reads the same."""
    full = headscope.load(str(tiny_bert(tmp_path / "source", layers=3)))
    cut = headscope.remove_heads(headscope.remove_layers(full, [1]), [(2, 3)])
    again = headscope.load(str(headscope.save(cut, tmp_path / "small")))
    classified = headscope.classify(again, limit=20, validate=False)
    expected = headscope.classify(full, limit=20, validate=False)
    entropy = {(head.layer, head.head): head.entropy for head in classified.heads}
    assert set(entropy) == {*((0, h) for h in range(4)), *((2, h) for h in range(3))}
    for head in expected.heads:
        if head.layer == 0:
            assert entropy[0, head.head] == pytest.approx(head.entropy, abs=1e-5)
    assert classified.heads[-1].layer_name == "L2"
    ranked = headscope.rank(again, fresh=False, validate=False)
    assert [(layer.layer, layer.heads) for layer in ranked.layers] == [
        (0, (0, 1, 2, 3)),
        (2, (0, 1, 2)),
    ]
    sentence = "the big dog ran"
    explained = headscope.explain(again, sentence, head="L2H1", validate=False)
    assert (explained.layer, explained.head) == (2, 1)
    assert explained.step("mix").matrix("heads").rows == ("L2H0", "L2H1", "L2H2", "b_O")
    with pytest.raises(InputError, match="there is no layer 1; the model has L0, L2"):
        headscope.explain(again, sentence, layer=1, validate=False)
    for command in (headscope.symmetric, headscope.linear):
        heads = command(again, [sentence, "the cat sat on the mat"], validate=False).heads
        assert {(head.layer, head.head) for head in heads} == set(entropy)


# --- wrong input ----------------------------------------------------------------------------------

NETWORK = "encoder.layer.1.output.dense"


def without_neurons(gone: dict[str, Any]) -> Callable[[LoadedModel], LoadedModel]:
    return lambda loaded: headscope.remove_neurons(loaded, gone)


def without_layers(*gone: Any) -> Callable[[LoadedModel], LoadedModel]:
    return lambda loaded: headscope.remove_layers(loaded, list(gone))


@pytest.mark.parametrize(
    ("name", "do", "words"),
    [
        ("squeezebert", headscope.feed_forwards, "cannot be taken apart into neurons"),
        ("albert", without_layers(1), "share their weights"),
        ("albert, inner group", without_layers(0), "share their weights"),
        (  # its convolution reads the embeddings, and what the first layer makes of them
            "deberta-v2, as v3, short",
            without_layers(0),
            "Layer 0 of .* cannot be removed: other layers would compute something else",
        ),
        ("t5", without_layers(("encoder", 1)), "cannot be removed: transformers cannot"),
        ("bert", without_neurons({NETWORK: range(48)}), "every neuron of .*; keep at least one"),
        ("bert", without_neurons({NETWORK: [48]}), "has no neuron 48"),
        ("bert", without_neurons({"layer.9": [0]}), r"has no feed-forward network layer\.9"),
        ("bert", without_layers(3), "no layer 3; it has layers 0 to 2"),
        ("bert", without_layers(-1), "no layer -1; it has layers 0 to 2"),
        ("bert", without_layers(0, 1, 2), "every layer of .*; keep at least one"),
        ("bert", lambda m: without_layers(1)(without_layers(1)(m)), "it has layers 0, 2"),
        (
            "bert",
            lambda m: headscope.remove_heads(without_layers(1)(m), [(1, 0)]),
            "layers 0, 2 with heads 0 to 3",
        ),
        ("bart", without_layers(0), r"0; name one as \('decoder', 1\); it has layers 0 to 1 in"),
        ("bart", without_layers(("decoder", 3)), "and layers 0 to 2 in its decoder"),
        ("bart", without_layers(("cross", 0)), r"no layer \('cross', 0\); it has"),
        ("bart", without_layers(("encoder", 0), ("encoder", 1)), "every layer of the encoder of"),
    ],
)
def test_what_cannot_go(name: str, do: Callable[[LoadedModel], Any], words: str) -> None:
    with pytest.raises((InputError, UnsupportedModelError), match=words):
        do(three_a_stack(name) if name == "t5" else opened(name))


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    loaded = headscope.remove_layers(opened("bert"), [1])
    small = headscope.remove_neurons(loaded, {NETWORK: [0]})
    folder = tmp_path_factory.mktemp("small") / "x"
    return headscope.save(headscope.remove_heads(small, [(0, 0)]), folder)


def neurons(**changes: Any) -> dict[str, Any]:
    entry = {"first": ["encoder.layer.1.intermediate.dense"], "before": 48, "kept": "1-47"}
    return {"kept_neurons": {NETWORK: {**entry, **changes}}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (neurons(kept="1-48"), "kept of .* is not a list of neurons below 48"),
        (neurons(before="many"), "does not say which first maps and how many"),
        (neurons(first="x"), "does not say which first maps and how many"),
        (neurons(before=49), "of 49 neurons, but config.json describes none such"),
        (neurons(first=["encoder.layer.7.x"]), "but config.json describes none such"),
        (neurons(first=["encoder.layer.0.intermediate.dense"]), "wrong shape for .*0.intermediate"),
        (neurons(kept="1-46"), "wrong shape for .*1.intermediate.* its weights do not belong"),
        ({"kept_neurons": {}}, "wrong shape"),
        ({"kept_neurons": []}, "kept_neurons is not an object"),
        ({"kept_layers": [0, 3]}, "is not a list of different numbers below 3"),
        ({"kept_layers": []}, "kept_layers names no layer"),
        ({"layers_before": "x"}, "layers_before is 'x'"),
        ({"layers_before": 4}, "4 layers before some were removed, config.json of 3"),
        ({"kept_layers": [0], "kept_neurons": {}}, "but the model has 1, none of this name"),
    ],
)
def test_a_manifest_that_lies(
    changes: dict[str, Any], words: str, small_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(small_folder, tmp_path / "x")
    path = folder / "headscope.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=words):
        load(folder)
