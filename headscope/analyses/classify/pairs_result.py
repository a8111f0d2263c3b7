"""Result values of pairs of one's own: labels that are roles, and cross-attention that aligns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headscope.core.heads import Head
from headscope.stats.compared import Compare, Setting
from headscope.stats.estimate import Estimate


@dataclass(frozen=True)
class LinkScore:
    """How well word-level attention finds the links of an alignment, on half B of the pairs."""

    threshold: float  # Weight from which words count as aligned: the best one on half A
    precision: float | None  # Share of its links that are sure or possible; None without a link
    recall: float | None  # Share of the sure links that it finds; None where none is sure
    #: Alignment error rate (Och & Ney 2003), 0 is best; normal interval with the pair of texts as
    #: the unit.
    error: Annotated[Estimate, Compare("alignment error rate", better=-1)]
    links: int  # That it gives


@dataclass(frozen=True)
class HeadLinks(Head):
    """The links of one cross-attention head."""

    links: Annotated[LinkScore, Compare()]


@dataclass(frozen=True)
class Alignments:
    """Which cross-attention heads align words, beside what is simpler."""

    #: (layer, head) of those with the role, as ``alignment_heads`` of a generation config
    alignment_heads: tuple[tuple[int, int], ...]
    all_heads: LinkScore  # The mean attention of all heads
    first_of_last: LinkScore  # The first head of the last layer
    straight: LinkScore  # The straight line from the first words of both sides to the last ones
    #: Error rate of a head that is drawn at random: the mean over all heads, and as interval the
    #: best and the worst of them
    random: Estimate
    heads: Annotated[tuple[HeadLinks, ...], Compare(where="{0.name}")]  # By layer and head


@dataclass(frozen=True)
class UserPairs:
    """Pairs of words, labelled by a user, that heads were scored on."""

    stack: str  # Whose heads: ``encoder``, or ``cross`` for alignments of two texts
    labels: Annotated[tuple[str, ...], Setting("labels of pairs")]  # Each is a role
    alignments: Annotated[Alignments | None, Compare()] = None  # Of cross-attention alone
