"""How matrices are multiplied: faster in a measured pass, as exactly as their type says in a proof.

Nearly all of a pass is spent in nn.Linear. On a CPU torch hands float32 to MKL, which on processors
that are not Intel's uses half of their vector width; oneDNN, also part of torch, uses all of it and
is more than twice as fast there. It is float32 all the same, rounded in another order. The
certificate runs through the same products, so it covers them too.

torch may also multiply float32 in fewer bits: in TF32 (10 bits of 23) on NVIDIA's GPUs, in bfloat16
(7 bits) on CPUs that have such units, and by default in cuDNN's convolutions. And it may add the
partial sums of half-precision products in half precision. A certificate made so would be of another
model than the one whose type it states.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeGuard
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

from headscope.models.run.hooks import replaced_forwards

#: oneDNN's linear map, called through :func:`_multiply`.
Product = Callable[..., Tensor]

# torch and oneDNN keep a compiled product for each of the last 1,024 shapes, about half a megabyte
# each, so memory would grow with the corpus. A batch uses a handful of shapes, again in every
# layer, and then perhaps never more. Read by both libraries when they first multiply.
os.environ.setdefault("LRU_CACHE_CAPACITY", "32")
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")


# --- in a measured pass ---------------------------------------------------------------------------

#: Bytes of weights that are kept in oneDNN's own order, at most: they are held twice then.
MOST_PACKED = 1 << 28
#: The same in a pass over a corpus, which uses every weight many times and holds little else.
MOST_PACKED_IN_A_PASS = 1 << 29


@contextmanager
def fast_products(
    model: nn.Module, *, training: bool = False, most_packed: int = MOST_PACKED
) -> Iterator[None]:
    """Let float32 linear maps on a CPU run through oneDNN while the block runs.

    Maps whose weights are to be trained keep torch's product, unless ``training``: then their
    backward pass runs through oneDNN too. Nothing changes where torch lacks the operation, on other
    devices and for other dtypes. An outer block around many short ones serves them all, so weights
    are brought into oneDNN's order only once.
    """
    product: Product | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if product is None:
        yield
        return
    linears = [module for module in model.modules() if _is_plain_float32(module)]
    # Brings a weight into oneDNN's own order of memory, which saves doing so in every product.
    pack = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    if training or sum(linear.weight.nbytes for linear in linears) > most_packed:
        pack = None
    forwards: dict[nn.Module, Callable[..., Any]] = {}
    for linear in linears:
        forwards[linear] = _FastLinear(linear, product, pack, training)
    with replaced_forwards(forwards):
        yield


def _is_plain_float32(module: nn.Module) -> TypeGuard[nn.Linear]:
    return (
        type(module) is nn.Linear
        and "forward" not in vars(module)  # nobody else has exchanged its forward
        and module.weight.dtype == torch.float32
        and module.weight.device.type == "cpu"
        and module.weight.numel() > 0  # a layer without heads: oneDNN refuses it
    )


def _multiply(product: Product, x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """Return ``x W^T + b``."""
    return product(x, W, b, "none", [], "")  # followed by no activation, with no arguments of one


#: A state of a weight: the identity of its tensor, its address, and torch's count of its changes in
#: place. Equal as long as the weight has not been changed.
_WeightState = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class _Packed:
    """A weight in oneDNN's order."""

    weight: Tensor  # In torch's order; held, so that no other tensor gets its identity and address
    ordered: Tensor


#: Threads that run copies of one model's modules share what one of them has packed.
_in_use = WeakValueDictionary[_WeightState, _Packed]()
_packing = Lock()


