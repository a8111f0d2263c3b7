"""The faster matrix products are the same products."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headscope.models.products import fast_products


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 7, 24), (1, 1, 24), (5, 24)])
def test_same_as_a_float64_product(bias: bool, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(24, 40, bias=bias)
    x = torch.randn(shape)
    expected = x.double() @ linear.weight.double().T
    if linear.bias is not None:
        expected = expected + linear.bias.double()
    with torch.no_grad(), fast_products(linear):
        out = linear(x)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)


def test_gradients_of_the_input_are_those_of_a_float64_product() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(24, 40).requires_grad_(False)
    x = torch.randn(3, 7, 24, requires_grad=True)
    by = torch.randn(3, 40, 7).transpose(1, 2)  # not contiguous
    with fast_products(linear):
        out = linear(x)
    (found,) = torch.autograd.grad(out, x, by)
    torch.testing.assert_close(
        found.double(), by.double() @ linear.weight.double(), rtol=0, atol=1e-5
    )


def test_puts_the_modules_back_even_when_the_body_raises() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def body() -> None:
        with fast_products(model):
            assert "forward" in vars(model[0])
            raise RuntimeError("body")

    with pytest.raises(RuntimeError, match="body"):
        body()
    assert not any("forward" in vars(module) for module in model)


def test_leaves_other_dtypes_and_subclasses_alone() -> None:
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(4, 4).double(), Own(4, 4))
    with fast_products(model):
        assert not any("forward" in vars(module) for module in model)
