"""How a run shows what it measured: formats of figures, and how much in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

FORMATS = ("png", "svg", "pdf")
_FORMATS: ContextVar[tuple[str, ...]] = ContextVar("formats", default=("png", "svg"))
#: Whether the terminal shows the tables behind an answer, too.
_VERBOSE: ContextVar[bool] = ContextVar("verbose", default=False)


def formats_to_draw() -> tuple[str, ...]:
    """Return the kinds of files that the run draws figures as; none where it draws none."""
    return _FORMATS.get()


def is_verbose() -> bool:
    """Whether the terminal shows everything."""
    return _VERBOSE.get()


@contextmanager
def showing(formats: Sequence[str], *, verbose: bool = False) -> Iterator[None]:
    """Draw every figure inside in these formats; show everything in the terminal if ``verbose``."""
    formats_before = _FORMATS.set(tuple(formats))
    verbose_before = _VERBOSE.set(verbose)
    try:
        yield
    finally:
        _FORMATS.reset(formats_before)
        _VERBOSE.reset(verbose_before)
