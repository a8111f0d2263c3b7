"""What a site is told to read is what it really multiplies."""

from __future__ import annotations

import pytest
import torch
from families import each_family, padded_batch, tiny
from torch import Tensor

import headscope
from headscope.measures.activations import Activations
from headscope.models.hooks import watch_inputs
from headscope.models.layouts import AttentionInput, AttentionSite
from headscope.models.routing import Router, routed


@each_family
def test_inputs_times_weights_are_the_queries_keys_and_values(family: str) -> None:
    loaded = headscope.wrap(tiny(family, "float64"))
    inputs: list[tuple[int, Tensor]] = []
    heads: list[tuple[Tensor, Tensor, Tensor]] = []

    class Keep:
        def observe(self, site: Activations) -> None:
            heads.append((site.q, site.k, site.v))

        def finish(self, stack: str, layer: int) -> None:
            pass

    router = Router(loaded.sites, [Keep()])
    with (
        routed(loaded.model, router),
        watch_inputs(loaded.sites, lambda site, given: inputs.append((site.layer, given.x_q))),
    ):
        for _ in range(2):  # a second pass starts at the first layer again
            router.run(lambda: loaded.forward(*padded_batch()))
    assert [layer for layer, _ in inputs] == [*range(loaded.n_layers)] * 2
    assert len(heads) == len(inputs)
    for (layer, x), qkv in zip(inputs, heads, strict=True):
        w = loaded.sites[layer].weights()
        for found, W, b in zip(qkv, (w.W_Q, w.W_K, w.W_V), (w.b_Q, w.b_K, w.b_V), strict=True):
            torch.testing.assert_close(found, x[:, None] @ W + b[:, None], rtol=1e-9, atol=1e-9)


def test_shared_modules_are_told_apart_by_turn() -> None:
    loaded = headscope.wrap(tiny("albert", "float64"))
    states = loaded.model(*padded_batch(), output_hidden_states=True).hidden_states
    seen: dict[int, Tensor] = {}

    def see(site: AttentionSite, inputs: AttentionInput) -> None:
        assert not inputs.crossed
        seen[site.layer] = inputs.x_q

    with torch.no_grad(), watch_inputs(loaded.sites, see):
        loaded.forward(*padded_batch())
    for layer in range(3):
        torch.testing.assert_close(seen[layer], states[layer].detach())


def test_hooks_go_even_when_the_body_raises() -> None:
    loaded = headscope.wrap(tiny("bert"))

    def body() -> None:
        with watch_inputs(loaded.sites, lambda site, inputs: None):
            raise RuntimeError("body")

    with pytest.raises(RuntimeError, match="body"):
        body()
    assert not any(module._forward_pre_hooks for module in loaded.model.modules())
