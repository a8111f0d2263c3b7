"""The labels that ``headscope classify`` gives, and the scores that they are given for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headscope.results.compared import Compare

__all__ = [
    "AlignmentScore",
    "Confirmation",
    "Label",
    "PositionalScore",
    "RareScore",
    "SharpnessScore",
    "SyntacticScore",
]


@dataclass(frozen=True)
class Label:
    """One role that a head has earned, with what a reader needs to doubt it."""

    role: str  # Key of one of :data:`headscope.results.roles.ROLES`
    #: The offset (``-1``), the relation and direction (``obj dep->head``), the token, or empty.
    detail: str
    score: float  # The measured rate or mean, and what it must beat.
    baseline: float
    #: 95% interval of the score: Wilson for positional and syntactic rates, Student's t over pairs
    #: for alignments, for all others normal with the sentence (or pair) as the sampled unit.
    interval: tuple[float, ...]
    p_adjusted: float  # Benjamini-Hochberg adjusted p-value against the baseline
    against: str = ""  # Which baseline that is


@dataclass(frozen=True)
class PositionalScore:
    """How often a head looks at one fixed relative position."""

    #: The largest of ``rates``; None without a trial.
    score: Annotated[float | None, Compare("positional score", interval="interval")]
    offset: int | None  # Where it is reached; -1 is the token before
    #: By offset: share of the queries whose largest weight is there, and mean weight there.
    rates: dict[str, float | None]
    mass: dict[str, float | None]
    interval: tuple[float, ...]  # 95% Wilson interval of ``score``
    chance: float | None  # The rate of a head that picks at random
    #: Of the score against chance, Benjamini-Hochberg adjusted over heads and offsets.
    p_adjusted: float


@dataclass(frozen=True)
class Confirmation:
    """A selected relation on the half of the corpus that it was not selected on."""

    accuracy: float  # As in :class:`SyntacticScore`.
    accuracy_mean: float
    baselines: dict[str, float]  # Offset and kernel as chosen on the other half
    strongest: str  # The baseline with the highest accuracy
    interval: tuple[float, ...]  # 95% Wilson interval of ``accuracy``
    #: Of the worst of the paired tests against offset, first, last and uniform; Benjamini-Hochberg
    #: over what was selected.
    p_adjusted: float
    trials: int  # Pairs of the relation on the other half

    @property
    def gain(self) -> float:
        """How far ``accuracy`` exceeds the strongest baseline."""
        return self.accuracy - self.baselines[self.strongest]


@dataclass(frozen=True)
class SyntacticScore:
    """One relation and direction of one head."""

    relation: str  # A label of Universal Dependencies, and ``dep->head`` or ``head->dep``.
    direction: str
    #: Hits / trials over all sentences.
    accuracy: Annotated[float, Compare("all sentences", interval="interval")]
    #: The same with attention to a word as the mean, not the sum, over its pieces.
    accuracy_mean: float
    baseline: float  # Accuracy of the best fixed offset on the same trials, and that offset.
    baseline_offset: int
    #: Accuracies of ``offset`` (as before), ``first`` and ``last`` (always the sentence's first or
    #: last word), ``uniform`` (evenly spread attention) and ``kernel`` (the head's own habit of
    #: looking at a distance).
    baselines: dict[str, float]
    trials: int  # Pairs of the relation in the corpus
    uniform: float  # As in ``baselines``
    interval: tuple[float, ...]  # 95% Wilson interval of ``accuracy``
    selected: bool  # Whether it exceeds every baseline on the first half of the corpus
    confirmed: Confirmation | None  # What the other half says; None unless selected
    labelled: bool  # Whether the other half confirms it


@dataclass(frozen=True)
class RareScore:
    """How often a head looks at the rarest word of the sentence."""

    #: Share of the queries (words) whose largest weight is on the rarest word, on one of the two
    #: rarest.
    rate: Annotated[float | None, Compare("rare-word rate", interval="interval")]
    two_rarest: float | None
    #: ``chance``, ``null``, ``uniform``: The same rate of a head that picks at random, of this head
    #: with a random word as target, and of evenly spread attention.
    chance: float | None
    queries: int  # ``queries``, ``sentences``: What was counted, and what is taken as sampled.
    null: float | None
    uniform: float | None
    interval: tuple[float, ...]  # 95% interval of ``rate``, over sentences
    p_adjusted: float  # Over sentences too, Benjamini-Hochberg adjusted
    sentences: int = 0


@dataclass(frozen=True)
class AlignmentScore:
    """How a cross-attention head follows the order of the source; None where there is no pair."""

    #: Mean over pairs of the rank correlation between content queries and the content keys that
    #: they attend to most: 1 from left to right, -1 from right to left, 0 for no order.
    score: Annotated[float | None, Compare("alignment", interval="interval")]
    interval: tuple[float, ...]  # 95% interval of ``score`` over pairs (Student's t)
    #: Of the score against 0 in either direction, Benjamini-Hochberg adjusted over heads.
    p_adjusted: float
    #: The same score when each target is given another pair's source of the same length: what
    #: position explains. None, and empty, without that pass.
    swapped: Annotated[
        float | None, Compare("alignment, swapped sources", interval="swapped_interval")
    ]
    swapped_interval: tuple[float, ...]
    #: Share of the pairs in which all queries attend to the same key most; their correlation is 0.
    constant: float | None
    #: Share of the queries whose largest weight lies within 1 key of the straight line between the
    #: ends of both sequences, and the share for keys drawn at random.
    diagonal: Annotated[float | None, Compare()]
    diagonal_uniform: float | None
    pairs: int  # What was counted, and what is taken as sampled


@dataclass(frozen=True)
class SharpnessScore:
    """How much of its weight a cross-attention head puts on one content key."""

    confidence: float | None  # Mean largest weight on a content key; None without a query
    interval: tuple[float, ...]  # Its 95% interval, over pairs
    #: The same of evenly spread attention: the mean of 1 / (tokens of the source).
    uniform: float | None
    p_adjusted: float  # Of the confidence against that, Benjamini-Hochberg adjusted over heads
