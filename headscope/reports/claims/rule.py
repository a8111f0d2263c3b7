"""The rules of the claims: tables of parts, read from ``claims.toml`` with all of their prose.

A part says where an estimate has to lie, so that its outcome and its words come from one entry: the
outcome by :meth:`Rule.part`, the sentence of the whole rule by :attr:`Rule.sentence`. The outcome
is a word: ``holds``, ``does not hold``, ``open`` (the interval contains the threshold) or ``not
measured`` (there is no interval: a single value says nothing about the next).
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from headscope.core import rounding
from headscope.core.safe_text import listed
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.registry import Sections
from headscope.reports.result import Insight, InsightPart, KeptRoles
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import FEWEST_DRAWS, finite, standard_error, t_half_width

HOLDS = "holds"
FAILS = "does not hold"
OPEN = "open"
UNKNOWN = "not measured"


def above(number: Estimate, limit: float) -> str:
    """Decide whether the whole interval lies above a limit, by more than rounding."""
    if number.low is None or number.high is None:
        return UNKNOWN
    if rounding.above(number.low, limit):
        return HOLDS
    return OPEN if rounding.above(number.high, limit) else FAILS


def below(number: Estimate, limit: float) -> str:
    """Decide whether the whole interval lies below a limit, by more than rounding."""
    return above(negative(number), -limit)


def within(number: Estimate, least: float, most: float) -> str:
    """Decide whether the whole interval lies between two limits; fails if all of it is outside."""
    if number.low is None or number.high is None:
        return UNKNOWN
    if least <= number.low and number.high <= most:
        return HOLDS
    return FAILS if number.high < least or number.low > most else OPEN


def negative(number: Estimate) -> Estimate:
    """Return the difference with its sign and interval reversed."""
    ends = number.value, number.high, number.low
    return Estimate(*(None if end is None else -end for end in ends))


def shown(number: Estimate, form: str = ".2f", unknown: str = "not measured") -> str:
    """Write a number with its interval."""
    if number.value is None:
        return unknown
    if number.low is None or number.high is None:
        return f"{number.value:{form}} [no interval]"
    return f"{number.value:{form}} [{number.low:{form}}, {number.high:{form}}]"


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Return the mean over layers or heads with its t interval, unknown for a single value."""
    if not values:
        return Estimate(None)
    x = np.asarray(values, dtype=float)
    n = np.array(len(values))
    half = t_half_width(standard_error(x.sum(), np.square(x).sum(), n), n, FEWEST_DRAWS)
    return Estimate.around(float(x.mean()), finite(float(half)))


def every(outcomes: Sequence[str]) -> str:
    """Decide whether all of some outcomes hold; a single one that does not decides against."""
    worst = (outcome for outcome in (FAILS, UNKNOWN, OPEN) if outcome in outcomes)
    return next(worst, HOLDS if outcomes else UNKNOWN)


def common(outcomes: Sequence[str]) -> str:
    """Return the outcome that all outcomes share; "mixed" or "open" where they differ."""
    if not outcomes or UNKNOWN in outcomes:
        return UNKNOWN
    if len(set(outcomes)) == 1:
        return outcomes[0]
    return "mixed" if FAILS in outcomes else OPEN


@dataclass(frozen=True)
class Evidence(Sections):
    """What has been measured of a model, by section; None where it was not."""

    kept_roles: KeptRoles | None = None  # The model with only the heads of some roles
    stacks: tuple[str, ...] = ()  # The model's stacks of attention; empty where they are not known


#: How an estimate is compared with bounds, and how that is written.
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
    #: Where it lies if the part holds: of :data:`_DIRECTIONS`, then the bounds; empty where a
    #: separate test decides.
    lies: Sequence[Any] = ()
    among: str = ""  # Of several estimates: whether ``every`` one counts, or their ``common`` side
    percent: bool = False  # Whether bounds are written as percentages


@dataclass(frozen=True)
class Claim:
    """A claim of the literature, and how it is decided."""

    number: int
    text: str  # What the articles say
    paper: str  # Which article, by its authors and title
    needs: Sequence[str]  # Sections of which one has to have been measured
    parts: dict[str, PartRule]
    say: dict[str, str]  # Sentences to be filled in
    closing: str  # Of the rule's sentence
    bar: dict[str, Any] = field(default_factory=dict)  # The number that it leads with
    opening: str = _OPENING


