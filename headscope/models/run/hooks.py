"""Hooks and exchanged forwards that are sure to be undone when a block ends.

Besides, small helpers for the values that hooks are given: ``first_tensor`` and ``with_first``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

Key = TypeVar("Key")
Item = TypeVar("Item")


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks when the block ends, however it ends."""
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle)
        yield


@contextmanager
def replaced_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Let modules run other functions in place of their forwards; replacements may be nested."""
    # A forward in a module's own dictionary goes before that of its class.
    before = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module, original in before.items():
            if original is None:
                del vars(module)["forward"]
            else:
                vars(module)["forward"] = original


def first_tensor(args: Any, kwargs: Mapping[str, Any] | None = None) -> Any:
    """Return the first tensor of a call's arguments, or of its output; None without one.

    ``(x, mask)`` -> x; ``()`` and ``{"hidden_states": x}`` -> x; an output ``x``, ``(x, bias)``,
    ``[x]`` or ``((x, bias),)`` -> x.
    """
    values = args if isinstance(args, tuple | list) else (args,)
    if values and isinstance(values[0], tuple):
        values = values[0]
    else:
        values = (*values, *(kwargs or {}).values())
    return next((value for value in values if isinstance(value, Tensor)), None)


def with_first(output: Any, state: Any) -> Any:
    """Put another state first in what a layer returned: (x, bias) -> (state, bias)."""
    if isinstance(output, dict):
        return {**output, next(iter(output)): state}
    if isinstance(output, list):  # the first GPT
        return [state, *output[1:]]
    return (state, *output[1:]) if isinstance(output, tuple) else state


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by a key, in order: sites a, b of module m and c of n -> {m: [a, b], n: [c]}."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
