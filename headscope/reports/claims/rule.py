"""What a claim of the literature consists of, and how its parts make a verdict.

Every claim is a module of this package, named in ``bounds.toml``: its ``CLAIM`` puts together what
the articles say, the parts that decide it, the function that judges a model by them, and the number
that it leads with. A part says where an estimate has to lie, so that its outcome and its words come
from one entry: the outcome by :meth:`Rule.part`, the sentence of the rule by :attr:`Rule.sentence`.
:meth:`Rule.concluded` makes one verdict of the outcomes of all parts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headscope.reports.claims.bar import Bar
from headscope.reports.claims.intervals import FAILS, HOLDS, NOT_MEASURED, above, below, within
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.registry import Sections
from headscope.reports.result import Insight, InsightPart, KeptRoles
from headscope.stats.estimate import Estimate

#: The outcome of a part whose measurement was not asked for: it does not count for or against.
NOT_YET = "not measured yet"


@dataclass(frozen=True)
class Evidence(Sections):
    """What has been measured of a model, by section; None where it was not."""

    kept_roles: KeptRoles | None = None  # The model with only the heads of some roles
    stacks: tuple[str, ...] = ()  # The model's stacks of attention; empty where they are not known


# --- where an estimate has to lie -----------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """Where the whole interval of an estimate has to lie, as a test and in words."""

    outcome: Callable[[Estimate], str]  # ``holds``, ``does not hold``, ``open``, ``not measured``
    words: str  # With ``{}`` for each limit
    limits: tuple[float, ...]

    def written(self, form: str) -> str:
        """Say in words where it has to lie, the limits in this format."""
        return self.words.format(*(format(limit, form) for limit in self.limits))


def lies_above(limit: float) -> Bound:
    """Ask for an interval above a limit."""
    return Bound(lambda number: above(number, limit), "above {}", (limit,))


def lies_below(limit: float) -> Bound:
    """Ask for an interval below a limit."""
    return Bound(lambda number: below(number, limit), "below {}", (limit,))


def lies_at_least(limit: float) -> Bound:
    """Ask for an interval that begins at a limit or above."""
    return Bound(lambda number: within(number, limit, math.inf), "at least {}", (limit,))


def lies_between(least: float, most: float) -> Bound:
    """Ask for an interval between two limits, or at them."""
    return Bound(
        lambda number: within(number, least, most), "between {} and {}", limits=(least, most)
    )


# --- the claim ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClaimPart:
    """One row of a rule: what is asked, and where an estimate has to lie."""

    name: str  # What the part says, as results call it
    #: What its estimate is: ``{bound}`` is where it has to lie, other fields are thresholds. Empty
    #: for what is shown beside the verdict.
    rule: str = ""
    #: Where the estimate lies if the part holds; None where the judge decides by a test of its own.
    lies: Callable[[InsightThresholds], Bound] | None = None
    #: Makes one outcome of those of several estimates: ``every`` or ``common``.
    join: Callable[[Sequence[str]], str] | None = None
    percent: bool = False  # Whether bounds are written as percentages


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the literature, and how it is decided."""

    number: int  # As the articles are numbered
    text: str  # What they say
    paper: str  # Which article, by its authors and title
    parts: Mapping[str, ClaimPart]
    closing: str  # Ends the sentence of the rule; its fields are thresholds
    opening: str = "Holds if all of this is so, by the whole 95% interval where there is one:"
    judge: Callable[[Rule, Evidence], Insight]
    #: Makes the number that the claim leads with of an insight's ``values``; KeyError or TypeError
    #: where it was not measured. None where the claim has no such number.
    bar: Callable[[Mapping[str, Any]], Bar] | None = None


@dataclass(frozen=True)
class Rule:
    """The rule of one claim, under some thresholds: what a judge writes its verdict with."""

    claim: Claim
    thresholds: InsightThresholds = field(default_factory=InsightThresholds)

    def part(self, key: str, number: Estimate | Iterable[Estimate], measured: str) -> InsightPart:
        """Decide a part by where its estimate lies, or all of its estimates."""
        row = self.claim.parts[key]
        assert row.lies is not None, f"{key} has no bound: use decided"
        bound = row.lies(self.thresholds)
        if isinstance(number, Estimate):
            return InsightPart(row.name, bound.outcome(number), measured)
        assert row.join is not None, f"{key} does not say how outcomes are joined"
        outcomes = [bound.outcome(estimate) for estimate in number]
        return InsightPart(row.name, row.join(outcomes), measured)

    def decided(self, key: str, outcome: str, measured: str) -> InsightPart:
        """Give a part the outcome of a test of the judge's own."""
        return InsightPart(self.claim.parts[key].name, outcome, measured)

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
            number=self.claim.number,
            claim=self.claim.text,
            verdict=verdict,
            measured=measured,
            control=control,
            rule=self.sentence,
            values=dict(values or {}),
            parts=tuple(parts),
        )

    def missing(self, *sections: str) -> Insight:
        """Say that none of the sections that the claim can be decided by was part of the run."""
        if len(sections) == 1:
            why = f"{sections[0]} was not part of this run"
        else:
            why = f"neither {' nor '.join(sections)} was part of this run"
        return self.insight(NOT_YET, why)

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
        # The verdict if all parts that were not measured held, and if none of them did.
        verdicts = set()
        for assumed in (HOLDS, FAILS):
            outcomes = {
                part.name: assumed if part.verdict == NOT_MEASURED else part.verdict
                for part in parts
                if part.verdict != NOT_YET
            }
            different = set(outcomes.values())
            if refuted or any(outcomes.get(name) == FAILS for name in refuting):
                verdicts.add(FAILS)
            elif different in ({HOLDS}, {FAILS}):
                verdicts.update(different)
            else:
                verdicts.add("mixed")
        verdict = verdicts.pop() if len(verdicts) == 1 else NOT_MEASURED
        return self.insight(verdict, measured, control, values, [*parts, *not_counted])

    @property
    def sentence(self) -> str:
        """The rule in words, put together from its parts."""
        fields = dataclasses.asdict(self.thresholds)
        fields["rest"] = 1 - self.thresholds.most
        rows = []
        for row in self.claim.parts.values():
            if not row.rule:
                continue
            bound = ""
            if row.lies is not None:
                bound = row.lies(self.thresholds).written(".0%" if row.percent else "g")
            rows.append(row.rule.format(bound=bound, **fields))
        closing = self.claim.closing.format(**fields)
        return f"{self.claim.opening} {'; '.join(rows)}. {closing}"
