"""What a claim of the literature consists of, and how its parts make a verdict.

Every claim is a module of this package. Its ``CLAIM`` (:class:`Claim`) puts together what the
articles say, the parts that decide it, a function ``judge`` and the number that it leads with.

``judge(rule, evidence)`` gets the results that were measured of a model (:class:`Evidence`) and
returns the verdict (:class:`Insight`). It writes the verdict with its :class:`Rule`:

1. :meth:`Rule.part` decides each part, by where the interval of an estimate lies;
2. :meth:`Rule.concluded` makes one verdict of the outcomes of all parts.

A part says once where its estimate has to lie (:class:`Bound`). The outcome is decided by that, and
:attr:`Rule.sentence` says it in words.
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
    """What has been measured of a model; None where it was not.

    It inherits a field for the result of each command, such as ``rank`` and ``spectrum``.
    """

    kept_roles: KeptRoles | None = None  # The metric of the model with only some heads, for claim 2
    #: The model's stacks of attention: ``encoder``, ``decoder``, ``cross``; empty if not known.
    stacks: tuple[str, ...] = ()


# --- where an estimate has to lie -----------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """Where the whole interval of an estimate has to lie, as a test and in words."""

    #: Decides by the interval: ``holds``, ``does not hold``, ``open`` or ``not measured``.
    outcome: Callable[[Estimate], str]
    words: str  # Such as "above {}", with ``{}`` for each limit
    limits: tuple[float, ...]

    def written(self, form: str) -> str:
        """Say in words where it has to lie, the limits in a format: ".0%" -> "above 90%"."""
        limits = [format(limit, form) for limit in self.limits]
        return self.words.format(*limits)


def lies_above(limit: float) -> Bound:
    """Ask for an interval above a limit."""
    return Bound(lambda number: above(number, limit), words="above {}", limits=(limit,))


def lies_below(limit: float) -> Bound:
    """Ask for an interval below a limit."""
    return Bound(lambda number: below(number, limit), words="below {}", limits=(limit,))


def lies_at_least(limit: float) -> Bound:
    """Ask for an interval that begins at a limit or above."""
    return Bound(
        lambda number: within(number, limit, math.inf), words="at least {}", limits=(limit,)
    )


def lies_between(least: float, most: float) -> Bound:
    """Ask for an interval between two limits, or at them."""
    return Bound(
        lambda number: within(number, least, most),
        words="between {} and {}",
        limits=(least, most),
    )


# --- the claim ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClaimPart:
    """One part of a claim: what is measured, and where the estimate has to lie.

    A part that asks for an R^2 above the threshold ``recovered``::

        ClaimPart(
            name="z recovers most of the word",
            rule="the R^2 is {bound}",
            lies=lambda thresholds: lies_above(thresholds.recovered),
        )
    """

    name: str  # What the part says, as results call it
    #: Its words in the sentence of the rule. ``{bound}`` stands for where the estimate has to lie,
    #: other fields for thresholds. Empty for a part that is shown and does not count.
    rule: str = ""
    #: Where the estimate lies if the part holds, under some thresholds; None where the judge
    #: decides by a test of its own.
    lies: Callable[[InsightThresholds], Bound] | None = None
    #: Joins the outcomes of several estimates, such as one a head: ``every`` or ``common``.
    join: Callable[[Sequence[str]], str] | None = None
    percent: bool = False  # Whether bounds are written as percentages


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the literature, and how it is decided."""

    number: int  # The articles are numbered from 0
    text: str  # What the article claims
    paper: str  # The article's authors and title
    parts: Mapping[str, ClaimPart]  # By the key that ``judge`` calls them
    closing: str  # Ends the sentence of the rule; its ``{fields}`` are thresholds
    opening: str = "Holds if all of this is so, by the whole 95% interval where there is one:"
    judge: Callable[[Rule, Evidence], Insight]
    #: Makes the number that the claim leads with of an insight's ``values``; it raises KeyError or
    #: TypeError where they lack it. None for a claim without such a number.
    bar: Callable[[Mapping[str, Any]], Bar] | None = None


@dataclass(frozen=True)
class Rule:
    """The rule of one claim, under some thresholds: a judge writes its verdict with it."""

    claim: Claim
    thresholds: InsightThresholds = field(default_factory=InsightThresholds)

    def part(self, key: str, number: Estimate | Iterable[Estimate], measured: str) -> InsightPart:
        """Decide a part by where its estimate lies, or all of its estimates do.

        ``measured`` says the numbers in words.
        """
        claim_part = self.claim.parts[key]
        assert claim_part.lies is not None, f"{key} has no bound: use decided"
        bound = claim_part.lies(self.thresholds)
        if isinstance(number, Estimate):
            return InsightPart(claim_part.name, bound.outcome(number), measured)
        assert claim_part.join is not None, f"{key} does not say how outcomes are joined"
        outcomes = [bound.outcome(estimate) for estimate in number]
        return InsightPart(claim_part.name, claim_part.join(outcomes), measured)

    def decided(self, key: str, outcome: str, measured: str) -> InsightPart:
        """Give a part an outcome that the judge has found by a test of its own."""
        return InsightPart(self.claim.parts[key].name, outcome, measured)

    def insight(
        self,
        verdict: str,
        measured: str,
        control: str = "",
        values: Mapping[str, Any] | None = None,
        parts: Sequence[InsightPart] = (),
    ) -> Insight:
        """Give the claim a verdict; ``measured`` says why nothing was decided, where that is so."""
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
        """Say that the run had none of the commands whose result could decide the claim."""
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
        does not hold, whatever the parts say. Parts ``not_counted`` are shown alone.
        """
        verdict = FAILS
        if not refuted:
            at_best = _verdict_of(parts, refuting, of_unmeasured=HOLDS)
            at_worst = _verdict_of(parts, refuting, of_unmeasured=FAILS)
            verdict = at_best if at_best == at_worst else NOT_MEASURED
        return self.insight(verdict, measured, control, values, [*parts, *not_counted])

    @property
    def sentence(self) -> str:
        """The rule in words: the opening, what each part asks for, and the closing."""
        fields = dataclasses.asdict(self.thresholds)
        fields["rest"] = 1 - self.thresholds.most  # the heads that are not "most"
        clauses = []
        for claim_part in self.claim.parts.values():
            if not claim_part.rule:
                continue
            bound = ""
            if claim_part.lies is not None:
                form = ".0%" if claim_part.percent else "g"
                bound = claim_part.lies(self.thresholds).written(form)
            clauses.append(claim_part.rule.format(bound=bound, **fields))
        closing = self.claim.closing.format(**fields)
        return f"{self.claim.opening} {'; '.join(clauses)}. {closing}"


def _verdict_of(
    decided_parts: Sequence[InsightPart], refuting: Collection[str], of_unmeasured: str
) -> str:
    """Return the verdict if all parts that were not measured had the outcome ``of_unmeasured``."""
    outcomes: dict[str, str] = {}
    for decided_part in decided_parts:
        if decided_part.verdict == NOT_MEASURED:
            outcomes[decided_part.name] = of_unmeasured
        elif decided_part.verdict != NOT_YET:
            outcomes[decided_part.name] = decided_part.verdict
    if any(outcomes.get(name) == FAILS for name in refuting):
        return FAILS
    if set(outcomes.values()) == {HOLDS}:
        return HOLDS
    if set(outcomes.values()) == {FAILS}:
        return FAILS
    return "mixed"
