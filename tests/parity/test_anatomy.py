"""Every family's layers, taken apart: held against what transformers itself says of its states."""

import math
import re
from typing import Any

import pytest
import torch
from contribution_sums import error_of
from families import BY_NAME, FIRST
from torch import Tensor, nn

import headscope
from headscope.analyses.depth.measure import VARIANTS, own_run, run_variant
from headscope.core.errors import UnsupportedModelError
from headscope.models.anatomy.layers import take_apart
from headscope.models.anatomy.residual import find_stream, record
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router

#: Those whose layers are built otherwise than those of the first family of their layout.
OTHERS = (
    *("roberta-prelayernorm", "xlm-roberta-xl", "electra", "xmod", "splinter", "pegasus", "mbart"),
    *("albert, two groups", "albert, inner group", "esm, absolute", "eurobert, shared keys"),
    *("roformer, rotated values", "xlm, sinusoids", "mobilebert, no bottleneck", "mt5"),
    *("deberta-v2, own maps, short", "deberta-v2, as v3, short"),
)
NAMES = [*(family.name for family in FIRST), *OTHERS]
#: Why a family's layers cannot be taken apart.
REFUSED = {
    "mobilebert": "reads another state",  # a narrow copy
    "mobilebert, no bottleneck": "not what one feed-forward network",  # four of them
    "xmod": "not what one feed-forward network",  # an adapter behind it
    "squeezebert": "channels before their positions",
    "deberta-v2, as v3, short": "something between it and the layer before",  # a convolution
}
#: Taken apart, but not into what heads wrote: a convolution goes through W_O beside them.
NOT_ATTRIBUTED = {"convbert": "beside its heads"}
#: These compute their softmax or their norms in float32, whatever the model's type.
ROUNDED = (
    *("layoutlm", "markuplm", "splinter", "xlm", "flaubert"),
    *("eurobert", "t5", "mt5", "umt5", "deberta"),
)


def opened(name: str) -> LoadedModel:
    """Nothing that initialisation makes one or zero is so, and a bias by position matters."""
    model = BY_NAME[name].model("float64")
    torch.manual_seed(2)
    for path, parameter in model.named_parameters():
        if "relative_attention_bias" in path:
            nn.init.normal_(parameter, std=1.5)
        elif parameter.dim() == 1 and "norm" in path.lower():
            shift = 0.0 if path.endswith("bias") else 1.0
            nn.init.normal_(parameter, mean=shift, std=0.2)
    loaded = headscope.wrap(model)
    return loaded.only("encoder") if loaded.encoder_decoder else loaded


def ids(loaded: LoadedModel, n: int = 11) -> Tensor:
    draw = torch.Generator().manual_seed(4)
    return torch.randint(5, loaded.vocab_size, (2, n), generator=draw)


def theirs(loaded: LoadedModel, tokens: Tensor) -> Any:
    model = loaded.model.get_encoder() if loaded.encoder_decoder else loaded.model
    with torch.no_grad():
        return model(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), output_hidden_states=True
        )


def ours(loaded: LoadedModel, tokens: Tensor, name: str) -> list[Tensor]:
    blocks = take_apart(loaded).layers
    variant = next(variant for variant in VARIANTS if variant.name == name)
    router = Router(loaded.sites, others=loaded.others)
    with torch.no_grad():
        return list(run_variant(blocks, router, own_run(loaded, blocks, tokens), variant))


@pytest.mark.parametrize("name", NAMES)
def test_every_family_is_taken_apart_or_refused_with_the_reason(name):
    loaded = opened(name)
    tokens = ids(loaded)
    if name in REFUSED:
        for command in (take_apart, find_stream):
            with pytest.raises(UnsupportedModelError, match=REFUSED[name]) as caught:
                command(loaded)
            assert re.search(rf"layer [01] of .*\({loaded.family}\) apart", str(caught.value))
        return
    slack = 1e-5 if name.split(",")[0] in ROUNDED else 1e-13
    check_depth(loaded, tokens, slack)
    if name in NOT_ATTRIBUTED:
        with pytest.raises(UnsupportedModelError, match=NOT_ATTRIBUTED[name]):
            find_stream(loaded)
    else:
        check_attribute(loaded, tokens, slack)


def check_depth(loaded: LoadedModel, tokens: Tensor, slack: float) -> None:
    """Every state that the parts lead to is transformers' own."""
    own, states = theirs(loaded, tokens), ours(loaded, tokens, "full")
    assert len(states) == len(loaded.sites) + 1
    listed = own.hidden_states
    if len(listed) == len(states):  # ALBERT lists one for each group of layers
        for found, expected in zip(states[:-1], listed[:-1], strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=slack * size(expected))
    last = take_apart(loaded).last
    end = states[-1] if last is None else last.module(states[-1]).detach()
    expected = own.last_hidden_state
    torch.testing.assert_close(end, expected, rtol=0, atol=slack * size(expected))


