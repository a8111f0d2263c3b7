"""The rules of the claims: tables of parts, read from ``claims.toml`` with all of their prose.

A part says where an estimate has to lie, so that its outcome and its words come from one entry: the
outcome by :meth:`Rule.part`, the sentence of the whole rule by :attr:`Rule.sentence`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from headscope.core.safe_text import listed
from headscope.reports.claims.finding import Finding, above, below, common, every, shown, within
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import InsightPart
from headscope.stats.estimate import Estimate

#: How an estimate is held against bounds, and how that is written.
_DIRECTIONS: dict[str, tuple[Callable[..., str], str]] = {
    "above": (above, "above {}"),
    "below": (below, "below {}"),
    "at_least": (lambda number, least: within(number, least, math.inf), "at least {}"),
    "between": (within, "between {} and {}"),
}
_AMONG = {"every": every, "common": common}
_BOUND = re.compile(r"(?:(1)?([+-]))?([a-z_]+)")  # A threshold, or 1 less or more than one
_OPENING = "Holds if all of this is so, by the whole 95% interval where there is one:"


@dataclass(frozen=True)
class PartRule:
    """One row of a rule: where an estimate has to lie."""

    name: str  # What the part says, as results call it
    rule: str = ""  # What its estimate is; ``{bound}`` is the direction and the bound
    direction: str = ""  # Of :data:`_DIRECTIONS`; empty where a test of its own decides
    bounds: tuple[Any, ...] = ()
    among: str = ""  # Of several estimates: whether ``every`` one counts, or their ``common`` side
    percent: bool = False  # Whether bounds are written as percentages

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> PartRule:
        """Read an entry of the file: the direction is the key that holds the bounds."""
        direction = next((name for name in _DIRECTIONS if name in table), "")
        bounds = table.get(direction, ())
        fields = {name: value for name, value in table.items() if name != direction}
        bounds = tuple(bounds) if isinstance(bounds, list | tuple) else (bounds,)
        return cls(direction=direction, bounds=bounds, **fields)


@dataclass(frozen=True)
class Claim:
    """A claim of the literature, and how it is decided."""

    number: int
    text: str  # What the articles say
    needs: tuple[str, ...]  # Sections of which one has to have been measured
    parts: dict[str, PartRule]
    say: dict[str, str]  # Sentences to be filled in
    closing: str  # Of the rule's sentence
    bar: dict[str, Any] = field(default_factory=dict)  # The number that it leads with
    opening: str = _OPENING


@cache
def claims() -> dict[str, Claim]:
    """Read every claim by its name, in the order of their numbers."""
    text = resources.files("headscope.reports.claims").joinpath("claims.toml").read_text("utf-8")
    found = {}
    for name, table in tomllib.loads(text).items():
        parts = {key: PartRule.read(part) for key, part in table["parts"].items()}
        found[name] = Claim(**{**table, "needs": tuple(table["needs"]), "parts": parts})
    return found


@dataclass(frozen=True)
class Rule:
    """The rule of one claim, under some thresholds."""

    name: str
    thresholds: InsightThresholds = field(default_factory=InsightThresholds)

    @property
    def claim(self) -> Claim:
        """The claim itself."""
        return claims()[self.name]

    def part(
        self, key: str, found: Estimate | Iterable[Estimate] | str, measured: str
    ) -> InsightPart:
        """Decide a part by its estimates, or take the outcome of its own test."""
        rule = self.claim.parts[key]
        if not isinstance(found, str):
            decide = _DIRECTIONS[rule.direction][0]
            bounds = [self._bound(bound) for bound in rule.bounds]
            if isinstance(found, Estimate):
                found = decide(found, *bounds)
            else:
                found = _AMONG[rule.among]([decide(number, *bounds) for number in found])
        return InsightPart(rule.name, found, measured)

    def say(self, key: str, values: Mapping[str, Any] | None = None, **more: Any) -> str:
        """Fill a sentence in: an estimate with its interval, a dash for what is not known."""
        fields = {**dataclasses.asdict(self.thresholds), **(values or {}), **more}
        return self.claim.say[key].format_map({k: _Field(v) for k, v in fields.items()})

    def undecided(self, verdict: str, key: str, **fields: Any) -> Finding:
        """Say why there is no verdict."""
        return Finding(verdict, self.say(key, **fields))

    def missing(self) -> Finding:
        """Say that what the claim needs was not part of the run."""
        *others, last = self.claim.needs
        named = f"neither {' nor '.join((*others, last))} was" if others else f"{last} was not"
        return Finding("not measured yet", f"{named} part of this run")

    @property
    def sentence(self) -> str:
        """The rule in words, put together from its parts."""
        values = dataclasses.asdict(self.thresholds)
        rows = []
        for part in self.claim.parts.values():
            bounds = (self._bound(bound) for bound in part.bounds)
            written = (f"{bound:.0%}" if part.percent else f"{bound:g}" for bound in bounds)
            bound = _DIRECTIONS[part.direction][1].format(*written) if part.direction else ""
            rows += [part.rule.format(bound=bound, **values)] if part.rule else []
        closing = self.claim.closing.format(rest=1 - self.thresholds.most, **values)
        return f"{self.claim.opening} {'; '.join(rows)}. {closing}"

    def _bound(self, bound: float | str) -> float:
        match = _BOUND.fullmatch(bound) if isinstance(bound, str) else None
        if match is None:
            return float(bound)
        value = float(getattr(self.thresholds, match[3]))
        return float(match[1] or 0) + (-value if match[2] == "-" else value)


class _Field:
    """A value in a sentence."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __format__(self, form: str) -> str:
        value = self._value
        if isinstance(value, Estimate):
            return shown(value, form or ".2f")
        if isinstance(value, list | tuple):
            return listed(value, 6)
        return "-" if value is None else format(value, form)
