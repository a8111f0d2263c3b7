"""The certificate fails closed, says why, and leaves the model as it was."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import Family, network, tiny
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AttentionMaskInterface, AutoConfig
from transformers.masking_utils import sdpa_mask

import headscope
from headscope.attention import AttentionWeights, stream_attention
from headscope.core.errors import UnsupportedModelError
from headscope.core.serialise import to_json
from headscope.models.certificate.certificate import validate_model
from headscope.models.certificate.validation import ValidationResult
from headscope.models.layouts.esm import EsmLayout
from headscope.models.layouts.families import REFUSED
from headscope.models.layouts.layout import AttentionSite, Layout
from headscope.models.layouts.mobilebert import MobileBertLayout
from headscope.models.layouts.relative import T5Bias
from headscope.models.layouts.squeezebert import SqueezeBertLayout
from headscope.models.layouts.xlm import XlmLayout
from headscope.models.run import routing
from headscope.models.run.implementation import use_implementation
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router, routed

IDS = torch.tensor([[7, 8, 9, 10], [11, 12, 0, 0]])
VALID = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


bert = partial(tiny, "bert", "float64")


@pytest.fixture
def loaded() -> LoadedModel:
    return headscope.wrap(bert())


def calls(result: ValidationResult) -> list[int]:
    return [check.calls for check in result.layers]


def assert_failed(result: ValidationResult, *words: str) -> None:
    """Failed, and one reason holds all the words; the result can still be written."""
    assert not result.passed
    assert any(all(word in reason for word in words) for reason in result.reasons), result.reasons
    to_json(result)


def own_attention(module: Any, scale: float = 8**-0.5) -> Callable[..., Any]:
    """Write BERT's attention out, as a module that asks nobody for it computes it."""

    def forward(x: Tensor, attention_mask: Tensor | None = None, **_: Any) -> tuple[Tensor, Tensor]:
        q = module.query(x).unflatten(-1, (4, 8)).transpose(1, 2)
        k = module.key(x).unflatten(-1, (4, 8)).transpose(1, 2)
        v = module.value(x).unflatten(-1, (4, 8)).transpose(1, 2)
        scores = q @ k.transpose(-1, -2) * scale
        if attention_mask is not None:
            blocked = ~attention_mask if attention_mask.dtype == torch.bool else attention_mask < -1
            scores = scores.masked_fill(blocked, -1e9)
        pattern = scores.softmax(-1)
        return (pattern @ v).transpose(1, 2).flatten(2), pattern

    return forward


@pytest.mark.parametrize("late", [False, True])
def test_modules_that_never_call_us(late, monkeypatch):
    """Their class promises to, but each of them computes the right thing by itself."""
    model = bert()
    before = headscope.wrap(model)
    expected = before.forward(IDS, VALID)
    for layer in model.encoder.layer:
        module = layer.attention.self
        monkeypatch.setattr(module, "forward", own_attention(module))
    torch.testing.assert_close(before.forward(IDS, VALID)[VALID.bool()], expected[VALID.bool()])
    result = validate_model(before if late else headscope.wrap(model))
    assert calls(result) == [0, 0, 0]
    assert_failed(result, "bert", "never calls it", "3 of 3")
    assert not result.mask_reached
    # It agrees with itself; that must not be shown as a proof.
    assert result.max_abs_hidden_eager is None
    assert result.max_abs_hidden_sdpa is None


class Bypassing(nn.Module):
    """BERT's attention, written out in a class that never asks for a custom one."""

    def forward(self, hidden_states: Tensor, attention_mask: Any = None, **_: Any) -> Any:
        return own_attention(self, self.own_scale)(hidden_states, attention_mask)


@pytest.mark.parametrize("scale", [8**-0.5, 0.3])
def test_an_exchanged_forward_must_be_what_the_own_one_computes(scale, loaded):
    """Its pattern is what its own softmax returned in the eager run, not what ours computes."""
    layout = Layout("bypassing", bypasses=True)
    for site in loaded.sites:
        site.module.__class__ = Bypassing
        site.module.own_scale = scale
        site.module.scaling = 8**-0.5
    loaded.sites = tuple(replace(site, layout=layout) for site in loaded.sites)
    result = validate_model(loaded)
    assert calls(result) == [1, 1, 1]
    assert result.passed == (scale == 8**-0.5), result.reasons
    if not result.passed:
        assert_failed(result, "encoder layer 0", "the model's own attention fits 0.8485")
    assert "forward" not in vars(loaded.sites[0].module)


