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
from transformers import AutoModel
from transformers.pytorch_utils import Conv1D

import headscope
from headscope.core.errors import CheckpointError, InputError, UnsupportedModelError
from headscope.core.saved_config import as_spans, from_spans
from headscope.models.anatomy.feed_forward import FeedForward
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import random_twin, removed_heads
from headscope.models.surgery.layers import removed_layers
from headscope.models.surgery.neurons import removed_neurons

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
    given = (ids, mask) if loaded.start_id is None else (ids, mask, *loaded.pad([[0, 5, 6, 9]] * 2))
    with torch.no_grad():
        return loaded.forward(*given)[given[-1].bool()]


def close(found: Tensor, expected: Tensor) -> None:
    size = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * size)


def some(items: tuple[FeedForward, ...], *, even: bool = False) -> dict[str, list[int]]:
    """Choose other neurons in each network, equally many where ``even``; none in the second."""
    chosen = {}
    for place, item in enumerate(items):
        if even or place != 1:
            chosen[item.name] = [j for j in range(item.width) if (j + place) % 4 == 0]
    return chosen


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
    fewer = [sum(p.numel() for p in one.model.parameters()) for one in (loaded, cut)]
    each = {}  # Numbers that a neuron owns: all of its maps but the bias of the second
    for item in items:
        maps = [p.numel() for m in (*item.first, item.second) for p in m.parameters()]
        bias = 0 if item.second.bias is None else item.second.bias.numel()
        each[item.name] = (sum(maps) - bias) // item.width
    assert fewer[0] - fewer[1] == sum(each[key] * len(gone) for key, gone in chosen.items())


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
    headscope.save_dense(less, tmp_path / "dense")
    dense = load(tmp_path / "dense")
    assert {f.width for f in headscope.feed_forwards(dense)} == {item.width_before}
    close(states(dense), states(less))
    twin = random_twin(less, seed=0)
    assert removed_neurons(twin) == removed_neurons(less)


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_even_neurons_need_no_headscope(name: str, tmp_path: Path) -> None:
    loaded = opened(name)
    cut = headscope.remove_neurons(loaded, some(headscope.feed_forwards(loaded), even=True))
    folder = headscope.save(cut, tmp_path / "x")
    manifest = json.loads((folder / "headscope.json").read_text())
    assert manifest["opens"] == "transformers"
    assert json.loads((folder / "config.json").read_text())["model_type"] == BY_NAME[name].kind
    assert set(manifest["config"].values()) <= {48, None, 128}
    assert removed_neurons(load(folder)) == removed_neurons(cut)


# --- layers ---------------------------------------------------------------------------------------


def bypassed(family: Family, network: Any, gone: list[int]) -> None:
    """Let layers return their input, by exchanged forwards of the family's own layers."""
    if family.layout == "xlm":  # no module is a layer: its sums lose their second term
        for layer in gone:
            for part in (network.attentions[layer], network.ffns[layer]):
                part.register_forward_hook(
                    lambda _, args, out: (
                        (0 * args[0], *out[1:]) if isinstance(out, tuple) else 0 * out
                    )
                )
            for norms in (network.layer_norm1, network.layer_norm2):
                norms[layer] = nn.Identity()
        return
    stack: Any = next(
        module
        for module in network.modules()
        if isinstance(module, nn.ModuleList) and len(module) == network.config.num_hidden_layers
    )

    def instead(own: Callable[..., Any]) -> Callable[..., Any]:
        def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            out = own(x, *args, **kwargs)
            if isinstance(out, dict):
                return {"feature_map": x}
            return (x, *out[1:]) if isinstance(out, tuple) else x

        return forward

    for layer in gone:
        stack[layer].forward = instead(stack[layer].forward)


