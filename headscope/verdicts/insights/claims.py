"""The claims in their own words, and how the parts of one make its verdict."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headscope.results import Insight, InsightPart

__all__ = ["CLAIMS", "concluded", "not_applicable", "not_measured", "undecided"]

CLAIMS = {
    0: "Self-attention is not symmetric: attention is a directed graph.",
    1: "Heads route: they pass on nearly all of what they read, rather than a narrow part.",
    2: "A few kinds of heads (positional, syntactic, rare-word) do the work; the rest can go.",
    3: "Single heads are not low rank, but the concatenated product is: heads share projections.",
    4: "Cross-attention depends on many heads more than self-attention does.",
    5: "After the softmax, attention is low rank.",
    6: "Without the softmax, keys interfere unless they are orthogonal.",
    7: "Pure attention collapses to rank one with depth; skip connections prevent it, feed-forward "
    "networks slow it, LayerNorm plays no role.",
    8: "LayerNorm parameters are the most useful small set to fine-tune.",
    9: "Pretrained attention is a ready computation primitive: frozen does about as well as tuned.",
    10: "Fine-tuning attention on small data can diverge.",
}
#: Parts of this verdict wait for a measurement that headscope does not have.
_WAITING = "not measured yet"


def not_measured(number: int, rule: str, why: str = "") -> Insight:
    """Say that a claim has no measurement, and why."""
    return Insight(number, CLAIMS[number], "not measured yet", why, "", rule, {})


def not_applicable(number: int, rule: str, why: str) -> Insight:
    """Say why a claim has no meaning for this model."""
    return Insight(number, CLAIMS[number], "not applicable", why, "", rule, {})


def undecided(number: int, rule: str, why: str) -> Insight:
    """Say that there are numbers but no interval, so that nothing is decided."""
    return Insight(number, CLAIMS[number], "not measured", why, "", rule, {})


def concluded(
    number: int,
    parts: Sequence[InsightPart],
    measured: str,
    control: str,
    rule: str,
    values: dict[str, object],
    *,
    refuting: Collection[str] = (),
    refuted: bool = False,
) -> Insight:
    """Give the verdict of parts: holds if all do, does not hold if none does, else mixed.

    A part whose interval is unknown leaves the claim "not measured", unless the verdict is the same
    whichever way it would come out.

    Parameters
    ----------
    number : int
    parts : sequence of InsightPart
    measured, control, rule : str
    values : dict
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
    return Insight(number, CLAIMS[number], verdict, measured, control, rule, values, tuple(parts))


def _verdict(parts: Sequence[InsightPart], refuting: Collection[str], unknown: str) -> str:
    """Return the verdict if every part of unknown outcome came out in one way."""
    found = [(p.name, unknown if p.verdict == "not measured" else p.verdict) for p in parts]
    verdicts = {verdict for _, verdict in found}
    if any(name in refuting and verdict == "does not hold" for name, verdict in found):
        return "does not hold"
    return verdicts.pop() if verdicts in ({"holds"}, {"does not hold"}) else "mixed"
