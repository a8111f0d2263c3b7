"""Encoder-decoder models: certificate, views of a stack, wrong variants, layers in plain loops."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from families import SITES, batch, each_kind, ids_and_mask, network, opened, tiny
from torch import Tensor
from transformers import AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import headscope
from headscope import attention
from headscope.attention import stream_attention
from headscope.errors import InputError, ValidationFailedError
from headscope.measures.activations import Activations
from headscope.models import routing
from headscope.models.certificate import TOLERANCES, validate_model
from headscope.models.layouts import AttentionInput, Layout
from headscope.models.layouts.relative import T5Layout
from headscope.models.loaded import LoadedModel
from headscope.models.probes import probes
from headscope.models.routing import Router, routed

STACKS = ("encoder", "decoder", "cross")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@each_kind
def test_it_validates_with_padding_on_both_sides(kind, dtype):
    # Half precision has absolute tolerances for activations of the usual size.
    changes = {"init_std": 0.15} if "16" in dtype and kind != "t5" else {}
    loaded = opened(kind, dtype, **changes)
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert [(c.stack, c.layer, c.calls) for c in result.layers] == [(*site, 1) for site in SITES]
    assert result.mask_reached
    limit = TOLERANCES[dtype]
    for check in result.layers:
        assert check.max_abs_pattern <= limit["pattern"]
    for gap in (result.max_abs_hidden_eager, result.max_abs_hidden_sdpa):
        assert gap <= limit["hidden"]
    padded = probes(loaded)[0]
    for mask in (padded.attention_mask, padded.decoder_attention_mask):
        assert 0 in mask
    assert padded.input_ids.shape != padded.inputs["decoder_input_ids"].shape


@each_kind
def test_sites_patterns_and_states_are_those_of_transformers(kind):
    """Without the certificate's code."""
    loaded = opened(kind, "float64")
    assert loaded.stacks == STACKS
    assert [(site.stack, site.layer) for site in loaded.sites] == SITES
    assert [site.row for site in loaded.sites] == list(range(8))
    assert [site.causal for site in loaded.sites] == [site[0] == "decoder" for site in SITES]
    for site in loaded.sites:
        inside = site.name.split(".")[0]
        assert inside == ("encoder" if site.stack == "encoder" else "decoder")
        assert (site.n_heads, site.d_head) == (4, 8)
        named_cross = "encoder_attn" in site.name or "EncDec" in site.name
        assert named_cross == (site.stack == "cross")
    given = batch(loaded)
    with torch.no_grad():
        own = loaded.network(**given, output_hidden_states=True)
        hidden, logits = loaded.run(**given)
        alone = loaded.forward(**given)
        loaded.model.set_attn_implementation("eager")
        theirs = loaded.model(**given, output_attentions=True)
    torch.testing.assert_close(logits, own.logits, rtol=0, atol=0)
    torch.testing.assert_close(hidden, own.decoder_hidden_states[-1], rtol=0, atol=0)
    torch.testing.assert_close(alone, hidden, rtol=0, atol=0)
    for found in _seen(loaded, given):
        queries = "attention_mask" if found.stack == "encoder" else "decoder_attention_mask"
        real = given[queries].bool()
        own_patterns = getattr(theirs, f"{found.stack}_attentions")[found.layer]
        torch.testing.assert_close(
            found.pattern.transpose(1, 2)[real], own_patterns.transpose(1, 2)[real]
        )


def _seen(loaded: LoadedModel, given: dict[str, Tensor]) -> list[Activations]:
    seen: list[Activations] = []

    class Keep:
        def observe(self, site: Activations) -> None:
            seen.append(replace(site, pattern=site.pattern.clone()))

        def finish(self, stack: str, layer: int) -> None:
            assert (stack, layer) == (seen[-1].stack, seen[-1].layer)

    router = Router(loaded.sites, [Keep()], others=loaded.others)
    with routed(loaded.model, router):
        router.checked(loaded.forward, **given)
    return seen


