"""Whether heads find what followed, or stood before, an earlier copy of a token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from headscope.results.compared import Compare

__all__ = ["Match", "PrefixMatching", "PrefixScore"]


@dataclass(frozen=True)
class Match:
    """Mean weight on one place of the first copy."""

    score: float  # Where the tokens are repeated
    #: The same queries and places where the first half holds other tokens: what position explains.
    control: float
    gain: Annotated[float, Compare("", interval="interval")]  # ``score`` less ``control``
    interval: tuple[float, ...]  # 95% interval of ``gain``: Student's t over sequences


@dataclass(frozen=True)
class PrefixScore:
    """Where the tokens of a second copy look in the first."""

    #: At the token after the earlier occurrence: the induction score.
    after: Annotated[Match, Compare("after")]
    same: Annotated[Match, Compare("same")]  # At the earlier occurrence itself
    #: At the token before it: the mirror image of ``after``.
    before: Annotated[Match, Compare("before")]


@dataclass(frozen=True)
class PrefixMatching:
    """What the scores were measured on."""

    sequences: int  # Sequences, and random tokens of each of the two copies.
    copy: int
    uniform: float  # What evenly spread attention puts on one place
    seed: int  # Of the random tokens
    stack: str  # Whose heads have a score
    #: Largest gain of any head with random weights, by place; empty without that control.
    random_weights: dict[str, float] = field(default_factory=dict)


def flat_prefix(prefix: PrefixScore | None) -> dict[str, Any]:
    """Return a head's scores in flat columns, empty for a head that was not measured."""
    row: dict[str, Any] = {}
    for name in ("after", "same", "before"):
        match = getattr(prefix, name, None)
        low, high = match.interval if match else (None, None)
        row |= {f"{name}_{x}": getattr(match, x, None) for x in ("score", "control", "gain")}
        row |= {f"{name}_low": low, f"{name}_high": high}
    return row
