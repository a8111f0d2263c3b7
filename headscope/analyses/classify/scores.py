"""What is said of one head: its labels, the scores behind them, and all else that was measured.

:class:`HeadResult`, near the end, is one head; the classes before it are what its fields hold. A
*label* is a role that the head has earned. An :class:`Estimate` is a number with its 95% interval;
``Compare`` marks the fields that are compared between two runs, with the name of the row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from headscope.analyses.classify.optional.results import HeadCause, HeadPatch, PrefixScore
from headscope.core.heads import Head
from headscope.stats.compared import Compare
from headscope.stats.estimate import Estimate


@dataclass(frozen=True)
class Label:
    """One role that a head has earned, with what a reader needs to doubt it."""

    #: Key of one of :data:`headscope.core.roles.ROLES`; of a user's pairs ``pair:`` and their label
    role: str
    #: The offset (``-1``), the relation or label (``obj dep->head``), the token, or empty
    detail: str
    #: The measured rate or mean. Interval: Wilson for positional and syntactic rates, Student's t
    #: over pairs for alignments, for all others normal with the sentence (or pair) as the unit.
    score: Estimate
    baseline: float  # What the score must beat
    p_adjusted: float  # Benjamini-Hochberg adjusted p-value against the baseline
    against: str = ""  # The name of the baseline, as ``chance``


@dataclass(frozen=True)
class PositionalScore:
    """How often a head looks at one fixed relative position."""

    #: The largest of ``rates``, unknown without a query; Wilson interval.
    score: Annotated[Estimate, Compare("positional score")]
    offset: int | None  # The offset with that rate; -1 is the token before
    rates: dict[str, float | None]  # By offset: share of queries with their largest weight there
    mass: dict[str, float | None]  # By offset: mean weight there
    chance: float | None  # The rate of a head that picks at random
    p_adjusted: float  # Against chance, Benjamini-Hochberg adjusted over heads and offsets


@dataclass(frozen=True)
class Confirmation:
    """A selected relation on the half of the corpus that it was not selected on."""

    accuracy: Estimate  # As in :class:`SyntacticScore`.
    accuracy_mean: float  # As in :class:`SyntacticScore`.
    baselines: dict[str, float]  # ``offset`` and ``kernel`` as chosen on the other half
    strongest: str  # The baseline with the highest accuracy
    #: The largest p of the paired tests against offset, first, last and uniform; adjusted over what
    #: was selected (Benjamini-Hochberg).
    p_adjusted: float
    trials: int  # Pairs of the relation on the other half

    @property
    def gain(self) -> float:
        """How far ``accuracy`` exceeds the strongest baseline."""
        return float(self.accuracy) - self.baselines[self.strongest]


@dataclass(frozen=True)
class SyntacticScore:
    """One relation and direction of one head."""

    relation: str  # A label of Universal Dependencies, or of a user's pairs
    #: ``dep->head`` or ``head->dep``; of pairs ``from->to`` or ``to->from``, of alignments
    #: ``target->source``
    direction: str
    #: Hits / trials over all sentences; Wilson interval.
    accuracy: Annotated[Estimate, Compare("all sentences")]
    accuracy_mean: float  # With attention to a word as the mean, not the sum, over its pieces
    baseline: float  # Accuracy of the best fixed offset on the same trials
    baseline_offset: int  # The best fixed offset, in words
    #: Accuracies of ``offset`` (as before), ``first`` and ``last`` (always that word), ``uniform``
    #: (evenly spread attention) and ``kernel`` (the head's mean attention by distance).
    baselines: dict[str, float]
    trials: int  # Pairs of the relation in the corpus
    uniform: float  # As in ``baselines``
    selected: bool  # Whether its accuracy exceeds every baseline on the first half of the corpus
    confirmed: Confirmation | None  # What the other half says; None unless selected
    labelled: bool  # Whether the other half confirms it


@dataclass(frozen=True)
class RareScore:
    """How often a head looks at the rarest word of the sentence."""

    #: Share of the queries (words) whose largest weight is on the rarest word; interval over
    #: sentences.
    rate: Annotated[Estimate, Compare("rare-word rate")]
    two_rarest: float | None  # Share whose largest weight is on one of the two rarest words
    chance: float | None  # The rate of a head that picks at random
    queries: int
    uniform: float | None  # The rate of evenly spread attention
    p_adjusted: float  # Against chance and uniform, over sentences; Benjamini-Hochberg adjusted
    sentences: int = 0  # The unit that counts as sampled


@dataclass(frozen=True)
class AlignmentScore:
    """How a cross-attention head follows the order of the source; None where there is no pair."""

    #: Mean over pairs of the rank correlation between content queries and the content keys that
    #: they attend to most: 1 from left to right, -1 from right to left, 0 for no order. Student's t
    #: over pairs.
    score: Annotated[Estimate, Compare("alignment")]
    p_adjusted: float  # Against 0 in either direction, Benjamini-Hochberg adjusted over heads
    #: The score when each target is given another pair's source of the same length: what position
    #: explains. Unknown without that pass.
    swapped: Annotated[Estimate, Compare("alignment, swapped sources")]
    #: Share of the queries whose largest weight lies within 1 key of the straight line between the
    #: ends of both sequences.
    diagonal: Annotated[float | None, Compare()]
    diagonal_uniform: float | None  # ``diagonal`` for keys drawn at random
    pairs: int  # The unit that counts as sampled


@dataclass(frozen=True)
class SharpnessScore:
    """How much of its weight a cross-attention head puts on one content key."""

    #: Mean largest weight on a content key, unknown without a query; interval over pairs.
    confidence: Estimate
    uniform: float | None  # Of even attention: the mean of 1 / (tokens of the source)
    p_adjusted: float  # Of the confidence against ``uniform``, Benjamini-Hochberg over heads


@dataclass(frozen=True)
class FirstTokenScore:
    """How much of its weight a head of a causal stack puts on position 0."""

    #: Mean over queries from position 4 on; interval over sentences.
    weight: Annotated[Estimate, Compare("weight on the first token")]
    replaced: Estimate  # The same on some of the sentences, with another token at position 0
    uniform: float | None  # Of even attention: the mean of 1 / (tokens that the query sees)
    p_adjusted: float  # Of the weight against ``uniform``, Benjamini-Hochberg over heads


@dataclass(frozen=True)
class HeadResult(Head):
    """Everything measured about one head; a rate is None where nothing could be counted."""

    primary: str  # The first of its roles in the order of priority; ``none`` without one
    roles: tuple[str, ...]  # All of its roles, as in :data:`headscope.core.roles.ROLES`
    labels: tuple[Label, ...]  # One for each role, and one for each relation of a syntactic head
    #: Its fixed offsets, labelled or not; None of cross-attention.
    positional: Annotated[PositionalScore | None, Compare()] = None
    #: Every relation and direction, labelled or not; empty without trees. In decoders only of words
    #: before the query.
    syntactic: Annotated[tuple[SyntacticScore, ...], Compare("{0.relation} {0.direction}, ")] = ()
    #: Its attention to rare words, labelled or not; None outside encoders.
    rare: Annotated[RareScore | None, Compare()] = None
    confidence: float | None = None  # Mean largest weight on a content key
    entropy: float | None = None  # Mean row entropy, nats
    relative_entropy: float | None = None  # Mean of row entropy / ln n, n the keys a row may see
    #: Mean mass on special tokens, on the first of them, on the last
    special_mass: float | None = None
    first_special_mass: float | None = None
    last_special_mass: float | None = None
    punctuation_mass: float | None = None
    self_rate: float | None = None  # Share of rows that look at themselves
    duplicate_rate: float | None = None  # Share of repeated tokens that look at another copy
    long_entropy: float | None = None  # ``relative_entropy`` over rows that see 20 tokens or more
    #: Its mean attention between the first 15 tokens and the last, 16 x 16, queries down: base64 of
    #: a byte a cell, 255 times the square root of the weight; empty for cross-attention.
    mean_pattern: str = ""
    #: How it follows the order of the source; only of cross-attention.
    alignment: Annotated[AlignmentScore | None, Compare()] = None
    #: How much weight it puts on one key; only of cross-attention.
    sharpness: SharpnessScore | None = None
    #: How much it puts on the first token; only of decoders.
    first_token: Annotated[FirstTokenScore | None, Compare()] = None
    #: What its removal does to the model's output; None unless it was asked for.
    cause: Annotated[HeadCause | None, Compare("loss when removed, ")] = None
    #: Whether it finds earlier copies of a token and their neighbours; of causal language models,
    #: elsewhere None unless asked for.
    prefix: Annotated[PrefixScore | None, Compare("repeated tokens, ")] = None
    #: Whether later heads and the output depend on its roles; empty unless asked for.
    patched: Annotated[tuple[HeadPatch, ...], Compare("{0.role}, ")] = ()
    #: Its mean weight on the keys of each role that :func:`headscope.roles.register` added.
    registered: Annotated[dict[str, Estimate], Compare("weight, role ")] = field(
        default_factory=dict
    )

    @property
    def best_relation(self) -> tuple[SyntacticScore, Confirmation] | None:
        """The selected relation with the largest gain on the held-out half, labelled ones first.

        None where no relation of the head was selected: then the held-out half was not asked.
        """
        selected = [(score, score.confirmed) for score in self.syntactic if score.confirmed]

        def rank(candidate: tuple[SyntacticScore, Confirmation]) -> tuple[bool, float]:
            score, confirmed = candidate
            return score.labelled, confirmed.gain

        return max(selected, key=rank, default=None)


@dataclass(frozen=True)
class HeadRoles(Head):
    """The roles of one head on the corpus that ``classify`` read."""

    primary: str  # As in :class:`HeadResult`.
    roles: tuple[str, ...]