@each_kind
def test_a_view_sees_its_own_stack(kind):
    loaded = opened(kind)
    whole = _seen(loaded, batch(loaded))
    for stack in STACKS:
        view = loaded.only(stack)
        layers = [layer for name, layer in SITES if name == stack]
        assert [(site.stack, site.layer, site.row) for site in view.sites] == [
            (stack, layer, layer) for layer in layers
        ]
        assert (view.n_layers, view.n_heads, view.stacks) == (len(layers), 4, (stack,))
        others = {(site.stack, site.layer) for site in view.others}
        assert others == {*SITES} - {(stack, layer) for layer in layers}
        assert view.network is loaded.network
        assert view.whole is loaded
        seen = _seen(view, batch(loaded))
        assert [(found.stack, found.row) for found in seen] == [(stack, layer) for layer in layers]
        of_whole = [found for found in whole if found.stack == stack]
        for found, same in zip(seen, of_whole, strict=True):
            torch.testing.assert_close(found.pattern, same.pattern, rtol=0, atol=0)


def test_a_view_of_a_view_is_of_the_whole():
    loaded = opened("bart")
    view = loaded.only("cross")
    assert view.only("decoder").stacks == ("decoder",)
    assert view.only("all") is loaded
    assert loaded.only("all") is loaded
    with pytest.raises(InputError, match="has no stack 'sideways'; it has encoder and decoder and"):
        view.only("sideways")


def test_the_only_stack_is_the_model_itself():

    loaded = headscope.wrap(tiny("bert"))
    assert loaded.only("encoder") is loaded
    only = headscope.wrap(tiny("bert"))  # its only stack is the model itself
    assert only.only("encoder") is only
    with pytest.raises(InputError, match="has no stack 'cross'; it has encoder"):
        only.only("cross")


def test_the_certificate_of_a_view_is_that_of_the_whole(monkeypatch):
    loaded = opened("bart")
    result = validate_model(loaded.only("cross"))
    assert len(result.layers) == 8
    assert validate_model(loaded) is result
    with torch.no_grad():
        loaded.model.get_parameter("encoder.layers.0.self_attn.q_proj.weight").mul_(2)
    assert validate_model(loaded.only("cross")) is not result


@each_kind
def test_the_encoder_runs_on_sentences_alone(kind):
    loaded = opened(kind)
    ids, mask = ids_and_mask((9, 5, 7), 1)
    with torch.no_grad():
        own = loaded.network.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(loaded.forward(ids, mask), own, rtol=0, atol=0)
        hidden, logits = loaded.run(ids, mask)
    assert logits is None
    torch.testing.assert_close(hidden, own, rtol=0, atol=0)
    view = loaded.only("encoder")
    router = Router(view.sites, others=view.others)
    with routed(loaded.model, router):
        ours = router.checked(view.forward, ids, mask)
    torch.testing.assert_close(ours[mask.bool()], own[mask.bool()], rtol=0, atol=1e-5)
    router = Router(loaded.sites)
    with routed(loaded.model, router), pytest.raises(ValidationFailedError, match="decoder layer"):
        router.checked(loaded.forward, ids, mask)


