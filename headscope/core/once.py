"""Work that several parts of a run ask for is done once, and kept until the run ends."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
#: What is kept of each owner, by its id; the run that keeps it holds the owner.
_kept: ContextVar[Mapping[int, dict[Hashable, Any]] | None] = ContextVar(
    "headscope_kept", default=None
)


@contextmanager
def keeping(owner: object) -> Iterator[None]:
    """Keep what is made of ``owner``, which nobody may change, while the outermost block runs."""
    token = _kept.set({id(owner): {}, **(_kept.get() or {})})
    try:
        yield
    finally:
        _kept.reset(token)


def once(owner: object, what: Hashable, make: Callable[[], T]) -> T:
    """Return what was made of ``owner`` before under this name; where nothing is kept, make it."""
    kept = (_kept.get() or {}).get(id(owner))
    if kept is None:
        return make()
    if what not in kept:
        kept[what] = make()
    value: T = kept[what]
    return value
