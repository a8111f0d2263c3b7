"""A cache for one run: what several of its parts ask for is computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
#: Cached results of each owner, by its id; the run holds the owner, so the id stays valid.
_caches: ContextVar[Mapping[int, dict[Hashable, Any]] | None] = ContextVar(
    "headscope_caches", default=None
)


@contextmanager
def keeping(owner: object) -> Iterator[None]:
    """Cache what is computed from an unchanging ``owner`` while the outermost block runs."""
    token = _caches.set({id(owner): {}, **(_caches.get() or {})})
    try:
        yield
    finally:
        _caches.reset(token)


def once(owner: object, what: Hashable, make: Callable[[], T]) -> T:
    """Return ``make()``, cached under the name ``what`` if ``owner`` has a cache."""
    cache = (_caches.get() or {}).get(id(owner))
    if cache is None:
        return make()
    if what not in cache:
        cache[what] = make()
    value: T = cache[what]
    return value
