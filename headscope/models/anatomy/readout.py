"""What follows the last states, made linear in them by holding its nonlinear factors at one run.

The last states go through pooling, or through a task head, to an embedding or to logits. An
elementwise function f on that way (the tanh of a pooler, the GELU of a masked-language head) is
replaced by the line through f(0) and f(u), its secant at the u of the run::

    f(0) + slope * u        slope = (f(u) - f(0)) / u per coordinate, and f'(0) where u is 0

Norms keep their scale, max pooling its winners, and normalising divides by the whole vector's
length. Then ::

    output = sum(readout * hidden) + constant

holds at this run, with f(0), biases and shifts in the constant. Nothing is known of any family's
head: it runs as it is, and the functions that it calls are exchanged (:class:`Held`). Where it
calls one that is not known here, the sum differs from the output, and the caller's check says so.

:class:`Readout` makes readout and constant of a function from states to outputs;
:func:`embedding` and :func:`task_head` are such functions. :func:`token_maps` finds the embedding
and the unembedding of tokens, W_E and W_U.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from headscope.core.errors import InputError
from headscope.models.run.hooks import hooked, replaced_forwards, with_first
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import Select
from headscope.models.run.watched import ModuleTurn

#: Functions that are replaced by their secants.
_ELEMENTWISE: set[Any] = {
    torch.tanh,
    torch.sigmoid,
    torch.relu,
    torch.erf,
    torch.selu,
    Tensor.tanh,
    Tensor.sigmoid,
    Tensor.relu,
    F.tanh,
    F.sigmoid,
    F.relu,
    F.gelu,
    F.silu,
    F.elu,
    F.selu,
    F.mish,
    F.softplus,
    F.leaky_relu,
    F.hardswish,
    F.relu6,
    F.logsigmoid,
}


class Held(TorchFunctionMode):
    """A context in which torch's functions are replaced by what is linear in their input.

    In its first run the slopes and scales are made, one for each call, and held in a list; after
    :meth:`again`, a second run of the same calls takes them from the list in the same order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._factors: list[Tensor] = []  # By the call
        self._next: int | None = None  # The call of a second run; None in the first run
        self._inside = False  # a replaced function runs: what it calls itself is left alone

    def again(self) -> None:
        """Let the next run use the factors of the first one."""
        self._next = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one function of torch, or its replacement; torch calls this for every function."""
        kwargs = {} if kwargs is None else kwargs
        if self._inside:
            return func(*args, **kwargs)
        if func in _ELEMENTWISE:
            u, *other_args = args
            kwargs = {name: value for name, value in kwargs.items() if name != "inplace"}
            return self.secant(lambda x: func(x, *other_args, **kwargs), u)
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
        """Do what F.layer_norm does, with the scale of the first run."""
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.detach().square().mean(-1, keepdim=True)
        scale = self._hold(lambda: (variance + eps).rsqrt())
        y = centred * scale if weight is None else centred * scale * weight
        return y if bias is None else y + bias

    def _normalize(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Do what F.normalize does, with the lengths of the first run."""

        def factor() -> Tensor:
            """Return 1 / length of each vector, read off its largest coordinate."""
            vectors = x.detach()
            unit_vectors = F.normalize(vectors, *args, **kwargs)
            largest = vectors.abs().argmax(-1, keepdim=True)
            return unit_vectors.gather(-1, largest) / vectors.gather(-1, largest)

        return x * self._hold(factor).nan_to_num()  # 0 / 0 where a vector is zero

    def _hold(self, make: Callable[[], Tensor]) -> Tensor:
        """Make a factor in the first run; return the one of the same call in a second run."""
        if self._next is None:
            factor = make()
            self._factors.append(factor)
        else:
            factor = self._factors[self._next]
            self._next += 1
        return factor


def _slope(function: Callable[[Tensor], Tensor], u: Tensor, zero: Tensor) -> Tensor:
    """Return the slope of the secant from 0 to u, or f'(0) where u is 0; ``zero`` is f(0)."""
    with torch.enable_grad():
        origin = torch.zeros_like(u, requires_grad=True)
        (derivative,) = torch.autograd.grad(function(origin).sum(), origin)
    divisor = torch.where(u == 0, torch.ones_like(u), u)
    secant = (function(u) - zero) / divisor
    return torch.where(u == 0, derivative, secant)


