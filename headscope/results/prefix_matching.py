"""Whether heads find what followed, or stood before, an earlier copy of a token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Match", "PrefixMatching", "PrefixScore"]


@dataclass(frozen=True)
class Match:
    """Mean weight on one place of the first copy.

    Attributes
    ----------
    score : float
        Where the tokens are repeated.
    control : float
        The same queries and places where the first half holds other tokens: what position explains.
    gain : float
        ``score`` less ``control``.
    interval : tuple of two floats
        95% interval of ``gain``: Student's t over sequences.
    """

    score: float
    control: float
    gain: float
    interval: tuple[float, ...]


@dataclass(frozen=True)
class PrefixScore:
    """Where the tokens of a second copy look in the first.

    Attributes
    ----------
    after : Match
        At the token after the earlier occurrence: the induction score.
    same : Match
        At the earlier occurrence itself.
    before : Match
        At the token before it: the mirror image of ``after``.
    """

    after: Match
    same: Match
    before: Match


@dataclass(frozen=True)
class PrefixMatching:
    """What the scores were measured on.

    Attributes
    ----------
    sequences, copy : int
        Sequences, and random tokens of each of the two copies.
    uniform : float
        What evenly spread attention puts on one place.
    seed : int
        Of the random tokens.
    stack : str
        Whose heads have a score.
    random_weights : dict of str to float
        Largest gain of any head with random weights, by place; empty without that control.
    """

    sequences: int
    copy: int
    uniform: float
    seed: int
    stack: str
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
