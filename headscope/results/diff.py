"""What ``headscope diff`` found between two sets of results, as values."""

from __future__ import annotations

from dataclasses import dataclass

from headscope.results.serialise import SCHEMA

__all__ = [
    "Change",
    "CurveChange",
    "DiffResult",
    "FiredRule",
    "Identity",
    "SetChange",
    "TextChange",
]


@dataclass(frozen=True)
class Fact:
    """What was compared."""

    section: str  # For example ``classify``, ``L3H5``, ``roles``.
    where: str
    name: str


@dataclass(frozen=True)
class Identity:
    """Something about the runs themselves that differs: what was measured, on what, and how."""

    what: str  # ``schema``, ``model``, ``data`` or ``setting``
    name: str  # Which setting; empty for the others
    sections: tuple[str, ...]  # The results that it concerns
    old: str  # What each side has.
    new: str


@dataclass(frozen=True)
class SetChange(Fact):
    """What a head, or a point of a curve, gained and lost."""

    gained: tuple[str, ...]  # Roles, relations or names of heads.
    lost: tuple[str, ...]
    old: str = ""  # For roles the primary one; else empty.
    new: str = ""


@dataclass(frozen=True)
class Change(Fact):
    """One number that moved."""

    old: float | None  # None where a side has the fact without a number.
    new: float | None
    old_interval: tuple[float, ...] | None  # 95%; None where there is none.
    new_interval: tuple[float, ...] | None
    #: Whether the intervals lie apart; without intervals, whether the tolerance is exceeded.
    beyond: bool
    #: How much worse ``new`` is in the metric's own unit, negative where it is better; None where a
    #: number is neither.
    worsening: float | None = None


@dataclass(frozen=True)
class CurveChange(Fact):
    """One curve of which some points moved."""

    beyond: int  # Points that moved beyond their intervals or the tolerance, and points compared.
    points: int
    worst: Change  # The point that moved farthest


@dataclass(frozen=True)
class TextChange(Fact):
    """A verdict, a certificate or another word that changed."""

    old: str  # What each side says.
    new: str


@dataclass(frozen=True)
class FiredRule:
    """A rule of ``headscope diff`` that fired."""

    rule: str  # The rule as it was written, and why it fired.
    reason: str


@dataclass(frozen=True)
class DiffResult:
    """Everything that differs between two sets of results."""

    old: str  # As the user named them.
    new: str
    #: Share of a number (of 1, where it is smaller) that it may differ without an interval.
    tolerance: float
    compared: tuple[str, ...] = ()  # Sections in both
    #: Sections in ``old`` only, in ``new`` only; then what single sections have on one side only.
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    identity: tuple[Identity, ...] = ()  # Schema, model, data, settings: to be read first
    roles: tuple[SetChange, ...] = ()  # Roles of heads gained and lost, and other primary roles
    relations: tuple[SetChange, ...] = ()  # Syntactic labels gained and lost
    choices: tuple[SetChange, ...] = ()  # Heads that pruning removes now and did not before
    verdicts: tuple[TextChange, ...] = ()  # Certificates, verdicts of insights and spectra
    #: Of pruning: every value that differs, beyond its interval or not.
    metrics: tuple[Change, ...] = ()
    #: Other numbers that moved beyond their intervals or the tolerance.
    scores: tuple[Change, ...] = ()
    curves: tuple[CurveChange, ...] = ()  # Those with points that moved beyond
    within: int = 0  # Numbers that moved, but not beyond
    other: tuple[str, ...] = ()  # Paths of values that differ and are none of the above; at most 20
    #: What of ``new`` is not known to equal the model, with the reason.
    not_valid: tuple[str, ...] = ()
    metrics_compared: int = 0  # Values of pruning that both have
    metric: str = ""  # What these are of, where both have the same; else empty
    fired: tuple[FiredRule, ...] = ()  # Of the rules that were asked for
    schema: int = SCHEMA  # Version of the JSON's fields

    @property
    def equal(self) -> bool:
        """Whether nothing differs but when and how the runs were called."""
        runs = self.missing, self.added, self.identity, self.verdicts
        heads = self.roles, self.relations, self.choices
        numbers = self.metrics, self.scores, self.curves, self.within
        return not any((*runs, *heads, *numbers, self.other))