class Readout:
    """A function of the last states, made linear at one run; rows do not depend on each other."""

    def __init__(self, function: Callable[[Tensor, Held], Tensor], hidden: Tensor) -> None:
        """Run the function at the last states, and at zeros for the constant.

        ``function(hidden, held)`` takes states (batch, pos, d_model) to outputs (batch, d) within
        the context ``held``.
        """
        held = Held()
        self._hidden = hidden.detach().clone().requires_grad_(True)
        with torch.enable_grad():
            self._value = function(self._hidden, held)
        held.again()
        with torch.no_grad():
            self.constant = function(torch.zeros_like(hidden), held)  # (batch, d)
        self.value = self._value.detach()  # (batch, d)

    def of(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the readout (batch, pos, d_model) and the constant (batch,) of one number.

        The number of each row is ``sum(output * weights)``, with ``weights`` (batch, d).
        """
        (readout,) = torch.autograd.grad(
            self._value, self._hidden, weights, retain_graph=True, materialize_grads=True
        )
        return readout, (self.constant * weights).sum(-1)


def embedding(loaded: LoadedModel, real: Tensor) -> Callable[[Tensor, Held], Tensor]:
    """Return the function from last states to embeddings, for :class:`Readout`.

    ``real`` (batch, pos) marks tokens that are no padding.
    """

    def embed(hidden: Tensor, held: Held) -> Tensor:
        with held:
            return loaded.pooling.embed(hidden, real)

    return embed


def all_logits(logits: Tensor) -> Tensor:
    """Return every logit of a row, side by side: (batch, d)."""
    return logits.flatten(1)


def task_head(
    loaded: LoadedModel,
    last: ModuleTurn,
    ids: Tensor,
    real: Tensor,
    types: Tensor | None,
    select: Select | None = None,
    *,
    decoder: Mapping[str, Tensor] | None = None,
    read: Callable[[Tensor], Tensor] = all_logits,
) -> Callable[[Tensor, Held], Tensor]:
    """Return the function from last states to logits, (batch, classes), for :class:`Readout`.

    The whole network runs on ``ids``, ``real`` and token ``types``. ``last`` is the call of its
    last layer, or of the norm after it: what that call returns is exchanged for the states, and
    from there on functions are replaced. ``select`` picks one position of each row; ``decoder`` is
    what a decoder reads, and ``read`` a linear map of the logits to (batch, d).
    """
    # transformers writes some activations as products of their input, in which no elementwise
    # function of torch is called: these are replaced by module.
    activations = [
        module
        for module in loaded.network.modules()
        if type(module).__module__ == "transformers.activations"
    ]

    def logits(hidden: Tensor, held: Held) -> Tensor:
        n_calls = 0  # Of the module of ``last``
        in_head = False  # Whether the last states have passed
        with ExitStack() as contexts:

            def exchange_states(module: nn.Module, args: Any, output: Any) -> Any:
                nonlocal n_calls, in_head
                n_calls += 1
                if n_calls != last.number + 1:
                    return output
                contexts.enter_context(held)
                in_head = True
                return with_first(output, hidden)

            def linear_in_head(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
                return lambda x: held.secant(forward, x) if in_head else forward(x)

            forwards = {module: linear_in_head(module.forward) for module in activations}
            contexts.enter_context(replaced_forwards(forwards))
            contexts.enter_context(hooked([last.module.register_forward_hook(exchange_states)]))
            decoder_inputs = {} if decoder is None else decoder
            _, head_output = loaded.run(ids, real, types, **decoder_inputs, select=select)
        assert head_output is not None
        return read(head_output)

    return logits


# --- the embedding and the unembedding ------------------------------------------------------------

_TOKENS_AT_ONCE = 1 << 14  # Tokens of a vocabulary that are widened to float64 at a time.


class TokenMaps(NamedTuple):
    """W_E and W_U of the stack that predicts tokens, both (vocabulary, d_model)."""

    embedding: Tensor
    unembedding: Tensor
    #: Whether the model has a W_U of its own; else W_E is taken for it, as its configuration ties
    #: the two.
    has_unembedding: bool

    def product(self) -> Tensor:
        """Return W_U W_E with W_U centred, (d_model, d_model) in float64 on the CPU.

        What all tokens' logits share cannot change a probability, so the mean over tokens is taken
        off W_U: ``(W_U - mean)^T W_E = W_U^T W_E - sum(W_U) sum(W_E)^T / n``.
        """
        d_model = self.embedding.shape[1]
        n = len(self.embedding)
        total = torch.zeros(d_model, d_model, dtype=torch.float64)
        sum_of_W_U = torch.zeros(d_model, dtype=torch.float64)
        sum_of_W_E = torch.zeros(d_model, dtype=torch.float64)
        for first in range(0, n, _TOKENS_AT_ONCE):
            tokens = slice(first, first + _TOKENS_AT_ONCE)
            W_E = self.embedding[tokens].detach().cpu().double()
            W_U = self.unembedding[tokens].detach().cpu().double()
            total += W_U.T @ W_E
            sum_of_W_U += W_U.sum(0)
            sum_of_W_E += W_E.sum(0)
        return total - torch.outer(sum_of_W_U, sum_of_W_E) / n


def token_maps(loaded: LoadedModel) -> TokenMaps:
    """Find W_E and W_U.

    Raises
    ------
    InputError
        If there is no unembedding, or it has another width than the states.
    """
    network = loaded.network
    base = network.get_decoder() if loaded.encoder_decoder else loaded.model
    W_E = getattr(base.get_input_embeddings(), "weight", None)
    get_head = getattr(network, "get_output_embeddings", None)
    head: Any = None if get_head is None else get_head()
    W_U = getattr(head, "weight", None)
    has_unembedding = W_U is not None
    if not has_unembedding and getattr(network.config, "tie_word_embeddings", False):
        W_U = W_E
    if W_E is None or W_U is None:
        raise InputError(
            f"{loaded.name} has no unembedding, so it is not known which tokens its heads write; "
            "copying scores need a masked language model, a decoder, or a model that ties its "
            "embeddings."
        )
    widths = {W_E.shape[1], W_U.shape[1], loaded.sites[0].weights().W_V.shape[1]}
    if len(widths) > 1 or len(W_E) != len(W_U):
        raise InputError(
            f"{loaded.name} ({loaded.family}) has embeddings of another size than its states or "
            "its unembedding, with a map between them, so W_E W_VW_O W_U is not what its heads "
            "do; leave copying out."
        )
    return TokenMaps(W_E, W_U, has_unembedding)
