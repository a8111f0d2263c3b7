"""What is put around a model: watched inputs, norms before a layer, products, other mechanisms."""

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from families import padded_batch, tiny
from torch import Tensor, nn

import headscope
from headscope.analyses.rank.shared_projections import Mixed, share_projections
from headscope.attention import attention_pattern
from headscope.core.activations import Activations
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.intervene import intervene, watch_inputs
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.products import fast_products
from headscope.models.run.routing import Router, routed
from headscope.models.run.watched import gain_and_shift, preceding_norms
from headscope.stats.spectra import fold_gain, layer_factors


@pytest.mark.parametrize("family", ["bert", "distilbert", "albert, two groups"])
def test_inputs_times_weights_are_the_queries_keys_and_values(family):
    loaded = headscope.wrap(tiny(family, "float64"))
    inputs: list[tuple[int, Tensor]] = []
    heads: list[tuple[Tensor, Tensor, Tensor]] = []

    class Keep:
        def observe(self, site: Activations) -> None:
            heads.append((site.q, site.k, site.v))

        def finish(self, stack: str, layer: int) -> None:
            pass

    def see(site: AttentionSite, given: AttentionInput) -> None:
        assert not given.crossed
        inputs.append((site.layer, given.x_q))

    router = Router(loaded.sites, [Keep()])
    with routed(loaded.model, router), watch_inputs(loaded.sites, see):
        for _ in range(2):  # a second pass starts at the first layer again
            router.run(lambda: loaded.forward(*padded_batch()))
    assert [layer for layer, _ in inputs] == [*range(loaded.n_layers)] * 2
    for (layer, x), qkv in zip(inputs, heads, strict=True):
        w = loaded.sites[layer].weights()
        for found, W, b in zip(qkv, (w.W_Q, w.W_K, w.W_V), (w.b_Q, w.b_K, w.b_V), strict=True):
            torch.testing.assert_close(found, x[:, None] @ W + b[:, None], rtol=1e-9, atol=1e-9)


def assert_gone_after_an_error(around: AbstractContextManager[Any], model: nn.Module) -> None:
    def body() -> None:
        with around:
            assert any("forward" in vars(m) or m._forward_pre_hooks for m in model.modules())
            raise RuntimeError("body")

    with pytest.raises(RuntimeError, match="body"):
        body()
    for module in model.modules():
        assert "forward" not in vars(module)
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_nothing_stays_even_when_the_body_raises():
    loaded = headscope.wrap(tiny("bert"))
    preceding_norms(loaded)
    assert_gone_after_an_error(watch_inputs(loaded.sites, lambda *_: None), loaded.model)
    assert_gone_after_an_error(fast_products(loaded.model), loaded.model)


@pytest.mark.parametrize("family", ["bert", "distilbert", "albert, two groups"])
def test_norm_is_behaviourally_the_one_before(family):
    """Queries from the normalised state through the folded weights are the model's own."""
    loaded = headscope.wrap(tiny(family, "float64"))
    for module in loaded.model.modules():  # gains and shifts that matter
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1, 0.5)
            nn.init.normal_(module.bias, 0, 0.5)
    norms = preceding_norms(loaded)
    assert set(range(1, loaded.n_layers)) <= set(norms)
    seen: dict[nn.Module, list[Tensor]] = {}

    def keep(module: nn.Module, args: tuple[Tensor, ...], out: Tensor | None = None) -> None:
        seen.setdefault(module, []).append(args[0] if out is None else out)

    for norm in set(norms.values()):
        norm.register_forward_pre_hook(keep)
    for query in {site.projections.q.module for site in loaded.sites}:
        query.register_forward_hook(keep)
    with torch.no_grad():
        loaded.forward(*padded_batch())
    for site in loaded.sites:
        if site.layer in norms:
            norm = norms[site.layer]
            folded = fold_gain(site.weights(), *gain_and_shift(norm))
            ours = []
            for state in seen[norm]:
                x = nn.functional.layer_norm(state, norm.normalized_shape, eps=norm.eps)
                q = x[:, None] @ folded.W_Q + folded.b_Q[:, None]
                ours.append(q.transpose(1, 2).flatten(2))
            # (ALBERT's one module runs in every layer: this layer's query is among them)
            queries = seen[site.projections.q.module]
            assert any(torch.allclose(a, b, atol=1e-9) for a in ours for b in queries)


