"""The forward functions of attention modules: read what they take, and extend them.

transformers writes a forward function for each family. Three questions are asked of it here: does
it look its attention up in transformers' table, so that ours can be put there
(:func:`asks_interface`); what are the arguments of a call (:func:`arguments_of`); and how does a
module that has lost heads run where the family's own forward cannot (:func:`extend`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

#: The table of attention functions in transformers: a forward whose code names it looks its
#: attention up there.
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"


def asks_interface(kind: Any) -> bool:
    """Whether the forward of a class, or of one that it extends, looks its attention up."""
    return reads(kind, _INTERFACE)


@functools.cache
def reads(kind: Any, name: str) -> bool:
    """Whether the forward of a class, or of one that it extends, reads a name or an attribute."""
    for base in kind.__mro__:
        forward = vars(base).get("forward")
        if inspect.isfunction(forward) and name in inspect.unwrap(forward).__code__.co_names:
            return True
    return False


@functools.cache
def declares(kind: Any, setting: str) -> bool:
    """Whether a class of configurations has a setting of its own accord."""
    return hasattr(kind, setting) or setting in inspect.signature(kind).parameters


def arguments_of(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call of a module by name.

    ``forward(self, x, mask=None, **more)`` called as ``(a, mask=b, bias=c)``
    -> ``{"x": a, "mask": b, "bias": c}``.
    """
    kind: Any = type(module)
    signature = _signature(kind)
    arguments = signature.bind(module, *args, **kwargs).arguments
    name_of_self = next(iter(signature.parameters))
    del arguments[name_of_self]
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(parameter.name, {})
    return arguments


@functools.cache
def _signature(kind: Any) -> inspect.Signature:
    """Return the signature of the family's own forward.

    Classes of headscope's extensions are passed over, and so is a forward of a subclass that takes
    ``*args`` and hands them on.
    """
    signatures = [
        inspect.signature(base.forward)
        for base in kind.__mro__
        if hasattr(base, "forward") and not hasattr(base, "headscope_extends")
    ]
    for signature in signatures:
        kinds = {parameter.kind for parameter in signature.parameters.values()}
        if inspect.Parameter.VAR_POSITIONAL not in kinds:
            return signature
    return signatures[0]


def parameters_of(kind: Any) -> tuple[str, ...]:
    """Name the parameters of the family's own forward."""
    return tuple(_signature(kind).parameters)


def follow(module: nn.Module, path: str) -> object:
    """Return what lies at a dotted path below ``module``, or None."""
    target: object = module
    for name in path.split("."):
        target = getattr(target, name, None)
    return target


def extend(module: nn.Module, extension: type, **settings: object) -> None:
    """Put an extension's methods before those of a module's class, and set attributes for them.

    The module gets a new class, ``class BertSelfAttention(extension, BertSelfAttention)``, unless
    it has one already. Unlike a changed method, a class survives copying. Every extension states
    ``headscope_extends = True``, by which the family's own classes are told from it.
    """
    if not isinstance(module, extension):
        kind: Any = type(module)
        module.__class__ = _extended(kind, extension)
    for name, value in settings.items():
        setattr(module, name, value)


@functools.cache
def _extended(kind: Any, extension: type) -> Any:
    """Make the extended class, which keeps the name of the family's own."""
    return type(kind.__name__, (extension, kind), {"headscope_extends": True})


