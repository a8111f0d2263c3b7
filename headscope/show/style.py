"""How a run shows what it measured: figures on paper, and how much in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

FORMATS = ("png", "svg", "pdf")
#: Inches: one column, and both columns, of a paper of two columns.
WIDTHS = {"column": 3.3, "page": 6.9}


@dataclass(frozen=True)
class FigureStyle:
    """What the user asked for; without a width figures have the size that shows them best."""

    formats: tuple[str, ...] = ("png", "svg")
    width: str | None = None  # A key of :data:`WIDTHS`.
    titles: bool = True


_USUAL = FigureStyle()
#: Whether the terminal shows the tables behind an answer, too.
_VERBOSE: ContextVar[bool] = ContextVar("verbose", default=False)
_STYLE: ContextVar[FigureStyle] = ContextVar("figure style", default=_USUAL)


def figure_style() -> FigureStyle:
    """Return the style of the run."""
    return _STYLE.get()


def is_verbose() -> bool:
    """Whether the terminal shows everything."""
    return _VERBOSE.get()


@contextmanager
def styled(style: FigureStyle, *, verbose: bool = False) -> Iterator[None]:
    """Draw every figure inside in this style; show everything in the terminal if ``verbose``."""
    token = _STYLE.set(style)
    other = _VERBOSE.set(verbose)
    try:
        yield
    finally:
        _STYLE.reset(token)
        _VERBOSE.reset(other)
