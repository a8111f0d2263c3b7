"""Hooks and exchanged forwards that are sure to be undone when a block ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from torch import nn
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
    before = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module, own in before.items():
            if own is None:
                del vars(module)["forward"]
            else:
                vars(module)["forward"] = own


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items, such as sites that share a module, in order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
