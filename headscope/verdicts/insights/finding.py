"""What claims are judged on, and how the parts of one make its verdict."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from headscope.results import InsightPart, KeptRoles, Sections

__all__ = ["Evidence", "Finding"]

#: Parts of this verdict wait for a measurement that headscope does not have.
_WAITING = "not measured yet"


@dataclass(frozen=True)
class Evidence(Sections):
    """What has been measured of a model, by section; None where it was not.

    Attributes
    ----------
    kept : KeptRoles or None
        The model with only the heads of some roles.
    """

    kept: KeptRoles | None = None


@dataclass(frozen=True)
class Finding:
    """What a model says to a claim: an :class:`Insight` without the claim.

    Attributes
    ----------
    verdict, measured, control, rule, values, parts
        As in :class:`headscope.results.Insight`.
    """

    verdict: str
    measured: str
    control: str
    rule: str
    values: Mapping[str, object] = field(default_factory=dict)
    parts: tuple[InsightPart, ...] = ()

    @classmethod
    def not_measured(cls, rule: str, why: str = "") -> Finding:
        """Say that a claim has no measurement, and why."""
        return cls("not measured yet", why, "", rule)

    @classmethod
    def not_applicable(cls, rule: str, why: str) -> Finding:
        """Say why a claim has no meaning for this model."""
        return cls("not applicable", why, "", rule)

    @classmethod
    def undecided(cls, rule: str, why: str) -> Finding:
        """Say that there are numbers but no interval, so that nothing is decided."""
        return cls("not measured", why, "", rule)

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
        same whichever way it would come out.

        Parameters
        ----------
        parts : sequence of InsightPart
            Those that are "not measured yet" do not count.
        measured, control, rule, values : str, str, str, mapping
            As in :class:`headscope.results.Insight`.
        refuting : collection of str
            Names of parts that decide against the claim where they do not hold.
        refuted : bool
            The claim does not hold, whatever the parts say.
        """
        counted = [part for part in parts if part.verdict != _WAITING]
        possible = {
            "does not hold" if refuted else _verdict(counted, refuting, unknown)
            for unknown in ("holds", "does not hold")
        }
        verdict = possible.pop() if len(possible) == 1 else "not measured"
        return cls(verdict, measured, control, rule, values, tuple(parts))


def _verdict(parts: Sequence[InsightPart], refuting: Collection[str], unknown: str) -> str:
    """Return the verdict if every part of unknown outcome came out in one way."""
    found = [(p.name, unknown if p.verdict == "not measured" else p.verdict) for p in parts]
    verdicts = {verdict for _, verdict in found}
    if any(name in refuting and verdict == "does not hold" for name, verdict in found):
        return "does not hold"
    return verdicts.pop() if verdicts in ({"holds"}, {"does not hold"}) else "mixed"
