"""Markers on the fields of results: what ``headscope diff`` compares, and what must be equal.

``Annotated[Estimate, Compare(better=1)]`` says it where the field is defined. A field without a
marker is compared only where nothing else differs.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

from headscope.stats.estimate import Estimate


@dataclass(frozen=True)
class Compare:
    """A field that is compared: a number, words, or rows that have such fields themselves.

    Templates are filled in with the row that the field belongs to, or with each row of a table, as
    ``{0}``; ``{key}`` is a row's key in a dict.
    """

    #: Its name, or the prefix of the names of nested fields (a template). None means the field's
    #: own name, and no prefix.
    name: str | None = None
    where: str = ""  # Where nested fields were measured: ``{0.name}`` (a template)
    better: int = 0  # 1 where more is better, -1 where less is, 0 where neither is
    part: str = ""  # The attribute of the value that is compared
    words: str = ""  # A template, where it is compared as words


@dataclass(frozen=True)
class Setting:
    """A field that has to be equal for two results to measure the same."""

    name: str = ""  # Its name; the field's own where empty
    keys: tuple[str, ...] = ()  # The only keys of a dict that are compared


M = TypeVar("M", Compare, Setting)
ComparedEstimate = Annotated[Estimate, Compare()]


def marked(kind: type, marker: type[M]) -> Iterator[tuple[str, M]]:
    """Yield the fields of a dataclass that have a marker, with it."""
    return ((name, mark) for name, mark in _marks(kind) if isinstance(mark, marker))


@cache
def _marks(kind: type) -> tuple[tuple[str, Any], ...]:
    """Return every field with each of its markers."""
    hints = typing.get_type_hints(kind, include_extras=True)
    marks: list[tuple[str, Any]] = []
    for field in dataclasses.fields(kind):
        metadata = getattr(hints[field.name], "__metadata__", ())
        marks += [(field.name, mark) for mark in metadata]
    return tuple(marks)


def is_plain(row: Any, name: str) -> bool:
    """Whether a field of a row is a number or text, or None where it is unknown."""
    kind: type = type(row)
    return not {int, float, str}.isdisjoint(kinds_of(kind)[name])


@cache
def kinds_of(kind: type) -> dict[str, set[Any]]:
    """Return the type of each field, and the parts of its type."""
    hints = typing.get_type_hints(kind)
    return {name: {hint, *typing.get_args(hint)} for name, hint in hints.items()}