def check_attribute(loaded: LoadedModel, tokens: Tensor, slack: float) -> None:
    """Any linear reading of transformers' last states is the sum of the parts."""
    expected = theirs(loaded, tokens).last_hidden_state
    reading = torch.randn(expected.shape, dtype=torch.float64)
    run = record(loaded, find_stream(loaded), tokens, torch.ones_like(tokens))
    parts = run.contributions(reading)
    assert error_of(parts, (reading * expected).sum((1, 2))) < slack


def size(states: Tensor) -> float:
    return 10 * max(1.0, float(states.abs().max()))


@pytest.mark.parametrize("name", ["mpnet", "modernbert", "t5", "xlm"])
def test_what_is_left_of_a_pruned_model_is_taken_apart_too(name):
    whole = opened(name)
    stack = ["encoder"] if whole.encoder_decoder else []
    heads = [(*stack, 0, head) for head in range(4)] + [(*stack, 1, 2)]
    cut = headscope.remove_heads(whole.whole or whole, heads)
    networks = headscope.feed_forwards(cut)
    cut = headscope.remove_neurons(cut, {networks[0].name: range(0, 40, 3)})
    if name != "t5":
        cut = headscope.remove_layers(cut, [2])
    cut = cut.only("encoder") if cut.encoder_decoder else cut
    slack = 1e-5 if name in ROUNDED else 1e-13
    check_depth(cut, ids(cut), slack)
    check_attribute(cut, ids(cut), slack)


SIZES: dict[str, dict[str, Any]] = {
    "one layer, one wide head": {
        **{"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 128}
    },
    "no multiple of 64": {"num_attention_heads": 6, "hidden_size": 96},
}


@pytest.mark.parametrize("sizes", SIZES)
def test_every_size_is_taken_apart(sizes):
    loaded = headscope.wrap(BY_NAME["deberta-v2, as v3"].model("float64", **SIZES[sizes]))
    check_depth(loaded, ids(loaded), 1e-13)
    check_attribute(loaded, ids(loaded), 1e-13)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("mpnet", "bfloat16"), ("t5", "float16"), ("gpt2", "bfloat16"), ("modernbert", "float32")],
)
def test_every_type_is_taken_apart(name, dtype):
    loaded = headscope.wrap(BY_NAME[name].model(dtype))
    kinds = [layer.norm_first for layer in take_apart(loaded).layers]
    assert kinds == [name != "mpnet"] * len(kinds)


#: Where transformers keeps the layers, W_O in them, and the last map of the feed-forward network.
PLACES = {
    "mpnet": ("encoder.layer", "attention.attn.o", "output.dense"),
    "deberta-v2, as v3": ("encoder.layer", "attention.output.dense", "output.dense"),
    "modernbert": ("layers", "attn.Wo", "mlp.Wo"),
    "t5": ("encoder.block", "layer.0.SelfAttention.o", "layer.1.DenseReluDense.wo"),
    "gpt2": ("h", "attn.c_proj", "mlp.c_proj"),
    "roberta-prelayernorm": ("encoder.layer", "attention.output.dense", "output.dense"),
}


@pytest.mark.parametrize("name", PLACES)
def test_without_parts_it_is_transformers_own_layers_without_them(name):
    """W_O returns what it does minus the state, so that the model's own skip cancels it."""
    loaded = opened(name)
    tokens, (layers, out, down) = ids(loaded), PLACES[name]
    found = {way: ours(loaded, tokens, way)[-1] for way in ("attention+ffn", "attention+skip")}
    last = take_apart(loaded).last

    def states() -> Tensor:
        seen: list[Tensor] = []
        end = model.get_submodule(layers)[-1].register_forward_hook(
            lambda _m, _a, output: seen.append(output[0] if isinstance(output, tuple) else output)
        )
        theirs(loaded, tokens)
        end.remove()
        return seen[-1]

    model, entered, handles = loaded.model, dict[nn.Module, Tensor](), []
    for layer in model.get_submodule(layers):

        def enter(_, args, kwargs, layer=layer):
            entered[layer] = next(iter((*args, *kwargs.values())))

        def less(_, args, output, layer=layer):
            return output - entered[layer]

        handles.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(layer.get_submodule(out).register_forward_hook(less))
    without_skip = states()
    for handle in handles:
        handle.remove()
    close = {"rtol": 0, "atol": 1e-5 if name == "t5" else 1e-10 * size(without_skip)}
    torch.testing.assert_close(found["attention+ffn"], without_skip, **close)
    assert not math.isclose(size(without_skip), size(states()))
    if last is None:  # post-LN: its second norm would still run
        return
    for layer in model.get_submodule(layers):
        layer.get_submodule(down).register_forward_hook(lambda _m, _a, output: output * 0)
    torch.testing.assert_close(found["attention+skip"], states(), **close)