class WithoutHeads:
    """An extension: a module without any head, whose cache still counts tokens.

    transformers counts the tokens of earlier steps by the keys of a decoder's first layer, and
    counts empty keys as no token: every step of generating would begin at position 0.
    """

    headscope_extends = True
    #: Which layer of a cache is the module's; None in modules that no cache knows, such as an
    #: encoder's.
    layer_idx: int | None = None
    layer_id: int | None = None  # The same, as GPT-Neo calls it

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward; let the cache of its layer count tokens without keys."""
        index = self.layer_id if self.layer_idx is None else self.layer_idx
        arguments = arguments_of(self, args, kwargs)  # type: ignore[arg-type]
        handed = [arguments.get(name) for name in _CACHES]
        cache: Any = next((cache for cache in handed if cache is not None), None)
        decoder_cache: Any = getattr(cache, "self_attention_cache", cache)
        crossed = any(arguments.get(name) is not None for name in _OTHER_STATES)
        if index is None or crossed or not hasattr(decoder_cache, "layers"):
            return super().forward(*args, **kwargs)  # type: ignore[misc]

        tokens_before = _cached_tokens(decoder_cache, index)
        output = super().forward(*args, **kwargs)  # type: ignore[misc]
        if _cached_tokens(decoder_cache, index) == tokens_before:
            # A forward that only adds b_O has told the cache nothing.
            x: Tensor = next(iter(arguments.values()))
            no_keys = x.new_empty(len(x), 0, x.shape[1], 1)  # (batch, no heads, pos, any width)
            decoder_cache.update(no_keys, no_keys, index)
        layer = decoder_cache.layers[index]
        layer.get_seq_length = functools.partial(_cached_tokens, decoder_cache, index)
        return output


#: What families call the cache of a decoder, and the states that cross-attention reads.
_CACHES = ("past_key_values", "layer_past")
_OTHER_STATES = ("key_value_states", "encoder_hidden_states")


def _cached_tokens(cache: Any, index: int) -> int:
    """Return how many tokens one layer of a cache holds, whatever its number of heads."""
    if index >= len(cache.layers):
        return 0
    layer = cache.layers[index]
    if layer.is_sliding:  # which counts tokens by itself, also those that have left its window
        return int(type(layer).get_seq_length(layer))
    if not layer.is_initialized or layer.keys.dim() < 2:
        return 0
    return int(layer.keys.shape[-2])  # keys are (batch, n_heads, pos, d_head)


def add_only_bias(out: nn.Module, x: Tensor, n_keys: int) -> tuple[Tensor, Tensor]:
    """Return what a module without heads makes of states (batch, pos, d_model), and its pattern.

    For a module whose own forward fails without heads, and never asks transformers for its
    attention. ``out`` is its output map, which makes b_O of nothing; the pattern, of no head, is
    (batch, 0, query_pos, key_pos).
    """
    batch, n_queries, _ = x.shape
    # A softmax even so: who watches softmax calls sees this layer's empty pattern.
    pattern = torch.softmax(x.new_zeros(batch, 0, n_queries, n_keys), dim=-1)
    return out(x.new_zeros(batch, n_queries, 0)), pattern


def attend_without_heads(
    module: Any, x_q: Tensor, x_k: Tensor, *, mask: Tensor | None, d_head: int
) -> tuple[Tensor, Any]:
    """Ask transformers for the attention of no head, between states (batch, pos, d_model).

    For a module without heads whose own forward fails: whatever replaces attention is called once
    in every layer even then. Returns z (batch, query_pos, 0, d_head) and the pattern.
    """
    q = x_q.new_empty(len(x_q), 0, x_q.shape[1], d_head)  # (batch, no heads, pos, d_head)
    k = x_k.new_empty(len(x_k), 0, x_k.shape[1], d_head)
    # Transformers' table has a function for each implementation but "eager".
    implementation = module.config._attn_implementation
    attention = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, _attend)
    z, pattern = attention(module, q, k, k, mask, scaling=1.0)
    return z, pattern


def _attend(
    module: nn.Module, q: Tensor, k: Tensor, *_: object, **__: object
) -> tuple[Tensor, Tensor]:
    """Do what transformers' eager attention does, for q and k (batch, 0, pos, d_head).

    Returns z (batch, query_pos, 0, d_head) and the pattern (batch, 0, query_pos, key_pos).
    """
    z = q.transpose(1, 2)
    pattern = q.new_empty(*q.shape[:-1], k.shape[2])
    return z, pattern