def test_unknown_layouts_of_a_family_and_of_a_layer():
    sizes = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40}
    result = validate_model(headscope.wrap(Family("imagegpt").model("float64", **sizes)))
    assert calls(result) == [0, 0, 0]
    assert_failed(result, "no attention layout", "imagegpt")
    model = bert()
    maps = model.encoder.layer[1].attention.self
    maps.query = nn.Sequential(maps.query)
    assert_failed(validate_model(headscope.wrap(model)), "found in 2 of 3 layers")


def test_module_that_scales_its_queries_first(loaded):
    """It calls us, but its W_Q is not what makes the scores."""
    for site in loaded.sites:
        site.projections.q.module.register_forward_hook(lambda *args: args[2] * 8**-0.5)
        site.module.scaling = 1.0
    result = validate_model(loaded)
    assert calls(result) == [1, 1, 1]
    assert_failed(result, "encoder layer 0", "pattern of the canonical weights")
    # The run through ours is the model's own.
    assert result.max_abs_hidden_eager == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("family", REFUSED)
def test_families_that_cannot_be_covered_are_refused_by_name(family, tmp_path):
    """From memory and from a folder, before any weight of it is built."""
    config = AutoConfig.for_model(family)
    network = SimpleNamespace(config=config)
    with pytest.raises(
        UnsupportedModelError, match=f"an? {family} model.*{re.escape(REFUSED[family])}"
    ):
        headscope.wrap(network)
    config.save_pretrained(tmp_path)
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedModelError, match=f"{tmp_path} is an? {family} model") as caught:
        headscope.load(str(tmp_path), device="cpu", need_tokenizer=False)
    assert "\n" not in str(caught.value)


