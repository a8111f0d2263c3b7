"""How the result of a command looks: one value for each section, found by the section's name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["View", "view_of"]

R = TypeVar("R")


@dataclass(frozen=True)
class View(Generic[R]):
    """What people see of a result of class ``R``; every part is a function of the result.

    Attributes
    ----------
    human : callable
        Tables and sentences for the terminal, 80 columns wide.
    csv : callable
        The main table as CSV.
    files : callable
        Name and content of every file of a result folder but the JSON. Presentation options, such
        as depth's ``log``, are keywords.
    stale : tuple of str
        Names of files that not every run writes: one that an earlier run left must not be taken
        for this run's.
    """

    human: Callable[[R], Iterable[RenderableType]]
    csv: Callable[[R], str]
    files: Callable[..., Mapping[str, bytes]]
    stale: tuple[str, ...] = ()


def view_of(section: str) -> View[Any]:
    """Return the view of a section: ``VIEW`` of ``headscope.show.SECTION``."""
    view: View[Any] = importlib.import_module(f"headscope.show.{section}").VIEW
    return view
