"""A layout that misreads its family fails the certificate, and says where."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from families import tiny
from torch import Tensor

import headscope
from headscope.models.certificate.certificate import validate_model
from headscope.models.layouts import variants
from headscope.models.layouts.disentangled import DisentangledLayout, InterleavedLayout
from headscope.models.layouts.maps import AttentionInput
from headscope.models.layouts.relative import MPNetLayout
from headscope.models.layouts.rotary import EsmLayout, Gpt2Layout, ModernBertLayout, RotaryLayout
from headscope.models.layouts.variants import (
    GroupedMap,
    MobileBertLayout,
    RemBertLayout,
    RoFormerLayout,
    SqueezeBertLayout,
    XlmLayout,
)

PATTERN = "layer 0: max |pattern"
LAYER_1 = "layer 1: max |pattern"
OUT = "layer 0: max |out"
Change = Callable[[Any], Any]


def changed(after: Callable[[Any], Any]) -> Change:
    """Let a method return something else."""
    return lambda right: lambda *args: after(right(*args))


def constant(value: Any) -> Change:
    return lambda _: lambda *args: value


def backwards(inputs: AttentionInput) -> AttentionInput:
    cos, sin = inputs.given["position_embeddings"]
    return replace(inputs, given={"position_embeddings": (cos, -sin.roll(1, dims=1))})


def other_angles(right: Any) -> Any:
    """Those of the other type of layer."""
    model = tiny("modernbert", initializer_range=0.2)

    def place(self: Any, site: Any, heads: Any, inputs: AttentionInput) -> Any:
        kind = "full_attention" if site.window else "sliding_attention"
        where = torch.arange(inputs.x_q.shape[1])[None]
        angles = model.rotary_emb(inputs.x_q, where, kind)
        given = {"position_embeddings": angles}
        return right(self, site, heads, replace(inputs, given=given))

    return place


def no_buckets(_: Any) -> Any:
    def rows(self: Any, module: Any, n_q: int, n_k: int) -> Tensor:
        span = module.position_buckets
        distance = torch.arange(n_q)[:, None] - torch.arange(n_k)
        return (distance + span).clamp(0, 2 * span - 1)

    return rows


def turn(sign: float, first: slice | None) -> Change:
    """RoFormer's rotation with other signs, or of other pairs: (i, i + d_head / 2)."""

    def rotated(right: Any) -> Any:
        def wrong(x: Tensor, table: Tensor) -> Tensor:
            sin, cos = table.chunk(2, dim=-1)
            if first is None:
                return right(x, torch.cat([sign * sin, cos], dim=-1))
            a, b = x.chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

        return wrong

    return rotated


def rebuilt(**names: Any) -> Change:
    """Let ``read`` forget a part of what the module is given."""

    def forgetful(inputs: Any) -> Any:
        parts = {"x_q": inputs.x_q, "x_k": inputs.x_k, "mask": inputs.mask, **names}
        return type(inputs)(parts["x_q"], parts["x_k"], parts["mask"], inputs.given)

    return changed(forgetful)


def mixed_groups(right: Any) -> Any:
    def mixed(self: GroupedMap) -> Tensor:
        weight: Tensor = right.fget(self)
        return weight.roll(16, 1) if self.module.groups > 1 else weight

    return property(mixed)


def convolved(change: Callable[[Tensor], Tensor]) -> tuple[Any, str, Change, str]:
    return variants, "convolution", changed(change), OUT


def own_values(right: Any) -> Any:
    return lambda self, site, heads, inputs: right(self, site, heads, inputs)._replace(v=heads.v)


def unturned(right: Any) -> Any:
    return lambda self, site, heads, inputs: heads


