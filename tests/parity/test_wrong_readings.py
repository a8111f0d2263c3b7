"""A layout that misreads its family fails the certificate, and says where."""

from collections.abc import Callable
from typing import Any

import pytest
from families import tiny
from torch import Tensor

import headscope
from headscope.models.certificate.certificate import validate_model
from headscope.models.layouts import variants
from headscope.models.layouts.disentangled import DisentangledLayout
from headscope.models.layouts.relative import MPNetLayout
from headscope.models.layouts.rotary import EsmLayout, Gpt2Layout, ModernBertLayout, RotaryLayout
from headscope.models.layouts.variants import (
    MobileBertLayout,
    RemBertLayout,
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


def rebuilt(**names: Any) -> Change:
    """Let ``read`` forget a part of what the module is given."""

    def forgetful(inputs: Any) -> Any:
        parts = {"x_q": inputs.x_q, "x_k": inputs.x_k, "mask": inputs.mask, **names}
        return type(inputs)(parts["x_q"], parts["x_k"], parts["mask"], inputs.given)

    return changed(forgetful)


def unturned(right: Any) -> Any:
    return lambda self, site, heads, inputs: heads


V3 = "deberta-v2, as v3, short"
DOT = lambda right: lambda self, module, d_head: d_head**-0.5  # noqa: E731
REVERSED = changed(lambda both: tuple(reversed(both)))
WIDER = changed(lambda n: n and n + 1)
OTHER_HEADS = changed(lambda bias: bias.roll(1, dims=1))
MISSING = "rembert does not run through our attention: 'positions'"
#: What is misread: (family, what has the function, its name, how it goes wrong, what is said).
WRONG: dict[str, tuple[str, Any, str, Change, str]] = {
    "not rotated": ("nomic_bert", RotaryLayout, "place", unturned, PATTERN),
    "keys of other groups": (
        *("eurobert, shared keys", RotaryLayout, "shared_by"),
        lambda _: lambda self, module, heads: [head % 2 for head in heads],
        PATTERN,
    ),
    "wider window": ("modernbert", ModernBertLayout, "window", WIDER, LAYER_1),
    "not causal": ("gpt2", Gpt2Layout, "causal", constant(False), PATTERN),
    "scaled twice": ("esm", EsmLayout, "scale", DOT, PATTERN),
    "bias of other heads": ("mpnet, long", MPNetLayout, "bias", OTHER_HEADS, PATTERN),
    "terms swapped, shared maps": (V3, DisentangledLayout, "_positions", REVERSED, PATTERN),
    "distances backwards": (V3, DisentangledLayout, "rows", changed(Tensor.t), PATTERN),
    # Its W_Q as stored makes scores that are sqrt(d_head) times too large.
    "ESM as BERT": ("esm", EsmLayout, "match", constant(None), PATTERN),
    "no convolution": ("convbert", variants, "convolution", changed(lambda found: found * 0), OUT),
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
