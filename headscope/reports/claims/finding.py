"""Means with intervals, and on which side of a threshold they lie.

Outcomes are words: ``holds``, ``does not hold``, ``open`` (the interval straddles the threshold)
and ``not measured`` (there is no interval: a single value says nothing about the next).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headscope.core.rounding import above
from headscope.reports.registry import Sections
from headscope.reports.result import InsightPart, KeptRoles
from headscope.stats.statistics import standard_error, t_half_width

__all__ = ["Measurement", "common", "every", "mean_estimate", "Evidence", "Finding"]

HOLDS, FAILS, OPEN, UNKNOWN = "holds", "does not hold", "open", "not measured"


@dataclass(frozen=True)
class Measurement:
    """A mean with its 95% interval; low and high are None where the interval is unknown."""

    mean: float
    low: float | None
    high: float | None

    @classmethod
    def around(cls, mean: float, half: float | None) -> Measurement:
        """Make one of a mean and half of its interval (None, or not finite: unknown)."""
        if half is None or not math.isfinite(half):
            return cls(mean, None, None)
        return cls(mean, mean - half, mean + half)

    def above(self, limit: float) -> str:
        """Whether the whole interval lies above."""
        if self.low is None or self.high is None:
            return UNKNOWN
        return HOLDS if above(self.low, limit) else OPEN if above(self.high, limit) else FAILS

    def at_least(self, limit: float) -> str:
        """Whether the whole interval lies at or above."""
        if self.low is None or self.high is None:
            return UNKNOWN
        return HOLDS if self.low >= limit else FAILS if self.high < limit else OPEN

    def below(self, limit: float) -> str:
        """Whether the whole interval lies below."""
        if self.low is None or self.high is None:
            return UNKNOWN
        return HOLDS if above(limit, self.high) else OPEN if above(limit, self.low) else FAILS

    def within(self, low: float, high: float) -> str:
        """Whether the whole interval lies between two limits; fails where it lies outside."""
        if self.low is None or self.high is None:
            return UNKNOWN
        if low <= self.low and self.high <= high:
            return HOLDS
        return FAILS if self.high < low or self.low > high else OPEN

    def __str__(self) -> str:
        return f"{self.mean:.2f} {self.interval()}"

    def interval(self, form: str = ".2f") -> str:
        """Write the interval."""
        if self.low is None or self.high is None:
            return "[no interval]"
        return f"[{self.low:{form}}, {self.high:{form}}]"


def mean_estimate(values: Sequence[float]) -> Measurement | None:
    """Return the mean of values with its t interval, unknown for one value; None without values."""
    if not values:
        return None
    x = np.asarray(values, dtype=float)
    n = np.array(len(x))
    half = t_half_width(standard_error(x.sum(), np.square(x).sum(), n), n)
    return Measurement.around(float(x.mean()), float(half))


def every(outcomes: Sequence[str]) -> str:
    """Whether all of some things hold: one that does not is enough against it."""
    worst = (verdict for verdict in (FAILS, UNKNOWN, OPEN) if verdict in outcomes)
    return next(worst, HOLDS if outcomes else UNKNOWN)


def common(outcomes: Sequence[str]) -> str:
    """Return the outcome that all of some things share; mixed where they differ."""
    if not outcomes or UNKNOWN in outcomes:
        return UNKNOWN
    if len(set(outcomes)) == 1:
        return outcomes[0]
    return "mixed" if FAILS in outcomes else OPEN


@dataclass(frozen=True)
class Evidence(Sections):
    """What has been measured of a model, by section; None where it was not."""

    kept: KeptRoles | None = None  # The model with only the heads of some roles.
    #: The stacks of attention that the model has; empty where nobody looked.
    stacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What a model says to a claim: an :class:`Insight` without the claim.

    ``measured`` says why, where there is no verdict: "not measured yet" (the measurement was not
    run, or does not exist), "not measured" (numbers without an interval) or "not applicable".
    """

    verdict: str
    rule: str
    measured: str
    control: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    parts: tuple[InsightPart, ...] = ()

    @classmethod
    def concluded(
        cls,
        parts: Sequence[InsightPart],
        measured: str,
        control: str,
        rule: str,
        values: Mapping[str, object],
        *,
        refuting: Collection[str] = (),
        refuted: bool = False,
    ) -> Finding:
        """Give the verdict of parts: holds if all do, does not hold if none does, else mixed.

        A part whose interval is unknown leaves the claim "not measured", unless the verdict is the
        same whichever way it would come out. Parts that are "not measured yet" do not count; those
        named in ``refuting`` decide against the claim where they do not hold. A ``refuted`` claim
        does not hold, whatever the parts say.
        """
        counted = [part for part in parts if part.verdict != "not measured yet"]
        possible = {
            "does not hold" if refuted else _verdict(counted, refuting, unknown)
            for unknown in ("holds", "does not hold")
        }
        verdict = possible.pop() if len(possible) == 1 else "not measured"
        return cls(verdict, rule, measured, control, values, tuple(parts))


def _verdict(parts: Sequence[InsightPart], refuting: Collection[str], unknown: str) -> str:
    """Return the verdict if every part of unknown outcome came out in one way."""
    found = [(p.name, unknown if p.verdict == "not measured" else p.verdict) for p in parts]
    verdicts = {verdict for _, verdict in found}
    if any(name in refuting and verdict == "does not hold" for name, verdict in found):
        return "does not hold"
    return verdicts.pop() if verdicts in ({"holds"}, {"does not hold"}) else "mixed"
