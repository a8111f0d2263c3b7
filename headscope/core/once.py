"""A cache for one run: what several of its parts ask for is computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
#: Cached results of each owner, by its id; the run holds the owner, so the id stays valid.
_kept: ContextVar[Mapping[int, dict[Hashable, Any]] | None] = ContextVar(
    "headscope_kept", default=None
)


@contextmanager
def keeping(owner: object) -> Iterator[None]:
    """Cache what is computed from an unchanging ``owner`` while the outermost block runs."""
    token = _kept.set({id(owner): {}, **(_kept.get() or {})})
    try:
        yield
    finally:
        _kept.reset(token)


def once(owner: object, what: Hashable, make: Callable[[], T]) -> T:
    """Return what ``make`` gives; computed once for each name where ``owner`` has a cache."""
    kept = (_kept.get() or {}).get(id(owner))
    if kept is None:
        return make()
    if what not in kept:
        kept[what] = make()
    value: T = kept[what]
    return value
