"""Other mechanisms in place of attention: the router's switch, gradients, and replaced scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_families import padded_batch, tiny
from torch import Tensor

import headscope
from headscope.attention import attention_pattern, stream_attention
from headscope.errors import ValidationFailedError
from headscope.measures.rank.factors import layer_factors
from headscope.measures.rank.shared_projections import share_projections
from headscope.measures.rank.starts import Mixed, truncate
from headscope.models.loaded import LoadedModel
from headscope.models.replaced import ReplacedScores
from headscope.models.routing import Router, routed


def plain(loaded: LoadedModel) -> Tensor:
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        return loaded.forward(*padded_batch())


def through(loaded: LoadedModel, mechanism: Any) -> Tensor:
    router = Router(loaded.sites, mechanism=mechanism)
    router.begin()
    with routed(loaded.model, router):
        hidden = loaded.forward(*padded_batch())
    router.check_calls()
    return hidden


def replaced(loaded: LoadedModel, factors: dict[int, Mixed]) -> Tensor:
    scores = ReplacedScores(loaded, {layer: (m.left, m.right) for layer, m in factors.items()})
    with scores.watching():
        return through(loaded, scores)


def assert_same(ours: Tensor, theirs: Tensor, atol: float = 1e-9) -> None:
    real = padded_batch()[1].bool()
    torch.testing.assert_close(ours[real], theirs[real], rtol=0, atol=atol)


def test_a_mechanism_gets_what_attention_gets_and_only_while_routed() -> None:
    loaded = headscope.wrap(tiny("bert", "float64"))
    before = plain(loaded)
    layers = []

    def ours(site: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: Any) -> Tensor:
        layers.append(site.layer)
        assert q.shape == k.shape == v.shape == (3, 4, 9, 8)
        assert mask is not None
        return attention_pattern(q, k, scale=scale, mask=mask) @ v

    assert_same(through(loaded, ours), before)
    assert layers == [0, 1, 2]
    mean = through(loaded, lambda site, q, k, v, mask, scale: v.mean(2, keepdim=True).expand_as(v))
    assert float((mean - before).abs().max()) > 0.01
    assert_same(plain(loaded), before, atol=0)


def test_under_a_mechanism_observers_see_nothing_and_calls_are_counted() -> None:
    loaded = headscope.wrap(tiny("bert"))

    class Never:
        def observe(self, site: Any) -> None:
            raise AssertionError

        def finish(self, stack: str, layer: int) -> None:
            raise AssertionError

    router = Router(loaded.sites, [Never()], mechanism=lambda site, q, k, v, mask, scale: v)
    with routed(loaded.model, router):
        loaded.forward(*padded_batch())
        router.check_calls()
        loaded.forward(*padded_batch())
    with pytest.raises(ValidationFailedError, match="2 times"):
        router.check_calls()


def test_gradients_are_those_of_finite_differences() -> None:
    loaded = headscope.wrap(tiny("bert", "float64"))
    gate = torch.ones(4, dtype=torch.float64, requires_grad=True)

    def loss(gate: Tensor) -> Tensor:
        def gated(site: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: Any) -> Tensor:
            z = stream_attention(q, k, v, mask=mask, scale=scale)
            return z * gate[:, None, None] if site.layer == 1 else z

        with routed(loaded.model, Router(loaded.sites, mechanism=gated), gradients=True):
            hidden = loaded.forward(*padded_batch())
        return hidden[padded_batch()[1].bool()].square().mul(torch.arange(32)).sum()

    (gradient,) = torch.autograd.grad(loss(gate), gate)
    for head in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[head] = 1e-5
        with torch.no_grad():
            slope = float(loss(gate + step) - loss(gate - step)) / 2e-5
        assert float(gradient[head]) == pytest.approx(slope, rel=1e-5)


def test_gradients_of_float32_weights_are_the_eager_models() -> None:
    """The faster float32 products have no gradient: they must not be in the way."""
    loaded = headscope.wrap(tiny("bert"))
    router = Router(loaded.sites)
    ids, mask = padded_batch()

    def gradient() -> Tensor:
        loss = loaded.forward(ids, mask)[mask.bool()].square().sum()
        return torch.autograd.grad(loss, loaded.sites[0].projections.q.weight)[0]

    with routed(loaded.model, router, gradients=True):
        ours = gradient()
    loaded.model.set_attn_implementation("eager")
    torch.testing.assert_close(ours, gradient(), rtol=1e-3, atol=1e-4)
    assert torch.is_grad_enabled()
    with routed(loaded.model, router):
        assert not loaded.forward(ids, mask).requires_grad


def own(loaded: LoadedModel) -> dict[int, Mixed]:
    sites = {site.layer: layer_factors(site.weights()) for site in loaded.sites}
    return {layer: Mixed(factors.W_Q, factors.W_K) for layer, factors in sites.items()}


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "distilbert", "electra", "albert", "albert, two groups"]
)
def test_own_factors_and_full_width_projections_reproduce_the_model(family: str) -> None:
    """b_Q and mask included, b_K left out: no softmax notices it."""
    loaded = headscope.wrap(tiny(family, "float64"))
    weights = {site.layer: site.weights() for site in loaded.sites}
    assert any(bool(w.b_K.any()) for w in weights.values())
    expected = plain(loaded)
    assert_same(replaced(loaded, own(loaded)), expected)
    shared = {n: share_projections(layer_factors(w), 32) for n, w in weights.items()}
    assert_same(replaced(loaded, shared), expected)


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-4), ("bfloat16", 0.3)])
def test_other_dtypes(dtype: str, atol: float) -> None:
    loaded = headscope.wrap(tiny("bert", dtype))
    assert_same(replaced(loaded, own(loaded)), plain(loaded), atol)


def test_query_bias_is_in_the_replaced_scores() -> None:
    """Without any W_Q left, b_Q alone still says where to look."""
    model = tiny("bert", "float64")
    loaded = headscope.wrap(model)
    nothing = {site.layer: Mixed(*torch.zeros(2, 4, 32, 0).double()) for site in loaded.sites}
    for part in ("weight", "bias"):
        with torch.no_grad():
            for layer in model.encoder.layer:
                getattr(layer.attention.self.query, part).zero_()
        assert_same(replaced(loaded, nothing), plain(loaded))


def test_scale_stays_that_of_the_head_whatever_the_width() -> None:
    """Zero columns widen the factors and change nothing; cutting to rank 8 of 8 neither."""
    loaded = headscope.wrap(tiny("bert", "float64"))
    wide = {
        layer: Mixed(*(torch.nn.functional.pad(side, (0, 23)) for side in (m.left, m.right)))
        for layer, m in own(loaded).items()
    }
    assert_same(replaced(loaded, wide), plain(loaded))
    cut = {site.layer: truncate(layer_factors(site.weights())).first(8) for site in loaded.sites}
    assert_same(replaced(loaded, cut), plain(loaded))


def test_cut_factors_are_what_a_model_with_cut_weights_computes() -> None:
    model = tiny("bert", "float64")
    loaded = headscope.wrap(model)
    cut = {site.layer: truncate(layer_factors(site.weights())).first(2) for site in loaded.sites}
    with torch.no_grad():
        for site in loaded.sites:
            site.projections.q.bias.zero_()
    ours = replaced(loaded, cut)
    with torch.no_grad():
        for site in loaded.sites:
            factors = cut[site.layer]
            for linear, factor in (
                (site.projections.q, factors.left),
                (site.projections.k, factors.right),
            ):
                wide = torch.nn.functional.pad(factor, (0, 6))
                linear.weight.copy_(wide.transpose(1, 2).reshape(32, 32))
    assert_same(ours, plain(loaded))
