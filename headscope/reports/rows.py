"""A result as rows: the one form in which results are compared, guarded and kept.

A row says one thing that was measured: in which section, where (a head, a curve, the unpruned
model), under what name, and what came out. How results are compared, file by file:

* ``rows``: what a row is, and the rows of fields that are marked where they are defined;
  ``section_rows`` adds what no single field holds.
* ``conditions``: on which model and data, and with which settings, the rows were measured.
* ``baseline``: rows and conditions of some results, read off them or kept as one small file.
* ``changes``: what differs between two of these, row by row: the answer of ``diff``.
* ``compare``: the reports of several models side by side, and which numbers clearly differ.
* ``rules``: the words of ``--fail-on``, decided on what ``changes`` found.
* ``limit_kinds``: the words of ``[limits]`` of a config file, decided on the rows of a report;
  ``limits`` reads that table and decides all of it.
* ``bounds``: what a metric may lose, for both of these, and which bounds guard nothing.
* ``diff_view``, ``compare_view`` and ``compare_page`` draw, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any

from headscope.stats.compared import Compare, is_plain, marked
from headscope.stats.estimate import Estimate


@dataclass(frozen=True)
class Row:
    """One thing that was measured: a number, words such as a verdict, or labels of a head."""

    section: str  # The result that says it, such as ``classify``
    where: str  # ``L3H5``, the name of a curve; empty for all of the result
    name: str  # What was measured there, such as ``entropy``
    point: str = ""  # Of a curve, such as ``L3``; a curve has a row for each point
    #: The number and both ends of its 95% interval; None where it is unknown.
    value: float | None = None
    low: float | None = None
    high: float | None = None
    better: int = 0  # 1 where more is better, -1 where less is, 0 where neither is
    of_pruning: bool = False  # Whether it is the metric that pruning is judged by
    words: str | None = None  # In place of a number
    #: In place of a number: roles, relations or heads, and which of them comes first, if one does.
    labels: tuple[str, ...] | None = None
    primary: str = ""
    removed_share: float | None = None  # Of a pruned model: the share of its heads that are gone
    #: Whether two results are compared by it. The other rows serve limits alone, and a baseline
    #: does not keep them.
    compared: bool = True

    @property
    def measure(self) -> tuple[str, str, str]:
        """Section, where and name: what the points of one curve have in common."""
        return self.section, self.where, self.name

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What makes this the same row as one of another result."""
        return self.section, self.where, self.name, self.point

    @property
    def is_number(self) -> bool:
        """Whether it is a number, known or not."""
        return self.words is None and self.labels is None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the 95% interval, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def number_row(section: str, where: str, name: str, number: Estimate, **fields: Any) -> Row:
    """Make the row of a number; an interval counts if its ends are known and in order."""
    low = number.low
    high = number.high
    if low is None or high is None or low > high:
        low = None
        high = None
    return Row(section, where, name, value=number.value, low=low, high=high, **fields)


def marked_rows(section: str, holder: Any, where: str = "", prefix: str = "") -> Iterator[Row]:
    """Yield the rows of the marked fields of a result, and of the parts that these hold.

    ``holder`` is a result or a part of one, measured at ``where``; the names of its rows begin
    with ``prefix``. A *mark* is the :class:`headscope.stats.compared.Compare` of a field: its name
    in rows, where its parts are measured, and whether more is better. A field
    ``heads: Annotated[..., Compare(where="{0.name}")]`` gives rows at ``L0H0``, ``L0H1``, ...
    """
    for field, mark in marked(type(holder), Compare):
        value = getattr(holder, field)
        if mark.attribute and value is not None:
            value = getattr(value, mark.attribute)
        name = field.replace("_", " ") if mark.name is None else mark.name
        field_where = mark.where or where
        inner_values = _inner_values(value)
        if mark.words:
            words = mark.words.format(holder).replace("None", "none")
            yield Row(section, field_where, prefix + name, words=words)
        elif isinstance(value, str):
            yield Row(section, field_where, prefix + name, words=value)
        elif inner_values is not None:
            for key, inner in inner_values:
                yield from _inner_rows(section, inner, mark, where, prefix, key)
        elif value is not None or mark.attribute or is_plain(holder, field):
            # A number that is None is unknown; a part that is None was not asked for.
            name = prefix + name.format(holder)
            yield number_row(section, field_where, name, _estimate(value), better=mark.better)


def _inner_values(value: Any) -> list[tuple[str, Any]] | None:
    """List what a field holds, by key in a dict; None where it holds a single number or words."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, tuple):
        return [("", inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, Estimate):
        return [("", value)]
    return None


def _inner_rows(
    section: str, inner: Any, mark: Compare, where: str, prefix: str, key: str
) -> Iterator[Row]:
    """Yield the row of a number in a table, or those of the marked fields of a part.

    ``mark``, ``where`` and ``prefix`` are those of the field that holds it, ``key`` is its key in a
    dict.
    """
    template = mark.name or ""
    if inner is None or isinstance(inner, int | float | Estimate):
        name = f"{prefix}{template}{key}"
        yield number_row(section, where, name, _estimate(inner), better=mark.better)
    else:
        inner_where = mark.where.format(inner, key=key) or where
        inner_prefix = prefix + template.format(inner, key=key)
        yield from marked_rows(section, inner, inner_where, inner_prefix)


def _estimate(value: Any) -> Estimate:
    """Return a number as an estimate, without an interval if it brings none."""
    return value if isinstance(value, Estimate) else Estimate(value)