@pytest.mark.parametrize("bias", [True, False])
def test_faster_products_are_those_of_float64(bias):
    torch.manual_seed(0)
    linear = nn.Linear(24, 40, bias=bias).requires_grad_(False)
    weight = linear.weight.double()
    for shape in ((3, 7, 24), (1, 1, 24), (5, 24)):
        x = torch.randn(shape)
        expected = x.double() @ weight.T
        if linear.bias is not None:
            expected = expected + linear.bias.double()
        with torch.no_grad(), fast_products(linear):
            out = linear(x)
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)
    x = torch.randn(3, 7, 24, requires_grad=True)
    by = torch.randn(3, 40, 7).transpose(1, 2)  # not contiguous
    with fast_products(linear):
        out = linear(x)
    (found,) = torch.autograd.grad(out, x, by)
    torch.testing.assert_close(found.double(), by.double() @ weight, rtol=0, atol=1e-5)


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
    scores = {layer: (m.left, m.right) for layer, m in factors.items()}
    with intervene(loaded, scores=scores) as router:
        return router.checked(loaded.forward, *padded_batch())


def assert_same(ours: Tensor, theirs: Tensor, atol: float = 1e-9) -> None:
    real = padded_batch()[1].bool()
    torch.testing.assert_close(ours[real], theirs[real], rtol=0, atol=atol)


def test_a_mechanism_gets_what_attention_gets_and_only_while_routed():
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


def own(loaded: LoadedModel) -> dict[int, Mixed]:
    sites = {site.layer: layer_factors(site.weights()) for site in loaded.sites}
    return {layer: Mixed(factors.W_Q, factors.W_K) for layer, factors in sites.items()}


@pytest.mark.parametrize("family", ["bert", "albert, two groups"])
def test_own_factors_and_full_width_projections_reproduce_the_model(family):
    """b_Q and mask included, b_K left out: no softmax notices it."""
    loaded = headscope.wrap(tiny(family, "float64"))
    weights = {site.layer: site.weights() for site in loaded.sites}
    assert any(bool(w.b_K.any()) for w in weights.values())
    expected = plain(loaded)
    assert_same(replaced(loaded, own(loaded)), expected)
    shared = {n: share_projections(layer_factors(w), 32) for n, w in weights.items()}
    assert_same(replaced(loaded, shared), expected)


@pytest.mark.parametrize("family", ["xlm", "albert"])
def test_an_intervention_changes_every_site_and_is_undone_after_an_error(family):
    loaded = headscope.wrap(tiny(family, "float64"))
    ids, mask = padded_batch()
    with torch.no_grad():
        before = loaded.forward(ids, mask)
    state = [parameter.requires_grad for parameter in loaded.network.parameters()]
    seen = []

    def fail(site: AttentionSite, z: Tensor) -> Tensor:
        seen.append(site.row)
        raise RuntimeError("inside")

    with (
        pytest.raises(RuntimeError, match="inside"),
        intervene(loaded, z=fail, gradients=True),
    ):
        loaded.forward(ids, mask)
    assert seen == [0]
    assert all("forward" not in vars(module) for module in loaded.network.modules())
    assert state == [parameter.requires_grad for parameter in loaded.network.parameters()]
    with torch.no_grad():
        assert torch.equal(loaded.forward(ids, mask), before)


def test_nested_interventions_the_innermost_holds_and_the_outer_one_again_after_it():
    loaded = headscope.wrap(tiny("bert", "float64"))
    batch = padded_batch()

    def double(site: AttentionSite, z: Tensor) -> Tensor:
        return 2 * z

    def zero(site: AttentionSite, z: Tensor) -> Tensor:
        return z * 0

    with intervene(loaded, z=zero) as router:
        wanted = router.checked(loaded.forward, *batch)
        with intervene(loaded, z=double) as inner:
            doubled = inner.checked(loaded.forward, *batch)
        assert torch.equal(router.checked(loaded.forward, *batch), wanted)
    with intervene(loaded, z=double) as router:
        assert torch.equal(router.checked(loaded.forward, *batch), doubled)
    assert not torch.allclose(doubled, wanted)


def test_repeated_products_are_the_same_and_follow_a_change_of_the_weights():
    torch.manual_seed(1)
    linear = nn.Linear(24, 40).requires_grad_(False)
    with torch.no_grad(), fast_products(linear):
        for shape in ((3, 7, 24), (1, 1, 24), (200, 24)):
            x = torch.randn(shape)
            first = product(x, linear)  # as it is stored
            for _ in range(3):  # from the second use on in another order of memory
                torch.testing.assert_close(linear(x), first, rtol=0, atol=1e-5)
        x = torch.randn(5, 24)
        for change in (
            lambda: linear.weight.mul_(2),
            lambda: setattr(linear.weight, "data", torch.randn(40, 24)),
            lambda: setattr(linear, "weight", nn.Parameter(torch.randn(40, 24), False)),
        ):
            linear(x)
            change()
            for _ in range(2):
                expected = nn.functional.linear(x, linear.weight, linear.bias)
                torch.testing.assert_close(linear(x), expected)


def product(x: Tensor, linear: nn.Linear) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, linear.weight, linear.bias, "none", [], "")
    return out