@cache
def claims() -> dict[str, Claim]:
    """Read every claim by its name, in the order of their numbers."""
    text = resources.files("headscope.reports.claims").joinpath("claims.toml").read_text("utf-8")
    rules = {}
    for name, table in tomllib.loads(text).items():
        parts = {key: PartRule(**part) for key, part in table["parts"].items()}
        rules[name] = Claim(**{**table, "parts": parts})
    return rules


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
        self,
        key: str,
        number: Estimate | Iterable[Estimate] | str,
        measured: str | None = None,
        /,
        **fields: Any,
    ) -> InsightPart:
        """Decide a part by its estimates, or take the outcome of a separate test.

        Without ``measured`` the part's sentence is filled in, the estimate as ``{number}``.
        """
        rule = self.claim.parts[key]
        measured = self.say(key, number=number, **fields) if measured is None else measured
        if not isinstance(number, str):
            decide = _DIRECTIONS[rule.lies[0]][0]
            bounds = [self._bound(bound) for bound in rule.lies[1:]]
            if isinstance(number, Estimate):
                number = decide(number, *bounds)
            else:
                number = _AMONG[rule.among]([decide(one, *bounds) for one in number])
        return InsightPart(rule.name, number, measured)

    def say(self, key: str, values: Mapping[str, Any] | None = None, /, **more: Any) -> str:
        """Fill a sentence in: an estimate with its interval, a dash for what is not known."""
        fields = {**dataclasses.asdict(self.thresholds), **(values or {}), **more}
        return self.claim.say[key].format_map({k: _Field(v) for k, v in fields.items()})

    def insight(
        self,
        verdict: str,
        measured: str,
        control: str = "",
        values: Mapping[str, Any] | None = None,
        parts: Sequence[InsightPart] = (),
    ) -> Insight:
        """Give the claim a verdict; ``measured`` says why, where there is none."""
        return Insight(
            self.claim.number,
            self.claim.text,
            verdict,
            measured,
            control,
            self.sentence,
            dict(values or {}),
            tuple(parts),
        )

    def undecided(self, verdict: str, key: str, **fields: Any) -> Insight:
        """Say why there is no verdict: "not applicable", "not measured" or "not measured yet"."""
        return self.insight(verdict, self.say(key, **fields))

    def missing(self) -> Insight:
        """Say that what the claim needs was not part of the run."""
        *others, last = self.claim.needs
        named = f"neither {' nor '.join((*others, last))} was" if others else f"{last} was not"
        return self.insight("not measured yet", f"{named} part of this run")

    def concluded(
        self,
        parts: Sequence[InsightPart],
        measured: str,
        control: str,
        values: Mapping[str, Any],
        *,
        refuting: Collection[str] = (),
        refuted: bool = False,
        not_counted: Sequence[InsightPart] = (),
    ) -> Insight:
        """Give the verdict of parts: holds if all do, does not hold if none does, else mixed.

        A part whose interval is unknown leaves the claim "not measured", unless the verdict is the
        same whichever way it would come out. Parts that are "not measured yet" do not count; those
        named in ``refuting`` decide against the claim where they do not hold. A ``refuted`` claim
        does not hold, whatever the parts say.
        """
        verdicts = set()
        for unknown in (HOLDS, FAILS):
            outcomes = {
                part.name: unknown if part.verdict == UNKNOWN else part.verdict
                for part in parts
                if part.verdict != "not measured yet"
            }
            different = set(outcomes.values())
            if refuted or any(outcomes.get(name) == FAILS for name in refuting):
                verdicts.add(FAILS)
            else:
                verdicts.add(different.pop() if different in ({HOLDS}, {FAILS}) else "mixed")
        verdict = verdicts.pop() if len(verdicts) == 1 else UNKNOWN
        return self.insight(verdict, measured, control, values, (*parts, *not_counted))

    @property
    def sentence(self) -> str:
        """The rule in words, put together from its parts."""
        values = dataclasses.asdict(self.thresholds)
        rows = []
        for part in self.claim.parts.values():
            direction, *bounds = part.lies or ["itself"]
            form = ".0%" if part.percent else "g"
            written = [format(self._bound(bound), form) for bound in bounds]
            bound = _DIRECTIONS[direction][1].format(*written) if bounds else ""
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
    """A value in a sentence; text after ``|`` in its format replaces an unknown value."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __format__(self, form: str) -> str:
        value = self._value
        if isinstance(value, Estimate):
            form, _, unknown = form.partition("|")
            return shown(value, form or ".2f", unknown or "not measured")
        if isinstance(value, list | tuple):
            return listed(value, 6)
        return "-" if value is None else format(value, form)
