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
    """

    what: str
    name: str
    sections: tuple[str, ...]
    old: str
    new: str


@dataclass(frozen=True)
class SetChange:
    """What a head, or a point of a curve, gained and lost.

    Attributes
    ----------
    section, where, name : str
        For example ``classify``, ``L3H5``, ``roles``.
    gained, lost : tuple of str
    old, new : str
        For roles the primary one; else empty.
    """

    section: str
    where: str
    name: str
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    old: str = ""
    new: str = ""


@dataclass(frozen=True)
class Change:
    """One number that moved.

    Attributes
    ----------
    section, where, name : str
    old, new : float or None
    old_interval, new_interval : tuple of two floats, or None
        95%; None where there is none.
    beyond : bool
        Whether the intervals lie apart; without intervals, whether the tolerance is exceeded.
    worsening : float or None
        How much worse ``new`` is in the metric's own unit, negative where it is better; None where
        a number is neither.
    """

    section: str
    where: str
    name: str
    old: float | None
    new: float | None
    old_interval: tuple[float, ...] | None
    new_interval: tuple[float, ...] | None
    beyond: bool
    worsening: float | None = None


@dataclass(frozen=True)
class CurveChange:
    """One curve of which some points moved.

    Attributes
    ----------
    section, where, name : str
    beyond, points : int
        Points that moved beyond their intervals or the tolerance, and points compared.
    worst : Change
        The point that moved farthest.
    """

    section: str
    where: str
    name: str
    beyond: int
    points: int
    worst: Change


@dataclass(frozen=True)
class TextChange:
    """A verdict, a certificate or another word that changed."""

    section: str
    where: str
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class FiredRule:
    """A rule of ``--fail-on`` that fired, and why."""

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
    within : int
        Numbers that moved, but not beyond.
    other : tuple of str
        Paths of values that differ and are none of the above; at most 20.
    not_valid : tuple of str
        What of ``new`` is not known to equal the model, with the reason.
    metrics_compared : int
        Values of pruning that both have.
    fired : tuple of FiredRule
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
    fired: tuple[FiredRule, ...] = ()
    schema: int = SCHEMA

    @property
    def equal(self) -> bool:
        """Whether nothing differs but when and how the runs were called."""
        return not (
            self.missing
            or self.added
            or self.identity
            or self.roles
            or self.relations
            or self.choices
            or self.verdicts
            or self.metrics
            or self.scores
            or self.curves
            or self.within
            or self.other
        )
