"""Layers of BART and T5 in plain loops, by the names in their checkpoints: patterns and outputs.

Nothing of headscope computes what is expected here, and nothing of transformers either but what
enters each layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from encoder_decoders import ids_and_mask, opened

from headscope.measures.activations import Activations
from headscope.models.routing import Router, routed

Array = np.ndarray[Any, np.dtype[np.float64]]
State = Mapping[str, Array]
#: What is added to the score of (head, query, key).
Bias = Callable[[int, int, int], float]
D_HEAD, N_HEADS = 8, 4


def affine(state: State, name: str, x: Array) -> Array:
    bias = state.get(f"{name}.bias")
    return x @ state[f"{name}.weight"].T + (0.0 if bias is None else bias)


def attend(
    state: State,
    names: Mapping[str, str],
    x: Array,
    source: Array,
    causal: bool,
    scale: float,
    bias: Bias | None = None,
) -> tuple[Array, Array]:
    """Attention of one example, entry by entry: output (query_pos, d_model) and patterns."""
    q, k, v = (
        affine(state, names[n], given) for n, given in zip("qkv", (x, source, source), strict=True)
    )
    patterns = np.zeros((N_HEADS, len(x), len(source)))
    z = np.zeros((len(x), N_HEADS * D_HEAD))
    for head in range(N_HEADS):
        own = slice(head * D_HEAD, (head + 1) * D_HEAD)
        for i in range(len(x)):
            scores = {}
            for j in range(i + 1 if causal else len(source)):
                scores[j] = float(q[i, own] @ k[j, own]) * scale
                scores[j] += bias(head, i, j) if bias else 0.0
            largest = max(scores.values())
            total = sum(math.exp(score - largest) for score in scores.values())
            for j, score in scores.items():
                patterns[head, i, j] = math.exp(score - largest) / total
                z[i, own] += patterns[head, i, j] * v[j, own]
    return affine(state, names["out"], z), patterns


def layer_norm(state: State, name: str, x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


def gelu(x: Array) -> Array:
    return np.vectorize(lambda value: value * (1 + math.erf(value / math.sqrt(2))) / 2)(x)


def bart_layer(state: State, layer: int, x: Array, source: Array) -> tuple[Array, list[Array]]:
    """A layer of the decoder: LayerNorms after the sums, every map with a bias."""
    at = f"decoder.layers.{layer}"
    patterns = []
    for name, keys in (("self_attn", None), ("encoder_attn", source)):
        names = {short: f"{at}.{name}.{short}_proj" for short in ("q", "k", "v", "out")}
        out, pattern = attend(
            state, names, x, x if keys is None else keys, keys is None, 1 / math.sqrt(D_HEAD)
        )
        x = layer_norm(state, f"{at}.{name}_layer_norm", x + out)
        patterns.append(pattern)
    out = affine(state, f"{at}.fc2", gelu(affine(state, f"{at}.fc1", x)))
    return layer_norm(state, f"{at}.final_layer_norm", x + out), patterns


def rms_norm(state: State, name: str, x: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * state[f"{name}.weight"]


def t5_names(prefix: str) -> dict[str, str]:
    return {"q": f"{prefix}.q", "k": f"{prefix}.k", "v": f"{prefix}.v", "out": f"{prefix}.o"}


def decoder_bucket(i: int, j: int) -> int:
    """Of 32 buckets for keys that lie behind: one each up to 15, then wider ones up to 128."""
    back = i - j
    if back < 16:
        return back
    return min(31, 16 + int(math.log(back / 16) / math.log(128 / 16) * 16))


def encoder_bucket(i: int, j: int) -> int:
    """Of 32 buckets: 16 for keys that lie behind (or here), 16 for those ahead."""
    away, ahead = abs(i - j), 16 if j > i else 0
    if away < 8:
        return ahead + away
    return ahead + min(15, 8 + int(math.log(away / 8) / math.log(128 / 8) * 8))


def t5_layer(
    state: State, stack: str, layer: int, x: Array, source: Array
) -> tuple[Array, list[Array]]:
    """A layer of either stack: norms before each part, no scale, no bias but by position."""
    at = f"{stack}.block.{layer}.layer"
    decodes = stack == "decoder"
    table = state[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]

    def bias(head: int, i: int, j: int) -> float:
        return float(table[decoder_bucket(i, j) if decodes else encoder_bucket(i, j), head])

    given = rms_norm(state, f"{at}.0.layer_norm", x)
    names = t5_names(f"{at}.0.SelfAttention")
    out, own = attend(state, names, given, given, decodes, 1.0, bias)
    x, patterns = x + out, [own]
    if decodes:
        given = rms_norm(state, f"{at}.1.layer_norm", x)
        names = t5_names(f"{at}.1.EncDecAttention")
        out, cross = attend(state, names, given, source, False, 1.0)
        x = x + out
        patterns.append(cross)
    part = f"{at}.{2 if decodes else 1}"
    inner = affine(state, f"{part}.DenseReluDense.wi", rms_norm(state, f"{part}.layer_norm", x))
    return x + affine(state, f"{part}.DenseReluDense.wo", np.maximum(inner, 0)), patterns


def measured(kind: str) -> tuple[State, dict[tuple[str, int], Array], Any]:
    """Weights, our patterns of one pair, and the states between transformers' layers."""
    loaded = opened(kind, "float64")
    # Long enough for T5's wide buckets.
    ids, mask = ids_and_mask((30,), 1)
    target, target_mask = ids_and_mask((35,), 2, loaded.start_id)
    names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
    given = dict(zip(names, (ids, mask, target, target_mask), strict=True))
    seen: dict[tuple[str, int], Array] = {}

    class Keep:
        def observe(self, site: Activations) -> None:
            seen[site.stack, site.layer] = site.pattern[0].numpy().copy()

        def finish(self, stack: str, layer: int) -> None:
            pass

    router = Router(loaded.sites, [Keep()])
    with routed(loaded.model, router):
        router.checked(loaded.forward, **given)
    loaded.model.set_attn_implementation("eager")
    state = {name: tensor.double().numpy() for name, tensor in loaded.model.state_dict().items()}
    with torch.no_grad():
        return state, seen, loaded.model(**given, output_hidden_states=True)


def test_layers_of_barts_decoder() -> None:
    state, patterns, theirs = measured("bart")
    source = theirs.encoder_last_hidden_state[0].numpy()
    states = [x[0].numpy() for x in theirs.decoder_hidden_states]
    for layer in (0, 1):
        out, (own, cross) = bart_layer(state, layer, states[layer], source)
        np.testing.assert_allclose(patterns["decoder", layer], own, rtol=0, atol=1e-12)
        np.testing.assert_allclose(patterns["cross", layer], cross, rtol=0, atol=1e-12)
        np.testing.assert_allclose(states[layer + 1], out, rtol=0, atol=1e-10)


def test_layers_of_t5() -> None:
    """Its norms are computed in float32, whatever its weights are."""
    state, patterns, theirs = measured("t5")
    source = theirs.encoder_last_hidden_state[0].numpy()
    for stack, layer in (("encoder", 0), ("decoder", 0), ("decoder", 1)):
        x, after = (
            getattr(theirs, f"{stack}_hidden_states")[n][0].numpy() for n in (layer, layer + 1)
        )
        out, found = t5_layer(state, stack, layer, x, source)
        for name, expected in zip((stack, "cross"), found, strict=False):
            np.testing.assert_allclose(patterns[name, layer], expected, rtol=0, atol=1e-5)
        assert len(found) == (1 if stack == "encoder" else 2)
        np.testing.assert_allclose(after, out, rtol=0, atol=1e-4)
