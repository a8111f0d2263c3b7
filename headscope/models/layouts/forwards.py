"""The forward functions of attention modules: what they ask for, take, and are extended by."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

#: A forward function that uses this name asks transformers for its attention.
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"


@functools.cache
def asks_interface(kind: Any) -> bool:
    """Whether the forward of a class, or of one that it extends, asks for a custom attention."""
    forwards = (vars(base).get("forward") for base in kind.__mro__)
    codes = (inspect.unwrap(f).__code__ for f in forwards if inspect.isfunction(f))
    return any(_INTERFACE in code.co_names for code in codes)


def arguments_of(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call of a module by name, catch-all ones included."""
    kind: Any = type(module)
    signature = _signature(kind)
    arguments = signature.bind(module, *args, **kwargs).arguments
    arguments.pop(next(iter(signature.parameters)))  # the module
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(parameter.name, {})
    return arguments


@functools.cache
def _signature(kind: Any) -> inspect.Signature:
    """Return the signature of the family's own forward, which a subclass may hide by ``*args``."""
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


def extend(module: nn.Module, extension: type) -> None:
    """Let a module's class be extended, once: methods of ``extension`` come before its own.

    Unlike a changed attribute, a class survives copying and leaves the module's state as it is.
    """
    if not isinstance(module, extension):
        kind: Any = type(module)
        module.__class__ = _extended(kind, extension)


@functools.cache
def _extended(kind: Any, extension: type) -> Any:
    """Make the extended class, which keeps the name of the family's own."""
    return type(kind.__name__, (extension, kind), {"headscope_extends": True})


class WithoutHeads:
    """An attention module without any head, which still counts what its cache holds.

    transformers counts the tokens of earlier steps by the keys of a decoder's first layer, and
    counts empty keys as no token: every step of generating would begin at position 0.
    """

    headscope_extends = True
    layer_idx: int | None = None  # None in modules that no cache knows, such as an encoder's

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward; let the cache of its layer count tokens without keys."""
        output = super().forward(*args, **kwargs)  # type: ignore[misc]
        cache = kwargs.get("past_key_values")
        decoder_cache = getattr(cache, "self_attention_cache", cache)
        layers = getattr(decoder_cache, "layers", ())
        index = self.layer_idx or 0
        if index < len(layers):
            layer = layers[index]
            vars(layer)["get_seq_length"] = functools.partial(_tokens, layer)
        return output


def _tokens(layer: Any) -> int:
    """Return how many tokens one layer of a cache holds, whatever its number of heads."""
    return int(layer.keys.shape[-2]) if layer.is_initialized and layer.keys.dim() > 1 else 0
