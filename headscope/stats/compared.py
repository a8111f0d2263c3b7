"""Markers on the fields of results: what ``headscope diff`` compares, and what must be equal.

A result says it where it defines the field::

    cosine: Annotated[Estimate, Compare(better=1)]      # more is better
    seed: Annotated[int, Setting()]                     # results of two seeds are not compared

Marked fields are compared first. Where they are all equal, ``diff`` goes through the files and
names the paths of other values that differ. ``reports/rows.py`` and ``reports/conditions.py`` read
the markers, with the functions below.
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

    Its texts are templates of :meth:`str.format`: ``{0}`` is the row that the field belongs to (of
    a table, each of its rows in turn), and ``{key}`` the key of a row in a dict.

    - ``heads: Annotated[tuple[HeadFlow, ...], Compare(where="{0.name}")]`` has the marked fields
      of each head compared: at ``L3H5``, say, the row ``effective rank of W_V``.
    - ``dims: Annotated[dict[str, int], Compare("dims ")]``, with the keys 90 and 95, makes the
      rows ``dims 90`` and ``dims 95``.
    """

    #: The name in tables of what is compared, or the prefix of the names of nested fields (a
    #: template). None means the field's own name, and no prefix.
    name: str | None = None
    where: str = ""  # The head or layer that nested fields belong to: ``{0.name}`` (a template)
    better: int = 0  # 1 where more is better, -1 where less is, 0 where neither is
    #: The only attribute of the value that is compared; empty: the value. With
    #: ``effective_rank`` a matrix, of which several ranks are known, is compared by this one.
    attribute: str = ""
    #: The words that are compared in place of the value (a template):
    #: ``{0.diverged} of {0.runs}`` makes "2 of 10"
    words: str = ""


@dataclass(frozen=True)
class Setting:
    """A field that has to be equal for two results to measure the same."""

    name: str = ""  # The name of the setting in messages; empty: the field's own
    keys: tuple[str, ...] = ()  # The only keys of a dict that are compared; empty: all


Marker = TypeVar("Marker", Compare, Setting)
ComparedEstimate = Annotated[Estimate, Compare()]


def marked(dataclass_type: type, marker: type[Marker]) -> Iterator[tuple[str, Marker]]:
    """Yield the name of each field that has a marker of this class, with the marker."""
    annotations = _annotations(dataclass_type)
    return ((name, mark) for name, mark in annotations if isinstance(mark, marker))


@cache
def _annotations(dataclass_type: type) -> tuple[tuple[str, Any], ...]:
    """Return (name of a field, annotation) for each annotation that ``Annotated`` gives a field."""
    hints = typing.get_type_hints(dataclass_type, include_extras=True)
    named: list[tuple[str, Any]] = []
    for field in dataclasses.fields(dataclass_type):
        annotations = getattr(hints[field.name], "__metadata__", ())  # where typing keeps them
        named += [(field.name, annotation) for annotation in annotations]
    return tuple(named)


def is_plain(row: Any, name: str) -> bool:
    """Whether a field of a row is a number or text, or None where it is unknown.

    ``tuple[int, ...]`` counts as well, as int is among its arguments; but callers ask only for a
    field whose value is None, which such a field never has.
    """
    row_type: type = type(row)
    return not {int, float, str}.isdisjoint(field_types(row_type)[name])


@cache
def field_types(dataclass_type: type) -> dict[str, set[Any]]:
    """Return the types of each field: of ``float | None`` itself, float and None."""
    hints = typing.get_type_hints(dataclass_type)
    return {name: {hint, *typing.get_args(hint)} for name, hint in hints.items()}
