"""What decoders do between maps and scores, one percent wrong in one layer: each fails.

The faults are in what is read of the model, in layer 1, or in the attention that is installed; the
model itself stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from families import tiny
from torch import Tensor

import headscope
from headscope.attention import stream_attention
from headscope.core.errors import UnsupportedModelError
from headscope.models.certificate.certificate import validate_model
from headscope.models.layouts.layout import AttentionSite, Layout
from headscope.models.layouts.maps import AttentionInput, Heads
from headscope.models.layouts.normed import HeadNorm, reads_all_heads
from headscope.models.layouts.steps import Clip, Rotation
from headscope.models.run import routing
from headscope.models.run.routing import Router, routed

LAYER = 1
ONE_PERCENT = 1.01
#: Of a layout or a step, what it does in a site or a module, and what it makes of it wrongly.
Wrong = Callable[[Any], Any]


def in_one_layer(owner: Any, name: str, wrong: Wrong) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what plants a fault in a method of a step, whose second argument is a site."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = getattr(owner, name)

        def change(step: Any, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
            if site.layer == LAYER:
                return wrong(right)(step, site, heads, inputs)
            return right(step, site, heads, inputs)

        monkeypatch.setattr(owner, name, change)

    return plant


def longer_keys(right: Any) -> Any:
    def change(*arguments: Any) -> Heads:
        q, k, v = right(*arguments)
        return Heads(q, ONE_PERCENT * k, v)

    return change


def later_angles(right: Any) -> Any:
    """Turn by one percent too much."""

    def change(step: Any, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        cos, sin = inputs.arguments["position_embeddings"]
        angle = ONE_PERCENT * torch.atan2(sin, cos)
        turned = {**inputs.arguments, "position_embeddings": (angle.cos(), angle.sin())}
        return right(step, site, heads, AttentionInput(inputs.x_q, inputs.x_k, inputs.mask, turned))

    return change


def unturned_too(right: Any) -> Any:
    """Turn a layer that the model leaves as it is."""

    def change(step: Any, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        site.module.use_rope = True
        try:
            return right(step, site, heads, inputs)
        finally:
            site.module.use_rope = False

    return change


def wider_clip(right: Any) -> Any:
    """Bound the entries of q, k and v by one percent more."""

    def change(step: Any, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        limit: float = site.module.config.clip_qkv
        site.module.config.clip_qkv = ONE_PERCENT * limit
        try:
            return right(step, site, heads, inputs)
        finally:
            site.module.config.clip_qkv = limit

    return change


def nothing(right: Any) -> Any:
    return lambda step, site, heads, inputs: heads


def wrong_softcap(monkeypatch: pytest.MonkeyPatch) -> None:
    right = AttentionSite.softcap.fget  # type: ignore[attr-defined]

    def softcap(site: AttentionSite) -> float | None:
        return ONE_PERCENT * right(site) if site.layer == LAYER else right(site)

    monkeypatch.setattr(AttentionSite, "softcap", property(softcap))
    monkeypatch.setattr(Router, "check_softcap", lambda *_: None)


def wrong_installed_softcap(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(10_000))

    def wrong(q: Tensor, k: Tensor, v: Tensor, *, softcap: float, **options: Any) -> Tensor:
        here = next(calls) % 3 == LAYER
        softcap = ONE_PERCENT * softcap if here else softcap
        return stream_attention(q, k, v, softcap=softcap, **options)

    monkeypatch.setattr(routing, "stream_attention", wrong)


def wider_window(monkeypatch: pytest.MonkeyPatch) -> None:
    right = AttentionSite.window.fget  # type: ignore[attr-defined]

    def window(site: AttentionSite) -> int | None:
        value = right(site)
        return value + 1 if site.layer == LAYER and value is not None else value

    monkeypatch.setattr(AttentionSite, "window", property(window))


norm = in_one_layer(HeadNorm, "change", longer_keys)
rotation = in_one_layer(Rotation, "change", later_angles)
PLANTED = {
    **{(f"norm of {name}", name): norm for name in ("qwen3", "gemma3_text", "olmo2", "phi")},
    **{
        (f"rotation of {name}", name): rotation
        for name in ("llama", "gemma2", "qwen3", "phi", "phi3", "modernbert-decoder")
    },
    ("a layer without rotation", "smollm3"): in_one_layer(Rotation, "change", unturned_too),
    ("no clip", "olmoe"): in_one_layer(Clip, "change", nothing),
    ("no clip", "olmo"): in_one_layer(Clip, "change", nothing),
    **{
        (f"clip of {name}", name): in_one_layer(Clip, "change", wider_clip)
        for name in ("olmo", "olmoe")
    },
    ("soft cap", "gemma2"): wrong_softcap,
    ("installed soft cap", "gemma2"): wrong_installed_softcap,
    **{
        (f"window of {name}", name): wider_window
        for name in ("mistral", "qwen2", "gemma3_text, both directions", "phi3")
    },
}


@pytest.mark.parametrize(("fault", "name"), PLANTED)
def test_one_percent_in_one_layer_fails(fault, name, monkeypatch):
    changes = {}
    if name.startswith("gemma3"):
        changes = {"sliding_window_pattern": 3}  # layers 0 and 1 look through a window
    if name == "smollm3":
        changes = {"no_rope_layers": [1, 0, 1]}
    loaded = headscope.wrap(tiny(name, **changes))
    assert validate_model(loaded).passed
    loaded.certificate = None
    PLANTED[fault, name](monkeypatch)
    result = validate_model(loaded)
    assert not result.passed
    assert any(f"layer {LAYER}: " in reason for reason in result.reasons), result.reasons


@pytest.mark.parametrize("fault", [wrong_softcap, wrong_installed_softcap])
def test_a_wrong_soft_cap_fails_in_half_precision_too(fault, monkeypatch):
    loaded = headscope.wrap(tiny("gemma2", "bfloat16"))
    fault(monkeypatch)
    assert not validate_model(loaded).passed


def test_norms_of_all_heads_together_are_none_of_each_head(monkeypatch):
    loaded = headscope.wrap(tiny("olmo2"))
    assert reads_all_heads(loaded.sites[0].module.q_norm, loaded.sites[0].d_head)

    def each_on_its_own(step: HeadNorm, site: AttentionSite, heads: Heads, _: Any) -> Heads:
        q_gain = site.module.q_norm.weight.view(-1, 1, site.d_head)
        k_gain = site.module.k_norm.weight.view(-1, 1, site.d_head)
        k_gain = k_gain.repeat_interleave(heads.k.shape[1] // len(k_gain), dim=0)
        q, k = (x * x.square().mean(-1, keepdim=True).rsqrt() for x in heads[:2])
        return Heads(q * q_gain, k * k_gain, heads.v)

    monkeypatch.setattr(HeadNorm, "change", each_on_its_own)
    assert not validate_model(loaded).passed


def test_a_soft_cap_that_the_module_does_not_state_is_refused():
    loaded = headscope.wrap(tiny("llama"))
    assert Layout.softcap(loaded.sites[0].layout, loaded.sites[0].module) is None
    ids = torch.arange(5, 12)[None]
    with (
        routed(loaded.model, Router(loaded.sites)),
        pytest.raises(UnsupportedModelError, match=r"softcap of 3\.0"),
    ):
        loaded.model(ids, softcap=3.0)