V3, OWN = "deberta-v2, as v3, short", "deberta-v2, own maps, short"
DOT = lambda right: lambda self, module, d_head: d_head**-0.5  # noqa: E731
REVERSED = changed(lambda both: tuple(reversed(both)))
WIDER = changed(lambda n: n and n + 1)
OTHER_HEADS = changed(lambda bias: bias.roll(1, dims=1))
MISSING = "rembert does not run through our attention: 'positions'"
#: What is misread: (family, what has the function, its name, how it goes wrong, what is said).
WRONG: dict[str, tuple[str, Any, str, Change, str]] = {
    "not rotated": ("nomic_bert", RotaryLayout, "place", unturned, PATTERN),
    "rotated backwards": (
        *("jina_embeddings_v3", RotaryLayout, "place"),
        lambda right: lambda self, site, heads, inputs: right(self, site, heads, backwards(inputs)),
        PATTERN,
    ),
    "keys of other groups": (
        *("eurobert, shared keys", RotaryLayout, "shared_by"),
        lambda _: lambda self, module, heads: [head % 2 for head in heads],
        PATTERN,
    ),
    "angles of the other layers": ("modernbert", ModernBertLayout, "place", other_angles, PATTERN),
    "wider window": ("modernbert", ModernBertLayout, "window", WIDER, LAYER_1),
    "not causal": ("gpt2", Gpt2Layout, "causal", constant(False), PATTERN),
    "layers scaled alike": ("gpt2, by layer", Gpt2Layout, "scale", DOT, LAYER_1),
    "scaled twice": ("esm", EsmLayout, "scale", DOT, PATTERN),
    "bias of other heads": ("mpnet, long", MPNetLayout, "bias", OTHER_HEADS, PATTERN),
    "terms of other heads": (V3, DisentangledLayout, "bias", OTHER_HEADS, PATTERN),
    "terms swapped, shared maps": (V3, DisentangledLayout, "_positions", REVERSED, PATTERN),
    "terms swapped, fused": ("deberta, short", InterleavedLayout, "_positions", REVERSED, PATTERN),
    "distances backwards": (V3, DisentangledLayout, "rows", changed(Tensor.t), PATTERN),
    "no buckets": (V3, DisentangledLayout, "rows", no_buckets, PATTERN),
    "RoFormer by halves": ("roformer", variants, "rotated", turn(1, slice(None)), PATTERN),
    "values not rotated": ("roformer, rotated values", RoFormerLayout, "place", own_values, OUT),
    # RoFormer has BERT's maps: read as RemBERT's, the certificate must notice.
    "RoFormer as RemBERT": ("roformer", RoFormerLayout, "match", constant(None), PATTERN),
    # Its W_Q as stored makes scores that are sqrt(d_head) times too large.
    "ESM as BERT": ("esm", EsmLayout, "match", constant(None), PATTERN),
    "no convolution": ("convbert", *convolved(lambda found: found * 0)),
    "convolution of other heads": ("convbert", *convolved(lambda found: found.flip(2))),
    "groups mixed up": ("squeezebert", GroupedMap, "weight", mixed_groups, PATTERN),
    "channels mixed up": (
        *("squeezebert", SqueezeBertLayout, "answer"),
        lambda _: lambda self, site, z, inputs: {"context_layer": z.flip(1).transpose(1, 2)},
        OUT,
    ),
    "values from the keys' input": (
        *("mobilebert, wide values", MobileBertLayout, "read", rebuilt()),
        "layer 0: max |out - model's| is ",
    ),
    # Of another width, which must not raise anything.
    "other width": ("mobilebert", MobileBertLayout, "read", rebuilt(), "not comparable"),
    "XLM's mask": ("xlm", XlmLayout, "read", rebuilt(mask=None), "padding mask did not reach"),
    "XLM's direction": ("xlm, causal", XlmLayout, "causal", constant(False), PATTERN),
    "RemBERT's direction": ("rembert, decoder", RemBertLayout, "causal", constant(False), PATTERN),
    # A reason, and nothing raised.
    "arguments that are not there": (
        *("rembert", RemBertLayout, "place"),
        lambda _: lambda self, site, heads, inputs: inputs.given["positions"],
        MISSING,
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_readings_fail(what, monkeypatch):
    name, owner, attribute, wrong, said = WRONG[what]
    changes = {"intra_bottleneck_size": 32} if "wide" in name else {}
    exact = owner not in (RotaryLayout, ModernBertLayout, Gpt2Layout)  # as checkpoints are
    model = tiny(name.removesuffix(", wide values"), "float64" if exact else "float32", **changes)
    monkeypatch.setattr(owner, attribute, wrong(getattr(owner, attribute)))
    loaded = headscope.wrap(model)
    if " as " in what:
        assert {site.layout.name for site in loaded.sites} == {what.rpartition(" ")[2].lower()}
    result = validate_model(loaded)
    assert not result.passed
    assert any(said in reason for reason in result.reasons), result.reasons
