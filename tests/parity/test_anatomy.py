"""Every layer, taken apart: put together it is the model's; without parts, a plain loop's."""

import math
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from contribution_sums import error_of
from families import BY_NAME, FIRST, Family
from numpy.typing import NDArray
from torch import Tensor, nn

import headscope
from headscope.analyses.depth.measure import (
    VARIANTS,
    Variant,
    measure_ratios,
    own_run,
    residual_ratio,
    run_variant,
)
from headscope.analyses.depth.run import check_decomposition
from headscope.core.errors import UnsupportedModelError, ValidationFailedError
from headscope.models.anatomy.layers import take_apart
from headscope.models.anatomy.residual import find_stream, record
from headscope.models.certificate.certificate import validate_model
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router

FULL = next(variant for variant in VARIANTS if variant.name == "full")
#: Those whose layers are built otherwise than those of the first family of their layout.
OTHERS = (
    "roberta-prelayernorm",
    "xlm-roberta-xl",
    "electra",
    "xmod",
    "splinter",
    "pegasus",
    "mbart",
    "albert, two groups",
    "albert, inner group",
    "esm, absolute",
    "eurobert, shared keys",
    "roformer, rotated values",
    "xlm, sinusoids",
    "mobilebert, no bottleneck",
    "mt5",
    "deberta-v2, own maps, short",
    "deberta-v2, as v3, short",
    "gemma2",  # norms before a sublayer, and of what it writes
    "olmo2",  # norms of what it writes alone
    "granite",  # what it writes is multiplied by a factor
    "mixtral",
    "qwen2_moe",  # an expert that every token passes, beside the others
    "falcon, shared keys",
)
NAMES = [*(family.name for family in FIRST), *OTHERS]
#: Why a family's layers cannot be taken apart.
REFUSED = {
    "mobilebert": "reads another state",  # a narrow copy
    "mobilebert, no bottleneck": "not what one feed-forward network",  # four of them
    "xmod": "not what one feed-forward network",  # an adapter behind it
    "squeezebert": "channels before their positions",
    "deberta-v2, as v3, short": "something between it and the layer before",  # a convolution
    # Its last layer adds a bias behind W_O.
    "gpt_neox_japanese": "not what one feed-forward network",
}
#: Taken apart, but not into what heads wrote: a convolution goes through W_O beside them.
NOT_ATTRIBUTED = {"convbert": "beside its heads"}
#: These compute their softmax or their norms in float32, whatever the model's type.
ROUNDED = (
    "layoutlm",
    "markuplm",
    "splinter",
    "xlm",
    "flaubert",
    "eurobert",
    "t5",
    "mt5",
    "umt5",
    "deberta",
    *("qwen3", "gemma2", "olmo2", "granite", "mixtral", "qwen2_moe", "phi3"),
    *("gptj", "gpt_neo", "bloom", "codegen"),
)


def opened(name: str, **changes: Any) -> LoadedModel:
    """Nothing that initialisation makes one or zero is so, and a bias by position matters."""
    model = BY_NAME[name].model("float64", **changes)
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


def ours(loaded: LoadedModel, tokens: Tensor, variant: Variant = FULL) -> list[Tensor]:
    blocks = take_apart(loaded).layers
    router = Router(loaded.sites, unmeasured_sites=loaded.unmeasured_sites)
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
            assert re.search(rf"layer [012] of .*\({loaded.family}\) apart", str(caught.value))
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
    expected_run = theirs(loaded, tokens)
    states = ours(loaded, tokens)
    assert len(states) == len(loaded.sites) + 1
    listed = expected_run.hidden_states
    if len(listed) == len(states):  # ALBERT lists one for each group of layers
        for state, expected in zip(states[:-1], listed[:-1], strict=True):
            torch.testing.assert_close(state, expected, rtol=0, atol=slack * size(expected))
    last = take_apart(loaded).last
    last_state = states[-1] if last is None else last.module(states[-1]).detach()
    expected = expected_run.last_hidden_state
    torch.testing.assert_close(last_state, expected, rtol=0, atol=slack * size(expected))


def check_attribute(loaded: LoadedModel, tokens: Tensor, slack: float) -> None:
    """Any linear reading of transformers' last states is the sum of the parts."""
    expected = theirs(loaded, tokens).last_hidden_state
    reading = torch.randn(expected.shape, dtype=torch.float64)
    run = record(loaded, find_stream(loaded), tokens, torch.ones_like(tokens))
    contributions = run.contributions(reading)
    assert error_of(contributions, (reading * expected).sum((1, 2))) < slack


def size(states: Tensor) -> float:
    return 10 * max(1.0, float(states.abs().max()))


@pytest.mark.parametrize("name", ["mpnet", "modernbert", "t5", "xlm"])
def test_what_is_left_of_a_pruned_model_is_taken_apart_too(name):
    full = opened(name)
    stack = ["encoder"] if full.encoder_decoder else []
    heads = [(*stack, 0, head) for head in range(4)] + [(*stack, 1, 2)]
    cut = headscope.remove_heads(full.with_all_stacks, heads)
    networks = headscope.feed_forwards(cut)
    cut = headscope.remove_neurons(cut, {networks[0].name: range(0, 40, 3)})
    if name != "t5":
        cut = headscope.remove_layers(cut, [2])
    cut = cut.only("encoder") if cut.encoder_decoder else cut
    slack = 1e-5 if name in ROUNDED else 1e-13
    check_depth(cut, ids(cut), slack)
    check_attribute(cut, ids(cut), slack)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("mpnet", "bfloat16"), ("t5", "float16"), ("gpt2", "bfloat16"), ("modernbert", "float32")],
)
def test_every_type_is_taken_apart(name, dtype):
    loaded = headscope.wrap(BY_NAME[name].model(dtype))
    kinds = [layer.norm_first for layer in take_apart(loaded).layers]
    assert kinds == [name != "mpnet"] * len(kinds)


