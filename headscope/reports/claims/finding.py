"""On which side of a threshold an estimate lies, and how the parts of a claim make a verdict.

The outcome of a part is a word: ``holds``, ``does not hold``, ``open`` (the interval contains the
threshold) or ``not measured`` (there is no interval: a single value says nothing about the next).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headscope.core import rounding
from headscope.reports.registry import Sections
from headscope.reports.result import InsightPart, KeptRoles
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import finite, standard_error, t_half_width

HOLDS, FAILS, OPEN, UNKNOWN = "holds", "does not hold", "open", "not measured"


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
    """Return the difference taken the other way round, with its interval."""
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
    """Return the mean of values with its t interval, which is unknown for a single value."""
    if not values:
        return Estimate(None)
    x, n = np.asarray(values, dtype=float), np.array(len(values))
    half = t_half_width(standard_error(x.sum(), np.square(x).sum(), n), n)
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

    kept: KeptRoles | None = None  # The model with only the heads of some roles
    stacks: tuple[str, ...] = ()  # The model's stacks of attention; empty where they are not known


@dataclass(frozen=True)
class Finding:
    """The verdict on a claim: an :class:`Insight` without the claim and its rule.

    ``measured`` says why, where there is no verdict: "not measured yet" (the measurement was not
    run, or does not exist), "not measured" (numbers without an interval) or "not applicable".
    """

    verdict: str
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
        return cls(verdict, measured, control, values, tuple(parts))
