"""The kinds of facts, and the tables that hold them.

Each fact has a key: the section, where it was measured (``L3H5``, ``layer 2``, a curve's name) and
what it is called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headscope.results.rank import MeanSem

__all__ = ["Z", "Facts", "Interval", "Key", "Labels", "Number"]

Key = tuple[str, str, str]
Interval = tuple[float, float]

#: A 95% normal interval is this many standard errors to either side.
Z = 1.959963984540054


@dataclass(frozen=True)
class Number:
    """A measured number and its 95% interval, where the result has them."""

    value: float | None
    interval: Interval | None = None
    #: 1 where more is better, -1 where less is, 0 where neither is.
    sign: int = 0

    @classmethod
    def within(
        cls, value: float | None, interval: Sequence[float | None] | None, sign: int = 0
    ) -> Number:
        """Make one with an interval from a file, which counts if it is two numbers in order."""
        low, high = interval if interval is not None and len(interval) == 2 else (None, None)
        if low is None or high is None or low > high:
            return cls(value, None, sign)
        return cls(value, (low, high), sign)

    @classmethod
    def around(cls, value: float | None, half: float | None) -> Number:
        """Make one with half of its interval, which counts if it is 0 or more."""
        if value is None or half is None or half < 0:
            return cls(value)
        return cls(value, (value - half, value + half))

    @classmethod
    def of(cls, found: MeanSem | None) -> Number:
        """Make one of a mean and its standard error."""
        if found is None or found.sem is None:
            return cls(found.mean if found else None)
        return cls.around(found.mean, Z * found.sem)


@dataclass(frozen=True)
class Labels:
    """A set of labels, and which of them comes first, where one does."""

    names: frozenset[str]
    primary: str = ""


@dataclass(frozen=True)
class Facts:
    """All facts of a result, or of several; the next to be added belong to ``section``.

    ``metrics`` are the numbers that pruning is judged by, ``curves`` have a number for each point
    by its name, ``labels`` are roles, relations and heads that were removed, ``texts`` verdicts and
    the like.
    """

    section: str = ""
    numbers: dict[Key, Number] = field(default_factory=dict)
    metrics: dict[Key, Number] = field(default_factory=dict)
    curves: dict[Key, Mapping[str, Number]] = field(default_factory=dict)
    labels: dict[Key, Labels] = field(default_factory=dict)
    texts: dict[Key, str] = field(default_factory=dict)

    def of(self, section: str) -> Facts:
        """Return the same tables; what is added to them belongs to a section."""
        return dataclasses.replace(self, section=section)

    def number(self, where: str, name: str, number: Number) -> None:
        """Add a number."""
        self.numbers[self.section, where, name] = number

    def metric(self, where: str, name: str, number: Number) -> None:
        """Add a number that pruning is judged by."""
        self.metrics[self.section, where, name] = number

    def curve(self, where: str, name: str, points: Mapping[str, Number]) -> None:
        """Add a curve by the names of its points."""
        self.curves[self.section, where, name] = points

    def label(self, where: str, name: str, names: Iterable[str], primary: str = "") -> None:
        """Add a set of labels."""
        self.labels[self.section, where, name] = Labels(frozenset(names), primary)

    def text(self, where: str, name: str, text: str) -> None:
        """Add a word or two."""
        self.texts[self.section, where, name] = text
