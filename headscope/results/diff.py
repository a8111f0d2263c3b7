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
    """What was compared.

    Attributes
    ----------
    section, where, name : str
        For example ``classify``, ``L3H5``, ``roles``.
    """

    section: str
    where: str
    name: str


@dataclass(frozen=True)
class Identity:
    """Something about the runs themselves that differs: what was measured, on what, and how.

    Attributes
    ----------
    what : str
        ``schema``, ``model``, ``data`` or ``setting``.
    name : str
        Which setting; empty for the others.
    sections : tuple of str
        The results that it concerns.
    old, new : str
        What each side has.
    """

    what: str
    name: str
    sections: tuple[str, ...]
    old: str
    new: str


@dataclass(frozen=True)
class SetChange(Fact):
    """What a head, or a point of a curve, gained and lost.

    Attributes
    ----------
    gained, lost : tuple of str
        Roles, relations or names of heads.
    old, new : str
        For roles the primary one; else empty.
    """

    gained: tuple[str, ...]
    lost: tuple[str, ...]
    old: str = ""
    new: str = ""


@dataclass(frozen=True)
class Change(Fact):
    """One number that moved.

    Attributes
    ----------
    old, new : float or None
        None where a side has the fact without a number.
    old_interval, new_interval : tuple of two floats, or None
        95%; None where there is none.
    beyond : bool
        Whether the intervals lie apart; without intervals, whether the tolerance is exceeded.
    worsening : float or None
        How much worse ``new`` is in the metric's own unit, negative where it is better; None where
        a number is neither.
    """

    old: float | None
    new: float | None
    old_interval: tuple[float, ...] | None
    new_interval: tuple[float, ...] | None
    beyond: bool
    worsening: float | None = None


@dataclass(frozen=True)
class CurveChange(Fact):
    """One curve of which some points moved.

    Attributes
    ----------
    beyond, points : int
        Points that moved beyond their intervals or the tolerance, and points compared.
    worst : Change
        The point that moved farthest.
    """

    beyond: int
    points: int
    worst: Change


@dataclass(frozen=True)
class TextChange(Fact):
    """A verdict, a certificate or another word that changed.

    Attributes
    ----------
    old, new : str
        What each side says.
    """

    old: str
    new: str


@dataclass(frozen=True)
class FiredRule:
    """A rule of ``headscope diff`` that fired.

    Attributes
    ----------
    rule, reason : str
        The rule as it was written, and why it fired.
    """

    rule: str
    reason: str


@dataclass(frozen=True)
class DiffResult:
    """Everything that differs between two sets of results.

    Attributes
    ----------
    old, new : str
        As the user named them.
    tolerance : float
        Share of a number (of 1, where it is smaller) that it may differ without an interval.
    compared : tuple of str
        Sections in both.
    missing, added : tuple of str
        Sections in ``old`` only, in ``new`` only; then what single sections have on one side only.
    identity : tuple of Identity
        Schema, model, data, settings: to be read first.
    roles : tuple of SetChange
        Roles of heads gained and lost, and other primary roles.
    relations : tuple of SetChange
        Syntactic labels gained and lost.
    choices : tuple of SetChange
        Heads that pruning removes now and did not before.
    verdicts : tuple of TextChange
        Certificates, verdicts of insights and spectra.
    metrics : tuple of Change
        Of pruning: every value that differs, beyond its interval or not.
    scores : tuple of Change
        Other numbers that moved beyond their intervals or the tolerance.
    curves : tuple of CurveChange
        Those with points that moved beyond.
    within : int
        Numbers that moved, but not beyond.
    other : tuple of str
        Paths of values that differ and are none of the above; at most 20.
    not_valid : tuple of str
        What of ``new`` is not known to equal the model, with the reason.
    metrics_compared : int
        Values of pruning that both have.
    metric : str
        What these are of, where both have the same; else empty.
    fired : tuple of FiredRule
        Of the rules that were asked for.
    schema : int
        Version of the JSON's fields.
    """

    old: str
    new: str
    tolerance: float
    compared: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    identity: tuple[Identity, ...] = ()
    roles: tuple[SetChange, ...] = ()
    relations: tuple[SetChange, ...] = ()
    choices: tuple[SetChange, ...] = ()
    verdicts: tuple[TextChange, ...] = ()
    metrics: tuple[Change, ...] = ()
    scores: tuple[Change, ...] = ()
    curves: tuple[CurveChange, ...] = ()
    within: int = 0
    other: tuple[str, ...] = ()
    not_valid: tuple[str, ...] = ()
    metrics_compared: int = 0
    metric: str = ""
    fired: tuple[FiredRule, ...] = ()
    schema: int = SCHEMA

    @property
    def equal(self) -> bool:
        """Whether nothing differs but when and how the runs were called."""
        runs = self.missing, self.added, self.identity, self.verdicts
        heads = self.roles, self.relations, self.choices
        numbers = self.metrics, self.scores, self.curves, self.within
        return not any((*runs, *heads, *numbers, self.other))
