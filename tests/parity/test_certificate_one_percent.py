"""What is off by one percent in one layer fails: in every family, and whatever the states' size.

Each fault is planted in a reading of ours (a scale, a rotation, a norm, a window, a mask), or in
the attention that is installed; the model itself stays as it is.
"""

from functools import cache
from typing import Any

import pytest
import torch
from families import COVERED, tiny
from families_faults import ONE_PERCENT, READINGS, wrong_scale
from torch import Tensor, nn

import headscope
from headscope.attention import default_scale, stream_attention
from headscope.models.certificate.certificate import validate_model
from headscope.models.run import routing
from headscope.models.run.loaded import LoadedModel

pytestmark = pytest.mark.usefixtures("fresh_certificate")

LAYER = 1
#: Beside the rounding of its own layers, a model whose residual stream is so many times larger
#: than its norms write has that of the stream.
LARGE = 20_000.0


@cache
def opened(name: str, dtype: str = "float32") -> LoadedModel:
    if name == "large states":
        return headscope.wrap(with_large_states().to(getattr(torch, dtype)))
    return headscope.wrap(tiny(name, dtype))


@pytest.fixture
def dtype() -> str:
    return "float32"


@pytest.fixture
def loaded(name: str, dtype: str) -> LoadedModel:
    model = opened(name, dtype)
    model.certificate = None
    return model


def with_large_states() -> nn.Module:
    """Build a tiny rotary model whose states reach 2e4: RMSNorm takes the size away again."""
    model = tiny("eurobert, shared keys")
    with torch.no_grad():
        model.embed_tokens.weight *= LARGE
        for layer in model.layers:
            layer.self_attn.o_proj.weight *= LARGE
            layer.mlp.down_proj.weight *= LARGE
    return model


def test_states_of_20000_pass():
    loaded = opened("large states")
    result = validate_model(loaded)
    assert result.passed, result.reasons
    with torch.no_grad():
        states = loaded.model(torch.arange(5, 35)[None], output_hidden_states=True).hidden_states
    assert max(float(state.abs().max()) for state in states) > LARGE


# --- faults in what is read of the model ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("eurobert, shared keys", "float32"),
        ("eurobert, shared keys", "bfloat16"),
        ("large states", "float32"),
        ("large states", "bfloat16"),
        ("olmoe", "bfloat16"),  # experts that rounding picks
        ("mixtral", "bfloat16"),
    ],
)
@pytest.mark.parametrize("fault", READINGS)
def test_a_wrong_reading_of_one_layer_fails(fault, name, loaded, monkeypatch):
    READINGS[fault](monkeypatch, LAYER)
    result = validate_model(loaded)
    assert not result.passed
    assert any(f"layer {LAYER}: " in reason for reason in result.reasons), result.reasons


@pytest.mark.parametrize("name", [family.name for family in COVERED])
def test_a_wrong_scale_in_one_layer_fails_in_every_family(name, loaded, monkeypatch):
    wrong_scale(monkeypatch, LAYER)
    result = validate_model(loaded)
    assert not result.passed
    check = next(check for check in result.layers if check.layer == LAYER)
    # Tenfold the bound at least, in a random model whose patterns are nearly even.
    assert check.local_pattern is None or check.local_pattern > 10 * result.tolerance["local"]


MIXTURES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe", "granitemoe"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", MIXTURES)
def test_experts_that_rounding_picks_fail_no_certificate(name, dtype, loaded):
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert result.expert_choices > 0
    assert result.expert_choices_otherwise < 0.05 * result.expert_choices


@pytest.mark.parametrize("name", MIXTURES)
def test_a_wrong_scale_fails_in_half_precision_whatever_the_experts(name, monkeypatch):
    loaded = opened(name, "bfloat16")
    loaded.certificate = None
    wrong_scale(monkeypatch, LAYER)
    assert not validate_model(loaded).passed


# --- faults in the installed attention ------------------------------------------------------------


def one_layer_wrong(change: Any) -> Any:
    """Let the attention of one layer, told by its turn, take other arguments."""
    calls = iter(range(10_000))
    layers = 3

    def wrong(q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: Any, **options: Any) -> Tensor:
        if next(calls) % layers == LAYER:
            q, k, v, mask, scale = change(q, k, v, mask, scale)
        return stream_attention(q, k, v, mask=mask, scale=scale, **options)

    return wrong


INSTALLED = {
    "scale": lambda q, k, v, mask, scale: (
        q,
        k,
        v,
        mask,
        ONE_PERCENT * (default_scale(q.shape[-1]) if scale is None else scale),
    ),
    "values": lambda q, k, v, mask, scale: (q, k, ONE_PERCENT * v, mask, scale),
    "mask": lambda q, k, v, mask, scale: (q, k, v, None, scale),
}


@pytest.mark.parametrize("name", ["eurobert, shared keys", "large states"])
@pytest.mark.parametrize("fault", INSTALLED)
def test_a_wrong_installed_attention_in_one_layer_fails(fault, name, loaded, monkeypatch):
    monkeypatch.setattr(routing, "stream_attention", one_layer_wrong(INSTALLED[fault]))
    result = validate_model(loaded)
    assert not result.passed
    assert any(f"layer {LAYER}: " in reason for reason in result.reasons), result.reasons


def test_half_precision_widens_one_layer_and_puts_it_back():
    """The weights are the model's own again, to the bit and at their own addresses."""
    loaded = opened("eurobert, shared keys", "bfloat16")
    loaded.certificate = None
    before = {name: (p.data_ptr(), p.clone()) for name, p in loaded.model.named_parameters()}
    assert validate_model(loaded).passed
    for name, parameter in loaded.model.named_parameters():
        address, value = before[name]
        assert parameter.dtype == torch.bfloat16
        assert parameter.data_ptr() == address
        assert torch.equal(parameter, value)


# --- the model's own runs -------------------------------------------------------------------------


def test_noise_is_measured_and_said():
    """The bound that decides is a multiple of what the model's own runs differ by."""
    result = validate_model(opened("large states"))
    check = result.layers[-1]
    assert check.noise_out > 0
    assert result.allowed("out", check.noise_out) == max(1e-4, 8 * check.noise_out)
    assert result.allowed("out", 0.0) == 1e-4


def test_an_sdpa_that_computes_something_else_is_compared_with_nothing(monkeypatch):
    """As where transformers' SDPA leaves out a soft cap; the certificate says so, and holds."""
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def warmer(*args: Any, scale: float | None = None, **options: Any) -> Tensor:
        scale = default_scale(args[0].shape[-1]) if scale is None else scale
        return sdpa(*args, scale=0.8 * scale, **options)

    loaded = headscope.wrap(tiny("eurobert, shared keys"))
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", warmer)
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert result.sdpa_differs > result.tolerance["local"]
    assert result.max_abs_hidden_sdpa is None
    assert max(check.noise_out for check in result.layers) < 1e-4  # its difference is no noise
