"""What claims are judged on, and how the parts of one make its verdict."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from headscope.results.insights import InsightPart, KeptRoles
from headscope.results.sections import Sections

__all__ = ["Evidence", "Finding"]


@dataclass(frozen=True)
class Evidence(Sections):
    """What has been measured of a model, by section; None where it was not."""

    #: The model with only the heads of some roles.
    kept: KeptRoles | None = None
    #: The stacks of attention that the model has; empty where nobody looked.
    stacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What a model says to a claim: an :class:`headscope.results.Insight` without the claim.

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