@pytest.mark.parametrize(
    ("name", "gone"),
    [*((name, [1]) for name in LAYERED), ("modernbert", [0, 2])],
)
def test_a_removed_layer_returns_its_input(name: str, gone: list[int]) -> None:
    loaded = opened(name)
    cut = headscope.remove_layers(loaded, gone)
    windows = {site.layer: site.window for site in loaded.sites}
    left = [layer for layer in windows if layer not in gone]
    assert [site.layer for site in cut.sites] == left
    assert [site.window for site in cut.sites] == [windows[layer] for layer in left]
    assert [site.row for site in cut.sites] == list(range(len(left)))
    assert removed_layers(cut) == tuple(gone)
    assert cut.model.config.num_hidden_layers == len(left)
    whole = states(loaded)
    bypassed(BY_NAME[name], loaded.model, gone)
    expected = states(loaded)
    assert float((whole - expected).abs().max()) > 1e-3  # the layers matter
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
        with pytest.raises(UnsupportedModelError, match="layers differ by place; save it compact"):
            headscope.save_dense(cut, tmp_path / "dense")
        with pytest.raises(UnsupportedModelError, match="standalone is not possible"):
            headscope.save(headscope.remove_heads(cut, [(1, 0)]), tmp_path / "s", standalone=True)
        return
    headscope.save_dense(less, tmp_path / "dense")
    dense = load(tmp_path / "dense")
    assert [site.layer for site in dense.sites] == [1]
    close(states(dense), states(less))


# --- together -------------------------------------------------------------------------------------


def test_heads_neurons_and_layers_together(tmp_path: Path) -> None:
    """In any order; opened by transformers, and saved by it again."""
    loaded = opened("bert")
    names = [item.name for item in headscope.feed_forwards(loaded)]
    heads = [(0, 1), (2, 0), (2, 3)]
    one = headscope.remove_heads(loaded, heads)
    one = headscope.remove_neurons(one, {names[2]: [0, 9], names[0]: [3]})
    one = headscope.remove_layers(one, [1])
    other = headscope.remove_layers(loaded, [1])
    later = [item.name for item in headscope.feed_forwards(other)]
    other = headscope.remove_neurons(other, {later[1]: [0, 9], later[0]: [3]})
    other = headscope.remove_heads(other, heads)
    for cut in (one, other):
        assert [(s.layer, s.head_ids) for s in cut.sites] == [(0, (0, 2, 3)), (2, (1, 2))]
        assert removed_neurons(cut) == {later[0]: (3,), later[1]: (0, 9)}
    close(states(one), states(other))
    folder = headscope.save(one, tmp_path / "x")
    theirs = AutoModel.from_pretrained(folder).eval()
    assert theirs.config.num_hidden_layers == 2
    theirs.save_pretrained(tmp_path / "y")
    for again in (headscope.wrap(theirs), load(folder), load(tmp_path / "y")):
        close(states(again), states(one))
        assert removed_layers(again) == (1,)
        assert len(removed_heads(again)) == 3
        assert removed_neurons(again) == removed_neurons(one)
    model = headscope.validate(load(folder)).provenance["model"]
    assert model["removed_layers"] == [1]
    assert model["removed_heads"] == [[0, 1], [2, 0], [2, 3]]
    assert model["removed_neurons"] == {later[0]: 1, later[1]: 2}


def test_the_demo_elsewhere(demo: LoadedModel, tmp_path: Path) -> None:
    """sentence-transformers computes what we do."""
    from sentence_transformers import SentenceTransformer

    cut = headscope.remove_heads(headscope.remove_layers(demo, [1, 2, 3, 4]), [(5, 3)])
    items = headscope.feed_forwards(cut)
    cut = headscope.remove_neurons(cut, {item.name: range(0, item.width, 3) for item in items})
    folder = headscope.save(cut, tmp_path / "small")
    texts = ["The report came out in March.", "Rain again."]
    ids, mask = cut.pad(cut.tokenizer(texts)["input_ids"])
    with torch.no_grad():
        expected = cut.pooling.embed(cut.forward(ids, mask), mask)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts, convert_to_tensor=True)
    torch.testing.assert_close(theirs, expected, rtol=0, atol=1e-5)


