"""Faster matrix products for a measured pass: oneDNN's instead of torch's default BLAS.

Nearly all of a pass is spent in nn.Linear. On a CPU torch hands float32 to MKL, which on processors
that are not Intel's uses half of their vector width; oneDNN, also part of torch, uses all of it and
is more than twice as fast there. It is float32 all the same, rounded in another order. The
certificate runs through the same products, so it covers them too.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

#: oneDNN's linear map: (x, W, b, and three settings of what follows it) to x W^T + b.
Product = Callable[..., Tensor]

# torch and oneDNN keep a compiled product for each of the last 1,024 shapes, about half a megabyte
# each, so memory would grow with the corpus. A batch uses a handful of shapes, again in every
# layer, and then perhaps never more. Read by both libraries when they first multiply.
os.environ.setdefault("LRU_CACHE_CAPACITY", "32")
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")


@contextmanager
def fast_products(model: nn.Module) -> Iterator[None]:
    """Let float32 linear maps on a CPU run through oneDNN while the block runs.

    Where autograd records, only maps whose weights are frozen do. Does nothing where torch lacks
    the operation, on other devices and for other dtypes.
    """
    product: Product | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if product is None:
        yield
        return
    linears = [module for module in model.modules() if _is_plain_float32(module)]
    for linear in linears:
        vars(linear)["forward"] = functools.partial(_apply, product, linear, [])
    try:
        yield
    finally:
        for linear in linears:
            del vars(linear)["forward"]


def _apply(product: Product, linear: nn.Linear, transposed: list[Tensor], x: Tensor) -> Tensor:
    """Multiply; ``transposed`` keeps the weights as a backward pass wants them."""
    if torch.is_grad_enabled() and linear.weight.requires_grad:
        return functional.linear(x, linear.weight, linear.bias)
    if not (torch.is_grad_enabled() and x.requires_grad):
        return product(x, linear.weight, linear.bias, "none", [], "")
    if not transposed:
        transposed.append(linear.weight.detach().t().contiguous())
    wanted: Tensor = _Product.apply(  # type: ignore[no-untyped-call]
        x, product, linear.weight, linear.bias, transposed[0]
    )
    return wanted


class _Product(torch.autograd.Function):
    """``x W^T + b`` with a gradient for x: the gradient of the output times W."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, product: Product, W: Tensor, b: Tensor | None, transposed: Tensor
    ) -> Tensor:
        ctx.product, ctx.transposed = product, transposed
        return product(x, W, b, "none", [], "")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Give x its gradient; the weights are frozen."""
        x = ctx.product(grads[0].contiguous(), ctx.transposed, None, "none", [], "")
        return x, None, None, None, None


def _is_plain_float32(module: nn.Module) -> TypeGuard[nn.Linear]:
    return (
        type(module) is nn.Linear
        and "forward" not in vars(module)
        and module.weight.dtype == torch.float32
        and module.weight.device.type == "cpu"
        and module.weight.numel() > 0  # a layer without heads: oneDNN refuses it
    )
