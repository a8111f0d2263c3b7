"""What follows the last states, made linear in them by holding its nonlinear factors at one run.

Elementwise functions (the tanh of a pooler, the GELU of a masked-language head, the activation of a
Dense module) stay at their secant, ``(f(u) - f(0)) / u`` per coordinate and f'(0) at 0; norms keep
their scale, max pooling its winners, and normalising divides by the whole vector's length. Then ::

    output = sum(readout * hidden) + constant

holds at this run, with f(0), biases and shifts in the constant. Nothing is known of any family's
head: it runs as it is, and the functions that it calls are exchanged. Where it calls one that is
not known here, the sum differs from the output, and the caller's check says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from headscope.models.run.hooks import hooked, replaced_forwards
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import Select
from headscope.models.run.watched import Place

_ELEMENTWISE: set[Any] = {
    *(torch.tanh, torch.sigmoid, torch.relu, torch.erf, torch.selu),
    *(Tensor.tanh, Tensor.sigmoid, Tensor.relu),
    *(F.tanh, F.sigmoid, F.relu, F.gelu, F.silu, F.elu, F.selu, F.mish, F.softplus),
    *(F.leaky_relu, F.hardswish, F.relu6, F.logsigmoid),
}


class Held(TorchFunctionMode):
    """Replaces functions by their secants at the first run; :meth:`again` reuses them."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Tensor] = []
        self._next: int | None = None
        self._inside = False  # an exchanged function runs: what it calls is left alone

    def again(self) -> None:
        """Let the next run use what the first one kept."""
        self._next = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one function of torch, or its replacement."""
        kwargs = kwargs or {}
        if self._inside:
            return func(*args, **kwargs)
        if func in _ELEMENTWISE:
            u, *rest = args
            return self.secant(lambda x: func(x, *rest, **_own(kwargs)), u)
        if func is F.layer_norm:
            return self._layer_norm(*args, **kwargs)
        if func is F.normalize:
            return self._normalize(*args, **kwargs)
        return func(*args, **kwargs)

    def secant(self, function: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
        """Return ``f(0) + slope u`` with the slope of the first run."""
        self._inside = True
        try:
            zero = function(torch.zeros_like(u.detach()))
            slope = self._hold(lambda: _slope(function, u.detach(), zero))
        finally:
            self._inside = False
        return zero + slope * u

    def _layer_norm(
        self,
        x: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = self._hold(lambda: (centred.detach().square().mean(-1, keepdim=True) + eps).rsqrt())
        y = centred * scale if weight is None else centred * scale * weight
        return y if bias is None else y + bias

    def _normalize(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        def factor() -> Tensor:
            own = x.detach()
            unit = F.normalize(own, *args, **kwargs)
            largest = own.abs().argmax(-1, keepdim=True)
            return unit.gather(-1, largest) / own.gather(-1, largest)

        return x * self._hold(factor).nan_to_num()

    def _hold(self, make: Callable[[], Tensor]) -> Tensor:
        if self._next is None:
            self._kept.append(make())
            return self._kept[-1]
        self._next += 1
        return self._kept[self._next - 1]


def _own(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "inplace"}


def _slope(function: Callable[[Tensor], Tensor], u: Tensor, zero: Tensor) -> Tensor:
    """Return the slope of the secant from 0 to u, and the derivative where u is 0."""
    with torch.enable_grad():
        origin = torch.zeros_like(u, requires_grad=True)
        (derivative,) = torch.autograd.grad(function(origin).sum(), origin)
    secant = (function(u) - zero) / torch.where(u == 0, torch.ones_like(u), u)
    return torch.where(u == 0, derivative, secant)


class Readout:
    """A part after the last states, made linear at one run; rows do not depend on each other."""

    def __init__(self, function: Callable[[Tensor, Held], Tensor], hidden: Tensor) -> None:
        """Run ``function(hidden, held)``, which uses ``held`` as a context; gives (batch, d)."""
        held = Held()
        self._hidden = hidden.detach().clone().requires_grad_(True)
        with torch.enable_grad():
            self._value = function(self._hidden, held)
        held.again()
        with torch.no_grad():
            self.constant = function(torch.zeros_like(hidden), held)  # (batch, d)
        self.value = self._value.detach()  # (batch, d)

    def of(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the readout (batch, pos, d_model) and the constant of ``sum(value * weights)``."""
        (readout,) = torch.autograd.grad(
            self._value, self._hidden, weights, retain_graph=True, materialize_grads=True
        )
        return readout, (self.constant * weights).sum(-1)


def embedding(loaded: LoadedModel, real: Tensor) -> Callable[[Tensor, Held], Tensor]:
    """Return the function from last states to embeddings, for :class:`Readout`."""

    def embed(hidden: Tensor, held: Held) -> Tensor:
        with held:
            return loaded.pooling.embed(hidden, real)

    return embed


def task_head(
    loaded: LoadedModel,
    end: Place,
    ids: Tensor,
    real: Tensor,
    types: Tensor | None,
    select: Select | None = None,
    *,
    decoder: Mapping[str, Tensor] | None = None,
    read: Callable[[Tensor], Tensor] = lambda logits: logits.flatten(1),
) -> Callable[[Tensor, Held], Tensor]:
    """Return the function from last states to logits, (batch, classes), for :class:`Readout`.

    The whole network runs: what its last layer, or the norm after it, puts out is exchanged for the
    states, and from there on functions are held. ``select`` picks one position of each row;
    ``decoder`` is what a decoder reads, and ``read`` a linear map of the logits to (batch, d).
    """

    def logits(hidden: Tensor, held: Held) -> Tensor:
        with _exchanged(loaded, end, hidden, held):
            found = loaded.run(ids, real, types, **(decoder or {}), select=select)[1]
        assert found is not None
        return read(found)

    return logits


@contextmanager
def _exchanged(loaded: LoadedModel, end: Place, hidden: Tensor, held: Held) -> Iterator[None]:
    turns = 0
    with ExitStack() as stack:
        inside = False

        def swap(module: nn.Module, args: Any, output: Any) -> Any:
            nonlocal turns, inside
            turns += 1
            if turns != end.turn + 1:
                return output
            stack.enter_context(held)
            inside = True
            return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

        def activation(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
            return lambda x: held.secant(forward, x) if inside else forward(x)

        # Some activations are written as products of their input, which no function stands for.
        written_out = {
            module: activation(module.forward)
            for module in loaded.network.modules()
            if type(module).__module__ == "transformers.activations"
        }
        stack.enter_context(replaced_forwards(written_out))
        stack.enter_context(hooked([end.module.register_forward_hook(swap)]))
        yield
