"""What ``classify --patch`` found: whether heads with a role carry it, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headscope.stats.compared import Compare, Setting
from headscope.stats.estimate import Estimate


@dataclass(frozen=True)
class PatchEffect:
    """What one reader gets of it when a head looks where it would look in another sentence.

    Changes are shares of the change that all heads of the layer bring about together when they look
    as in the sentence in which the relation points elsewhere. Intervals: Student's t over pairs.
    """

    reader: str  # ``later heads`` (their q, k and v at the query word) or ``output`` (its state)
    elsewhere: float  # Mean share where the relation points elsewhere
    same: float  # The same where it points to the same place, with as many other words
    gain: Annotated[Estimate, Compare("patched")]  # ``elsewhere`` less ``same``
    #: ``gain`` less its mean over the other heads of the layer; unknown where there is none.
    over_others: Estimate
    #: Benjamini-Hochberg over heads, roles and readers: that ``gain`` and ``over_others`` exceed 0
    #: (the larger p of the two), and that ``gain`` lies below the smallest effect that counts.
    p_carries: float
    p_does_not: float
    verdict: Annotated[str, Compare("verdict")]  # As in :class:`HeadPatch`.
    layer_change: float  # What all heads of the layer change together, as a share of what is read


@dataclass(frozen=True)
class HeadPatch:
    """Whether a head carries one of its roles."""

    role: str  # ``positional`` or ``syntactic``
    detail: str  # The offset (``-1``), or the relation (``obj dep->head``)
    pairs: int  # Minimal pairs, each of a sentence of its own
    #: Share of the pairs in whose changed sentence the head looks more at the new place than at the
    #: old one; Wilson interval.
    follows: Estimate
    others: int  # Heads of the layer that do not have this role
    effects: Annotated[tuple[PatchEffect, ...], Compare("{0.reader}, ")]
    #: ``carries`` if it does to one reader, ``does not`` if it does to none, else ``not told
    #: apart``; ``not measured`` with too few pairs.
    verdict: Annotated[str, Compare("verdict")]


@dataclass(frozen=True)
class Patching:
    """How heads were patched."""

    pairs: Annotated[int, Setting("pairs a head")]  # At most
    smallest: float  # The smallest effect that counts, as a share of what the whole layer does
    seed: int  # Of the pairs
    notes: tuple[str, ...] = ()  # What was not patched, and why