def twice(once: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        once(*args, **kwargs)
        return once(*args, **kwargs)

    return forward


def test_attention_that_runs_twice(loaded, monkeypatch):
    module = loaded.sites[1].module
    monkeypatch.setattr(module, "forward", twice(module.forward))
    result = validate_model(loaded)
    assert calls(result) == [1, 2, 1]
    assert_failed(result, "encoder layer 1", "2 times")
    # Before we looked, too: more calls than the config has layers would shift every layer.
    block = loaded.model.encoder.layer[1].attention
    monkeypatch.undo()
    monkeypatch.setattr(block, "forward", twice(block.forward))
    assert_failed(validate_model(headscope.wrap(loaded.model)), "4", "3 layers")


def skip(model: Any, layer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.encoder.layer[layer], "forward", lambda hidden, *_, **__: hidden)


def test_layer_that_is_skipped(loaded, monkeypatch):
    """After the model was opened, and before."""
    layer = 2
    skip(loaded.model, layer, monkeypatch)
    result = validate_model(loaded)
    assert calls(result) == [int(i != layer) for i in range(3)]
    assert_failed(result, "1 of 3 layers bypassed")
    assert_failed(validate_model(headscope.wrap(loaded.model)), "2 of 3 layers")


MASKS = AttentionMaskInterface._global_mapping


@pytest.mark.parametrize("registered", [True, False])
def test_mask_that_is_dropped(registered, loaded, monkeypatch):
    if registered:
        monkeypatch.setitem(MASKS, "headscope", lambda *_, **__: None)
    else:
        monkeypatch.delitem(MASKS, "headscope")  # transformers then drops the mask silently
        with use_implementation(loaded.model, "headscope"):
            pass
    result = validate_model(loaded)
    assert not result.mask_reached
    assert_failed(result, "padding mask did not reach")
    assert_failed(result, "encoder layer 0", "pattern")


def test_mask_that_is_lost_in_one_layer(loaded, monkeypatch):
    attend = Router.attend
    lost = 2

    def forgetful(router: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, *more: Any) -> Any:
        mask = None if module is loaded.sites[lost].module else mask
        return attend(router, module, q, k, v, mask, *more)

    monkeypatch.setattr(Router, "attend", forgetful)
    result = validate_model(loaded)
    assert not result.mask_reached
    assert_failed(result, f"encoder layer {lost}", "pattern")


@pytest.mark.parametrize(
    "wrong",
    [
        torch.ones_like,  # allows everything
        lambda mask: mask.clone().index_fill_(3, torch.tensor([0]), 0),  # one key too few
    ],
)
def test_mask_that_arrives_but_is_wrong(wrong, loaded, monkeypatch):
    def mask(*args: Any, **options: Any) -> Tensor | None:
        right = sdpa_mask(*args, **options)
        return None if right is None else wrong(right)  # None: nothing is padded

    monkeypatch.setitem(MASKS, "headscope", mask)
    result = validate_model(loaded)
    assert result.mask_reached
    assert_failed(result, "encoder layer 0", "pattern")
    assert_failed(result, "max |hidden - eager|")
    assert_failed(result, "max |hidden - SDPA|")


def with_entry(value: float) -> Any:
    def wrong(*qkv: Tensor, **options: Any) -> Tensor:
        z = stream_attention(*qkv, **options)
        z[0, 0, 0, 0] = value
        return z

    return wrong


def wrong_show(*qkv: Tensor, visit: Any, **options: Any) -> Tensor:
    """Compute the right thing and show the observers another."""
    return stream_attention(
        *qkv, visit=lambda rows, heads, p, z: visit(rows, heads, p.roll(1, dims=1), z), **options
    )


def wrong_scale(*qkv: Tensor, scale: float, **options: Any) -> Tensor:
    return stream_attention(*qkv, scale=scale * (1 + 1e-6), **options)


BROKEN: dict[str, tuple[Any, str]] = {
    "wrong scale": (wrong_scale, "pattern"),
    "not a number": (with_entry(math.nan), "not comparable"),
    "shows another": (wrong_show, "pattern"),
    "shows nothing": (lambda *qkv, visit, **more: stream_attention(*qkv, **more), "not comparable"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_wrong_installed_attention(fault, loaded, monkeypatch):
    """A failed certificate also leaves the model as it was."""
    broken, said = BROKEN[fault]
    loaded.model.set_attn_implementation("eager")
    monkeypatch.setattr(routing, "stream_attention", broken)
    result = validate_model(loaded)
    assert_failed(result, "encoder layer 0", said)
    assert calls(result) == [1, 1, 1]
    assert loaded.model.config._attn_implementation == "eager"
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in loaded.model.modules())


def test_model_that_is_not_finite(loaded):
    """Our NaN is where the model's is; that is no agreement."""
    layer = 0
    value = math.nan
    layers = loaded.model.encoder.layer
    layers[layer].attention.output.dense.weight.data[3, 3] = value
    result = validate_model(loaded)
    assert_failed(result, f"encoder layer {layer}", "out", "not comparable")
    assert_failed(result, "hidden - eager", "not comparable")
    layers[layer].attention.output.dense.weight.data[3, 3] = 0.0
    layers[2].output.LayerNorm.bias.data[0] = value  # at its very end alone
    result = validate_model(loaded)
    assert all(check.max_abs_out is not None for check in result.layers)
    assert_failed(result, "hidden - eager", "not comparable")


WEIGHTS: list[tuple[Callable[[AttentionWeights], AttentionWeights], str]] = [
    (lambda w: replace(w, W_Q=w.W_K, W_K=w.W_Q), "pattern"),
    (lambda w: replace(w, b_Q=w.b_Q * 0), "pattern"),
    (lambda w: replace(w, b_V=w.b_V * 0), "out"),
    (lambda w: replace(w, W_V=w.W_V * (1 + 1e-6)), "out"),
    (lambda w: replace(w, W_O=w.W_O.roll(1, 0)), "out"),
    (lambda w: replace(w, b_O=w.b_O * 0), "out"),
    (lambda w: replace(w, b_O=w.b_O * math.nan), "not comparable"),
    # What cannot be read is a reason: nothing is raised.
    (lambda w: replace(w, W_K=w.W_K[:2]), "encoder layer 1"),
]


@pytest.mark.parametrize(("change", "said"), WEIGHTS)
def test_wrong_canonical_weights_of_one_layer(change, said, loaded, monkeypatch):
    right = AttentionSite.weights
    monkeypatch.setattr(
        AttentionSite, "weights", lambda self: (change if self.layer == 1 else replace)(right(self))
    )
    result = validate_model(loaded)
    assert_failed(result, "encoder layer 1", said)
    assert all("layer 1" in reason for reason in result.reasons)  # the installed run is right


def test_our_implementation_runs_only_inside_routed(loaded):
    for _ in range(2):  # before, and after
        with (
            use_implementation(loaded.model, "headscope"),
            pytest.raises(UnsupportedModelError, match="only while headscope runs"),
        ):
            loaded.forward(IDS, VALID)
        with routed(loaded.model, Router(loaded.sites)):
            loaded.forward(IDS, VALID)


def test_what_is_not_covered_is_refused_without_a_certificate_too(loaded):
    with routed(loaded.model, Router(loaded.sites)):
        for extra in ("softcap", "s_aux", "sinks"):  # they change scores
            with pytest.raises(UnsupportedModelError, match=extra):
                loaded.model(IDS, VALID, **{extra: torch.ones(1)})
        loaded.model.train()
        with pytest.raises(UnsupportedModelError, match="dropout"):
            loaded.forward(IDS, VALID)


def test_a_bias_on_the_scores_that_the_layout_does_not_know(loaded, monkeypatch):
    """It reaches our attention as T5's does, and would be measured; BERT's own has none."""
    module = loaded.sites[1].module
    once = module.forward

    def biased(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        far = torch.arange(x.shape[1], dtype=x.dtype) / 10
        return once(x, *args, position_bias=far.expand(1, 4, len(far), -1), **kwargs)

    monkeypatch.setattr(module, "forward", biased)
    result = validate_model(loaded)
    assert_failed(result, "encoder layer 1", "pattern")
    assert not any("layer 0" in reason for reason in result.reasons)


def next_heads(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.roll(1, dims=1)


def misread(after: Callable[[Any], Any]) -> Callable[..., Any]:
    """Let a method return something else."""
    return lambda right: lambda *args: after(right(*args))


#: Layouts that misread their family: what has the function, its name, how it goes wrong, and what
#: is said.
MISREAD: dict[str, tuple[Any, str, Callable[..., Any], str]] = {
    "modernbert": (Layout, "window", misread(lambda n: n and n + 1), "layer 1: pattern on"),
    # Its W_Q as stored makes scores that are sqrt(d_head) times too large.
    "esm": (EsmLayout, "match", misread(lambda _: None), "layer 0: pattern on"),
    "squeezebert": (
        SqueezeBertLayout,
        "answer",
        lambda _: lambda self, site, z, inputs: {"context_layer": z.flip(1).transpose(1, 2)},
        "layer 0: max |out",
    ),
    # Values from the keys' input, of another width, which must not raise anything.
    "mobilebert": (
        MobileBertLayout,
        "read",
        misread(lambda inputs: replace(inputs, x_value=None)),
        "not comparable",
    ),
    "xlm": (
        XlmLayout,
        "read",
        misread(lambda inputs: replace(inputs, mask=None)),
        "padding mask did not reach",
    ),
    "marian": (Layout, "causal", misread(lambda _: False), "decoder layer 0: pattern on"),
    "bart": (  # the decoder's own states in the place of the encoder's
        Layout,
        "read",
        misread(lambda inputs: replace(inputs, x_k=inputs.x_q)),
        "cross layer 0: max |pattern",
    ),
    "t5": (T5Bias, "bias", misread(next_heads), "decoder layer 0: pattern on"),
    "rembert": (  # a reason, and nothing raised
        AttentionSite,
        "as_scored",
        lambda _: lambda self, heads, inputs: inputs.arguments["positions"],
        "rembert does not run through our attention: 'positions'",
    ),
}


@pytest.mark.parametrize("family", MISREAD)
def test_a_layout_that_misreads_its_family(family, monkeypatch):
    owner, name, wrong, said = MISREAD[family]
    model = network(family, "float32" if family == "modernbert" else "float64")
    loaded = headscope.wrap(model)
    monkeypatch.setattr(owner, name, wrong(getattr(owner, name)))
    if name != "read":  # what is asked when a model is opened
        loaded = headscope.wrap(model)
    assert_failed(validate_model(loaded), said)
