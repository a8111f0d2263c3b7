"""What is put around a model: norms before a layer, products, changed outputs; and gone again.

Watched inputs and replaced scores are held against dense matrices in tests/parity/test_rank.py,
mechanisms against loops in test_exchanged_heads.py.
"""

import copy

import pytest
import torch
from families import padded_batch, tiny
from torch import Tensor, nn

import headscope
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run import products
from headscope.models.run.intervene import intervene
from headscope.models.run.products import fast_products
from headscope.models.run.site_hooks import watch_inputs
from headscope.models.run.watched import gain_and_shift, preceding_norms


@pytest.mark.parametrize("family", ["bert", "distilbert", "albert, two groups"])
def test_the_norm_before_a_layer_makes_what_its_attention_reads(family):
    loaded = headscope.wrap(tiny(family, "float64"))
    for module in loaded.model.modules():  # gains and shifts that matter
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1, 0.5)
            nn.init.normal_(module.bias, 0, 0.5)
    norms = preceding_norms(loaded)
    assert set(range(1, loaded.n_layers)) <= set(norms)
    outputs: dict[nn.Module, list[Tensor]] = {}
    read: dict[int, Tensor] = {}

    def keep(norm: nn.LayerNorm, args: tuple[Tensor, ...], _: Tensor) -> None:
        gain, shift = gain_and_shift(norm)
        normalised = nn.functional.layer_norm(args[0], norm.normalized_shape, eps=norm.eps)
        outputs.setdefault(norm, []).append(normalised * gain + shift)

    for norm in set(norms.values()):
        norm.register_forward_hook(keep)
    with watch_inputs(loaded.sites, lambda site, inputs: read.update({site.row: inputs.x_q})):
        loaded.forward(*padded_batch())
    for row, norm in norms.items():  # ALBERT's one module runs in every layer
        assert any(torch.allclose(read[row], out, atol=1e-9) for out in outputs[norm])


@pytest.mark.parametrize("bias", [True, False])
def test_faster_products_are_those_of_float64_and_follow_the_weights(bias):
    torch.manual_seed(0)
    linear = nn.Linear(24, 40, bias=bias).requires_grad_(False)

    def check(x: Tensor) -> None:
        b = None if linear.bias is None else linear.bias.double()
        expected = nn.functional.linear(x.double(), linear.weight.double(), b)
        for _ in range(3):  # from the second use on in another order of memory
            torch.testing.assert_close(linear(x).double(), expected, rtol=0, atol=3e-5)

    with torch.no_grad(), fast_products(linear):
        for shape in ((3, 7, 24), (1, 1, 24), (5, 24), (200, 24)):
            check(torch.randn(shape))
        for change in (
            lambda: linear.weight.mul_(2),
            lambda: setattr(linear.weight, "data", torch.randn(40, 24)),
            lambda: setattr(linear, "weight", nn.Parameter(torch.randn(40, 24), False)),
        ):
            change()
            check(torch.randn(5, 24))
    x = torch.randn(3, 7, 24, requires_grad=True)
    by = torch.randn(3, 40, 7).transpose(1, 2)  # not contiguous
    with fast_products(linear):
        out = linear(x)
    (gradient,) = torch.autograd.grad(out, x, by)
    expected = by.double() @ linear.weight.double()
    torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=3e-5)


def test_copies_that_share_weights_share_them_in_the_other_order_of_memory_too():
    linear = nn.Linear(24, 40).requires_grad_(False)
    copied = copy.deepcopy(linear, {id(weight): weight for weight in linear.parameters()})
    x = torch.randn(5, 24)
    with torch.no_grad(), fast_products(linear), fast_products(copied):
        first = [linear(x) for _ in range(3)]
        assert len(products._in_use) == 1
        assert all(torch.equal(first[-1], copied(x)) for _ in range(3))
        assert len(products._in_use) == 1
        linear.weight.mul_(2)
        doubled = [copied(x) - linear.bias for _ in range(3)]
        torch.testing.assert_close(doubled[-1], 2 * (first[-1] - linear.bias))
    assert not products._in_use


@pytest.mark.parametrize("family", ["xlm", "albert"])
def test_nothing_stays_after_an_error(family):
    """The first site fails, with inputs watched and products replaced around it."""
    loaded = headscope.wrap(tiny(family))
    preceding_norms(loaded)
    ids, mask = padded_batch()
    with torch.no_grad():
        before = loaded.forward(ids, mask)
    state = [parameter.requires_grad for parameter in loaded.network.parameters()]
    seen = []

    def fail(site: AttentionSite, z: Tensor) -> Tensor:
        seen.append(site.row)
        assert any("forward" in vars(module) for module in loaded.network.modules())
        raise RuntimeError("inside")

    with (
        pytest.raises(RuntimeError, match="inside"),
        watch_inputs(loaded.sites, lambda *_: None),
        fast_products(loaded.model),
        intervene(loaded, z=fail, gradients=True),
    ):
        loaded.forward(ids, mask)
    assert seen == [0]
    for module in loaded.network.modules():
        assert "forward" not in vars(module)
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
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
        expected = router.checked(loaded.forward, *batch)
        with intervene(loaded, z=double) as inner:
            doubled = inner.checked(loaded.forward, *batch)
        assert torch.equal(router.checked(loaded.forward, *batch), expected)
    with intervene(loaded, z=double) as router:
        assert torch.equal(router.checked(loaded.forward, *batch), doubled)
    assert not torch.allclose(doubled, expected)


class OneMore(nn.LayerNorm):
    """A LayerNorm whose gain is 1 + its weight, as Nemotron's."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(
            x, self.normalized_shape, self.weight + 1, self.bias, self.eps
        )


@pytest.mark.parametrize("kind", [nn.LayerNorm, OneMore])
def test_gain_and_shift_are_those_of_what_a_norm_does(kind):
    norm = kind(8, dtype=torch.float64)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(5, 8, dtype=torch.float64)
    gain, shift = gain_and_shift(norm)
    expected = nn.functional.layer_norm(x, (8,), eps=norm.eps) * gain + shift
    torch.testing.assert_close(norm(x), expected, rtol=0, atol=1e-7)
