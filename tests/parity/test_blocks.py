"""Layers taken apart: put together they are the model, without parts they are a plain loop's."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from families import Family
from families import tiny as tiny_of
from numpy.typing import NDArray
from torch import Tensor, nn

import headscope
from headscope.analyses.depth.measure import (
    VARIANTS,
    measure_ratios,
    own_run,
    residual_ratio,
    run_variant,
)
from headscope.analyses.depth.run import check_decomposition
from headscope.core.errors import UnsupportedModelError, ValidationFailedError
from headscope.models.anatomy.layers import take_apart
from headscope.models.certificate.certificate import validate_model
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router

Array = NDArray[np.float64]
SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "hidden_act": "relu"}
#: (family, changes to its configuration, where its LayerNorms stand)
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("bert", {}, "post"),
    "roberta-prelayernorm": ("roberta-prelayernorm", {}, "pre"),
}
each_family = pytest.mark.parametrize("family", FAMILIES)


def tiny(family: str, dtype: str = "float64") -> LoadedModel:
    """A random model in which no bias and no gain is what initialisation makes it."""
    name, changes, _ = FAMILIES[family]
    model = tiny_of(name, dtype, **{**SIZES, **changes})
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.bias, std=0.3)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return headscope.wrap(model)


def ids(n: int = 7) -> Tensor:
    return torch.randint(5, 61, (2, n), generator=torch.Generator().manual_seed(1))


def test_placement_is_right_even_where_attention_gives_nothing():
    """x + a(x) = x then: values alone could not tell the two apart."""
    loaded = tiny("bert")
    for site in loaded.sites:
        nn.init.zeros_(site.projections.out.weight)
        nn.init.zeros_(site.projections.out.bias)
    assert take_apart(loaded).norm_placement == "post"


_SELF = "attention.self.query attention.self.key attention.self.value attention.output.dense"
_FFN = "intermediate.dense output.dense"
_ALBERT = "attention.query attention.key attention.value attention.dense attention.LayerNorm"
#: Of q, k, v, o, the first LayerNorm, both maps of the network, and the second LayerNorm.
NAMES = {
    "albert": f"{_ALBERT} ffn ffn_output full_layer_layer_norm",
    "roberta-prelayernorm": f"{_SELF} attention.LayerNorm {_FFN} intermediate.LayerNorm",
    "bert": f"{_SELF} attention.output.LayerNorm {_FFN} output.LayerNorm",
}


def weights_of(loaded: LoadedModel, layer: int) -> dict[str, Any]:
    """The weights of one layer by role, from each family's own names."""
    model, kind = loaded.model, loaded.model.config.model_type
    if kind == "albert":
        per_group, n_layers = model.config.inner_group_num, model.config.num_hidden_layers
        group = int(layer // per_group / (n_layers / model.config.num_hidden_groups))
        block = model.encoder.albert_layer_groups[group].albert_layers[layer % per_group]
    else:
        block = model.encoder.layer[layer]
    roles = ("q", "k", "v", "o", "n1", "up", "down", "n2")
    return dict(zip(roles, map(block.get_submodule, NAMES[kind].split()), strict=True))


def affine(linear: Any, x: Array) -> Array:
    return x @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()


def normed(norm: Any, x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(-1, keepdims=True) + norm.eps)
    return centred / scale * norm.weight.detach().numpy() + norm.bias.detach().numpy()


def attended(w: dict[str, Any], x: Array, n_heads: int) -> Array:
    """Head by head."""
    q, k, v = (affine(w[name], x).reshape(len(x), n_heads, -1) for name in "qkv")
    z = []
    for h in range(n_heads):
        exps = np.exp(q[:, h] @ k[:, h].T / math.sqrt(q.shape[-1]))
        z.append(exps / exps.sum(-1, keepdims=True) @ v[:, h])
    return affine(w["o"], np.concatenate(z, axis=-1))


def one_layer(w: dict[str, Any], x: Array, n_heads: int, variant: str, *, pre: bool) -> Array:
    """What each variant of a layer is, spelt out."""
    full = variant.startswith("full")
    plain = "without-layernorm" in variant
    first, second = ((lambda x: x) if plain else partial(normed, w[name]) for name in ("n1", "n2"))
    y = attended(w, first(x) if pre else x, n_heads)
    y = x + y if full or "skip" in variant else y
    y = y if pre else first(y)
    if not full and "ffn" not in variant:
        return y
    read = second(y) if pre else y
    y = y + affine(w["down"], np.maximum(affine(w["up"], read), 0.0))
    return y if pre else second(y)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@each_family
def test_variant_is_a_plain_loop(family, variant):
    loaded = tiny(family)
    blocks = take_apart(loaded).layers
    own = own_run(loaded, blocks, ids(4))
    pre = FAMILIES[family][2] == "pre"
    with torch.no_grad():
        ours = list(run_variant(blocks, Router(loaded.sites), own, variant))
        x = own.states[0][1].numpy()
        for layer in range(len(blocks)):
            x = one_layer(weights_of(loaded, layer), x, 4, variant.name, pre=pre)
            expected = torch.from_numpy(x)
            size = float(expected.abs().max())
            torch.testing.assert_close(ours[layer + 1][1], expected, rtol=0, atol=1e-10 * size)


def planted(query_key: float) -> LoadedModel:
    """A BERT whose one head copies what it attends to: W_V = W_O = 1, W_Q = W_K = query_key."""
    sizes = {"num_hidden_layers": 4, "num_attention_heads": 1, "initializer_range": 1.0}
    model = Family("bert").model("float64", **sizes)
    eye = torch.eye(32, dtype=torch.float64)
    for layer in model.encoder.layer:
        a = layer.attention
        factors = (query_key, query_key, 1.0, 1.0)
        maps = (a.self.query, a.self.key, a.self.value, a.output.dense)
        with torch.no_grad():
            for linear, factor in zip(maps, factors, strict=True):
                linear.weight.copy_(factor * eye)
                linear.bias.zero_()
    return headscope.wrap(model)


@pytest.mark.parametrize("query_key", [0.0, 20.0])
def test_uniform_attention_collapses_at_once_and_identity_never(query_key):
    loaded = planted(query_key)
    blocks = take_apart(loaded).layers
    own = own_run(loaded, blocks, ids(12))
    with torch.no_grad():
        states = run_variant(blocks, Router(loaded.sites), own, VARIANTS[0])
        found = [float(residual_ratio(hidden)[0]) for hidden in states]
    assert found[0] > 0.5
    if query_key:
        assert found[1:] == pytest.approx([found[0]] * 4, rel=1e-6)
    else:
        assert max(found[1:]) < 1e-14


def test_a_layer_with_an_unknown_part_is_refused():
    loaded = tiny("bert")
    layer = loaded.model.encoder.layer[1]
    plain = layer.feed_forward_chunk
    layer.feed_forward_chunk = lambda y: plain(y) + 1e-6 * y
    blocks = take_apart(loaded).layers
    _, gap = measure_ratios(loaded, blocks, own_run(loaded, blocks, ids()))
    assert gap > 1e-8
    for wrong in (gap, float("nan"), float("inf"), 1.0):
        with pytest.raises(ValidationFailedError, match="do not give its own hidden states"):
            check_decomposition(loaded, wrong)


def test_unknown_layers_are_named():
    loaded = tiny("bert")
    layer = loaded.model.encoder.layer[1]
    plain = layer.feed_forward_chunk
    layer.feed_forward_chunk = lambda y: plain(y) + torch.sin(y)  # no family has that
    assert validate_model(loaded).passed
    with pytest.raises(UnsupportedModelError, match=r"layer 1 of .*\(bert\) apart .*adds besides"):
        take_apart(loaded)