class _FastLinear:
    """What runs in place of the forward of one linear map."""

    def __init__(
        self,
        linear: nn.Linear,
        product: Product,
        pack: Callable[[Tensor], Tensor] | None,
        training: bool,
    ) -> None:
        self._linear = linear
        self._product = product
        self._pack = pack
        self._training = training
        self._last_state: _WeightState | None = None  # Of the weight, when it was last used
        self._packed: _Packed | None = None  # The weight in that state; made in its second use

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``x W^T + b``, by whichever product autograd allows."""
        weight = self._linear.weight
        bias = self._linear.bias
        records = torch.is_grad_enabled()
        weight_is_trained = records and weight.requires_grad
        needs_gradient = weight_is_trained or (records and x.requires_grad)
        if weight_is_trained and not self._training:
            return functional.linear(x, weight, bias)
        if not needs_gradient:
            return _multiply(self._product, x, self._weight_for(x), bias)
        out: Tensor = _Product.apply(  # type: ignore[no-untyped-call]
            x, self._product, weight, bias, weight_is_trained
        )
        return out

    def _weight_for(self, x: Tensor) -> Tensor:
        """Return the weight, from its second use on in oneDNN's order: the products are the same.

        A weight that is used once would not repay the reordering.
        """
        weight = self._linear.weight
        # With a single row, oneDNN would sum in another order than with the plain weight.
        single_row = x.numel() == x.shape[-1]
        if self._pack is None or single_row or weight.is_inference():
            return weight
        state = (id(weight), weight.data_ptr(), weight._version)
        if state != self._last_state:
            self._last_state = state
            self._packed = None
            return weight
        if self._packed is None:
            with _packing:
                self._packed = _in_use.get(state) or _Packed(weight.detach(), self._pack(weight))
                _in_use[state] = self._packed
        return self._packed.ordered


class _Product(torch.autograd.Function):
    """``x W^T + b`` with gradients for x and, where they are ``trained``, for W and b.

    x is (..., n_in), W (n_out, n_in) and b (n_out,).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        product: Product,
        W: Tensor,
        b: Tensor | None,
        trained: bool,
    ) -> Tensor:
        ctx.product = product
        ctx.frozen_weight = None if trained else W
        if trained:
            ctx.save_for_backward(x, W)
        # ``data`` is no view, so that a model may go on in place (the clip of OLMo).
        return _multiply(product, x, W, b).data

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients for (x, product, W, b, trained)."""
        d_out = grads[0].contiguous()  # (..., n_out)
        if ctx.frozen_weight is not None:
            d_x = _multiply(ctx.product, d_out, ctx.frozen_weight.t(), None)
            return d_x, None, None, None, None
        x, W = ctx.saved_tensors
        d_x = _multiply(ctx.product, d_out, W.t(), None)  # d_out W

        # One row for each token of the batch.
        d_out_rows = d_out.flatten(0, -2)  # (tokens, n_out)
        columns_of_x = x.flatten(0, -2).t().contiguous()  # (n_in, tokens)
        d_W = _multiply(ctx.product, d_out_rows.t().contiguous(), columns_of_x, None)  # d_out^T x
        bias_is_trained = ctx.needs_input_grad[3]
        d_b = d_out_rows.sum(dim=0) if bias_is_trained else None
        return d_x, None, d_W, d_b, None


# --- in a proof -----------------------------------------------------------------------------------


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply float32 in float32 and add half precision up in float32, while the block runs.

    Also a decorator. The caller's settings are back afterwards, exceptions or not.
    """
    changed: list[tuple[Any, str, Any]] = []  # (owner, attribute, value before)
    try:
        for owner, name, value in _settings_to_change():
            changed.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, before in reversed(changed):
            setattr(owner, name, before)


def _settings_to_change() -> Iterator[tuple[Any, str, Any]]:
    """Yield (owner, attribute, exact value) of each setting that is less exact now.

    torch has an old and a new way to set the same thing, and refuses to read the old one once the
    new one says something else: so the old one comes first, and the caller changes each setting
    before the next is read.
    """
    backends = torch.backends
    all_backends = _AllBackends()

    # The old way.
    if _read(all_backends, "precision") not in (None, "highest"):
        yield all_backends, "precision", "highest"
    if _read(backends.cudnn, "allow_tf32"):
        yield backends.cudnn, "allow_tf32", False

    # The new way, which older versions of torch lack in part.
    owners = [
        backends.cuda.matmul,
        getattr(backends.cudnn, "conv", None),
        getattr(backends.mkldnn, "matmul", None),
        getattr(backends.mkldnn, "conv", None),
    ]
    for owner in owners:
        if _read(owner, "fp32_precision") not in (None, "ieee", "none"):
            yield owner, "fp32_precision", "ieee"

    # Half precision.
    for kind in ("fp16", "bf16"):
        name = f"allow_{kind}_reduced_precision_reduction"
        if _read(backends.cuda.matmul, name):
            yield backends.cuda.matmul, name, False


def _read(owner: Any, name: str) -> Any:
    """Return a setting; None where this torch has none, or where the other way was used."""
    try:
        return getattr(owner, name, None)
    except (RuntimeError, AssertionError):
        return None


class _AllBackends:
    """torch's one setting for all backends: a pair of functions, here as an attribute."""

    @property
    def precision(self) -> str:
        return torch.get_float32_matmul_precision()

    @precision.setter
    def precision(self, value: str) -> None:
        torch.set_float32_matmul_precision(value)