def test_names_with_gaps_in_every_table(tmp_path: Path) -> None:
    """Layers and heads keep their numbers where layers are missing; layer 0 reads the same."""
    whole = headscope.load(str(tiny_bert(tmp_path / "source", layers=3)))
    cut = headscope.remove_heads(headscope.remove_layers(whole, [1]), [(2, 3)])
    again = headscope.load(str(headscope.save(cut, tmp_path / "small")))
    options: dict[str, Any] = {"limit": 20, "validate": False}
    found, expected = (headscope.classify(model, **options) for model in (again, whole))
    entropy = {(head.layer, head.head): head.entropy for head in found.heads}
    assert set(entropy) == {*((0, h) for h in range(4)), *((2, h) for h in range(3))}
    for head in expected.heads:
        if head.layer == 0:
            assert entropy[0, head.head] == pytest.approx(head.entropy, abs=1e-5)
    assert [head.layer_name for head in found.heads][-1] == "L2"
    ranked = headscope.rank(again, fresh=False, validate=False)
    assert [(layer.layer, layer.heads) for layer in ranked.layers] == [
        (0, (0, 1, 2, 3)),
        (2, (0, 1, 2)),
    ]
    sentence = "the big dog ran"
    explained = headscope.explain(again, sentence, head="L2H1", validate=False)
    assert (explained.layer, explained.head) == (2, 1)
    with pytest.raises(InputError, match="there is no layer 1; the model has L0, L2"):
        headscope.explain(again, sentence, layer=1, validate=False)


# --- wrong input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "do", "words"),
    [
        ("squeezebert", headscope.feed_forwards, "cannot be taken apart into neurons"),
        ("albert", lambda m: headscope.remove_layers(m, [1]), "share their weights"),
        ("albert, inner group", lambda m: headscope.remove_layers(m, [0]), "share their weights"),
        (  # its convolution reads the embeddings, and what the first layer makes of them
            "deberta-v2, as v3, short",
            lambda m: headscope.remove_layers(m, [0]),
            "Layer 0 of .* cannot be removed: other layers would compute something else",
        ),
    ],
)
def test_models_that_cannot(name: str, do: Callable[[LoadedModel], Any], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        do(opened(name))


def test_parts_that_cannot_go() -> None:
    bert = opened("bert")
    name = "encoder.layer.1.output.dense"
    with pytest.raises(InputError, match=r"every neuron of .*; keep at least one, or remove the"):
        headscope.remove_neurons(bert, {name: range(48)})
    with pytest.raises(InputError, match="has no neuron 48"):
        headscope.remove_neurons(bert, {name: [48]})
    with pytest.raises(InputError, match=r"has no feed-forward network encoder\.layer\.9"):
        headscope.remove_neurons(bert, {"encoder.layer.9": [0]})
    for layer in (3, -1):
        with pytest.raises(InputError, match=f"no layer {layer}; it has layers 0 to 2"):
            headscope.remove_layers(bert, [layer])
    with pytest.raises(InputError, match=r"every layer of .*; keep at least one"):
        headscope.remove_layers(bert, [0, 1, 2])
    bart = opened("bart")
    for layer, said in (
        (0, r"0; name one as \('decoder', 1\); it has layers 0 to 1 in its encoder"),
        (("decoder", 3), r"\('decoder', 3\); it has .* and layers 0 to 2 in its decoder"),
        (("cross", 0), r"\('cross', 0\); it has"),
    ):
        with pytest.raises(InputError, match=f"has no layer {said}"):
            headscope.remove_layers(bart, [layer])
    with pytest.raises(InputError, match="every layer of the encoder of tiny bart; keep at least"):
        headscope.remove_layers(bart, [("encoder", 0), ("encoder", 1)])
    with pytest.raises(InputError, match="no layer 1; it has layers 0, 2"):
        headscope.remove_layers(headscope.remove_layers(bert, [1]), [1])
    with pytest.raises(InputError, match="layers 0, 2 with heads 0 to 3"):
        headscope.remove_heads(headscope.remove_layers(bert, [1]), [(1, 0)])


NETWORK = "encoder.layer.1.output.dense"


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


def test_spans() -> None:
    for numbers in ((), (0,), (3, 4, 5), (0, 2, 3, 9), tuple(range(3000))):
        assert from_spans(as_spans(numbers), 3000) == numbers
    assert as_spans([3, 4, 5, 9, 11, 12, 0]) == "3-5,9,11-12,0"
    for wrong in ("5-3", "1,1", "1-3,2", "3000", "1-", "1,,2", "a", None, 3, "1-999999999999"):
        assert from_spans(wrong, 3000) is None
