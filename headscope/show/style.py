"""How a run shows what it measured: formats of figure files, and how much the terminal shows.

Both hold inside a ``with showing(...)``, so that no function has to pass them on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

FORMATS = ("png", "svg", "pdf")
_FORMATS: ContextVar[tuple[str, ...]] = ContextVar("formats", default=("png", "svg"))
#: Whether the terminal shows the tables behind an answer, too.
_VERBOSE: ContextVar[bool] = ContextVar("verbose", default=False)


def formats_to_draw() -> tuple[str, ...]:
    """Return the formats of the run's figure files; empty if it draws none."""
    return _FORMATS.get()


def is_verbose() -> bool:
    """Whether the terminal shows everything."""
    return _VERBOSE.get()


@contextmanager
def showing(formats: Sequence[str], *, verbose: bool = False) -> Iterator[None]:
    """Set what holds inside the block: the formats of figure files, and --verbose."""
    formats_before = _FORMATS.set(tuple(formats))
    verbose_before = _VERBOSE.set(verbose)
    try:
        yield
    finally:
        _FORMATS.reset(formats_before)
        _VERBOSE.reset(verbose_before)