Array = NDArray[np.float64]
#: Of q, k, v, o, the first LayerNorm, both maps of the network, and the second LayerNorm.
ROLES = ("q", "k", "v", "o", "n1", "up", "down", "n2")
_SELF = "attention.self.query attention.self.key attention.self.value attention.output.dense"
PLACES = {
    "bert": f"{_SELF} attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm",
    "roberta-prelayernorm": f"{_SELF} attention.LayerNorm intermediate.dense output.dense "
    "intermediate.LayerNorm",
}


def affine(linear: Any, x: Array) -> Array:
    return x @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()


def normed(norm: Any, x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(-1, keepdims=True) + norm.eps)
    return centred / scale * norm.weight.detach().numpy() + norm.bias.detach().numpy()


def attended(w: dict[str, Any], x: Array, n_heads: int) -> Array:
    """Head by head."""
    q = affine(w["q"], x).reshape(len(x), n_heads, -1)
    k = affine(w["k"], x).reshape(len(x), n_heads, -1)
    v = affine(w["v"], x).reshape(len(x), n_heads, -1)
    z = []
    for h in range(n_heads):
        scores = q[:, h] @ k[:, h].T / math.sqrt(q.shape[-1])
        exps = np.exp(scores - scores.max(-1, keepdims=True))
        z.append(exps / exps.sum(-1, keepdims=True) @ v[:, h])
    return affine(w["o"], np.concatenate(z, axis=-1))


def one_layer(w: dict[str, Any], x: Array, n_heads: int, variant: str, *, pre: bool) -> Array:
    """What each variant of a layer is, spelt out."""
    full = variant.startswith("full")
    first = partial(normed, w["n1"])
    second = partial(normed, w["n2"])
    if "without-layernorm" in variant:
        first = second = lambda x: x
    y = attended(w, first(x) if pre else x, n_heads)
    y = x + y if full or "skip" in variant else y
    y = y if pre else first(y)
    if not full and "ffn" not in variant:
        return y
    read = second(y) if pre else y
    y = y + affine(w["down"], np.maximum(affine(w["up"], read), 0.0))
    return y if pre else second(y)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("name", PLACES)
def test_variant_is_a_plain_loop(name, variant):
    loaded = opened(name, hidden_act="relu", hidden_size=16, intermediate_size=24)
    tokens = ids(loaded, 4)
    states = ours(loaded, tokens, variant)
    x = states[0][1].numpy()
    for layer, state in zip(loaded.model.encoder.layer, states[1:], strict=True):
        modules = map(layer.get_submodule, PLACES[name].split())
        w = dict(zip(ROLES, modules, strict=True))
        x = one_layer(w, x, 4, variant.name, pre=name != "bert")
        size = float(np.abs(x).max())
        torch.testing.assert_close(state[1], torch.from_numpy(x), rtol=0, atol=1e-10 * size)


def test_placement_is_right_even_where_attention_gives_nothing():
    """x + a(x) = x then: values alone could not tell the two apart."""
    loaded = opened("bert")
    for site in loaded.sites:
        nn.init.zeros_(site.projections.out.weight)
        nn.init.zeros_(site.projections.out.bias)
    assert take_apart(loaded).norm_placement == "post"


@pytest.mark.parametrize("query_key", [0.0, 20.0])
def test_uniform_attention_collapses_at_once_and_identity_never(query_key):
    """A BERT whose one head copies what it attends to: W_V = W_O = 1, W_Q = W_K = query_key."""
    sizes = {"num_hidden_layers": 4, "num_attention_heads": 1, "initializer_range": 1.0}
    model = Family("bert").model("float64", **sizes)
    for layer in model.encoder.layer:
        attention = layer.attention.self
        maps = ((attention.query, query_key), (attention.key, query_key), (attention.value, 1.0))
        with torch.no_grad():
            for linear, factor in (*maps, (layer.attention.output.dense, 1.0)):
                linear.weight.copy_(factor * torch.eye(32))
                linear.bias.zero_()
    loaded = headscope.wrap(model)
    ratios = [
        float(residual_ratio(hidden)[0]) for hidden in ours(loaded, ids(loaded, 12), VARIANTS[0])
    ]
    assert ratios[0] > 0.5
    if query_key:
        assert ratios[1:] == pytest.approx([ratios[0]] * 4, rel=1e-6)
    else:
        assert max(ratios[1:]) < 1e-14


def test_a_layer_with_an_unknown_part_is_refused():
    """A small one by its states, a large one by the name of its layer."""
    loaded = opened("bert")
    layer = loaded.model.encoder.layer[1]
    plain = layer.feed_forward_chunk
    layer.feed_forward_chunk = lambda y: plain(y) + 1e-6 * y
    blocks = take_apart(loaded).layers
    _, gap = measure_ratios(loaded, blocks, own_run(loaded, blocks, ids(loaded)))
    assert gap > 1e-8
    for wrong in (gap, float("nan"), float("inf"), 1.0):
        with pytest.raises(ValidationFailedError, match="do not give its own hidden states"):
            check_decomposition(loaded, wrong)
    layer.feed_forward_chunk = lambda y: plain(y) + torch.sin(y)  # no family has that
    assert validate_model(loaded).passed
    with pytest.raises(UnsupportedModelError, match=r"layer 1 of .*\(bert\) apart .*adds besides"):
        take_apart(loaded)
