"""How the figures of a run look on paper: their files, their width, their titles."""

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
_STYLE: ContextVar[FigureStyle] = ContextVar("figure style", default=_USUAL)


def figure_style() -> FigureStyle:
    """Return the style of the run."""
    return _STYLE.get()


@contextmanager
def styled(style: FigureStyle) -> Iterator[None]:
    """Draw every figure inside in this style."""
    token = _STYLE.set(style)
    try:
        yield
    finally:
        _STYLE.reset(token)