def roll(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.roll(1, dims=1)


def mask_lost(*args: Any, **options: Any) -> Tensor | None:
    mask = sdpa_mask(*args, **options)
    return None if mask is None else mask.any(dim=2, keepdim=True).expand_as(mask)


def own_keys(*call: Any, right: Any = Layout.read) -> AttentionInput:
    inputs = right(*call)
    return replace(inputs, x_k=inputs.x_q)


def other_sentence(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if q.shape[2] != k.shape[2]:
        k, v = (x.roll(1, dims=0) for x in (k, v))
    return stream_attention(q, k, v, **options)


def other_bias(*call: Any, right: Any = T5Layout.bias) -> Tensor | None:
    return roll(right(*call))


def merged(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    return attention.with_bias(mask, roll(bias))


def scaled(*qkv: Tensor, scale: float, **options: Any) -> Tensor:
    return stream_attention(*qkv, scale=scale * 8**-0.5, **options)


THREE = ("bart", "marian", "t5")
MASKS = AttentionMaskInterface._global_mapping
#: Of what is wrong: where, the families, the stacks whose patterns fail, those that are right.
WRONG: dict[str, tuple[Any, str, Any, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "mask lost": (MASKS, "headscope", mask_lost, THREE, ("decoder",), ("encoder",)),
    "no direction": (Layout, "causal", lambda *_: False, THREE, ("decoder",), ("encoder", "cross")),
    "own keys": (Layout, "read", own_keys, THREE, ("cross",), ("encoder", "decoder")),
    "other sentence": (routing, "stream_attention", other_sentence, THREE, (), ()),
    # T5 has no bias where the decoder reads the encoder
    "other bias": (T5Layout, "bias", other_bias, ("t5",), ("encoder", "decoder"), ("cross",)),
    "merged otherwise": (routing, "with_bias", merged, ("t5",), ("encoder", "decoder"), ()),
    "scale of the layout": (T5Layout, "scale", lambda *_: 8**-0.5, ("t5",), STACKS, ()),
    "scale of attention": (routing, "stream_attention", scaled, ("t5",), STACKS, ()),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_variants_fail_where_they_are(case, monkeypatch):
    owner, name, wrong, kinds, failed, right = WRONG[case]
    models = [opened(kind, "float64") for kind in kinds]
    if isinstance(owner, dict):
        monkeypatch.setitem(owner, name, wrong)
    else:
        monkeypatch.setattr(owner, name, wrong)
    for loaded in models:
        result = validate_model(loaded)
        assert not result.passed
        assert result.mask_reached
        for stack in failed:
            first = [r for r in result.reasons if f"{stack} layer 0" in r]
            assert any("pattern" in r for r in first), result.reasons
        for stack in right:
            assert not any(f"{stack} layer" in r for r in result.reasons), result.reasons
        if not failed:  # the patterns are right, and not what they are multiplied by
            assert any("cross layer 0: max |out" in r for r in result.reasons), result.reasons


def test_a_layer_of_the_decoder_that_is_skipped(monkeypatch):
    model = network("bart")
    layer = model.model.decoder.layers[1]
    monkeypatch.setattr(layer, "forward", lambda hidden, *_, **__: hidden)
    result = validate_model(headscope.wrap(model))
    assert not result.passed
    assert "attention was found in 6 of 8 layers only" in result.reasons


def test_a_bias_is_no_padding_mask():
    """T5 hands every layer a bias: it must not stand for a mask that never arrived."""
    loaded = opened("t5").only("encoder")
    ids, mask = ids_and_mask((4, 2), 0)
    for given, seen in ((mask, len(loaded.sites)), (torch.ones_like(mask), 0)):
        router = Router(loaded.sites, others=loaded.others)
        with routed(loaded.model, router):
            router.checked(loaded.forward, ids, given)
        assert router.masks_seen == seen


#: Below, layers of BART and T5 are plain loops, by the names in their checkpoints.
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
    patterns = {(s.stack, s.layer): s.pattern[0].numpy() for s in _seen(loaded, given)}
    loaded.model.set_attn_implementation("eager")
    state = {name: tensor.double().numpy() for name, tensor in loaded.model.state_dict().items()}
    with torch.no_grad():
        return state, patterns, loaded.model(**given, output_hidden_states=True)


def test_layers_of_barts_decoder():
    state, patterns, theirs = measured("bart")
    source = theirs.encoder_last_hidden_state[0].numpy()
    states = [x[0].numpy() for x in theirs.decoder_hidden_states]
    for layer in (0, 1):
        out, (own, cross) = bart_layer(state, layer, states[layer], source)
        np.testing.assert_allclose(patterns["decoder", layer], own, rtol=0, atol=1e-12)
        np.testing.assert_allclose(patterns["cross", layer], cross, rtol=0, atol=1e-12)
        np.testing.assert_allclose(states[layer + 1], out, rtol=0, atol=1e-10)


def test_layers_of_t5():
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
