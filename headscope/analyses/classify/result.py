"""What ``headscope classify`` says of every head, and what it was measured on.

What is said of one head is in ``scores.py``, and of optional parts in ``optional/results.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from headscope.analyses.classify.frames import head_row, patched_rows, relation_rows
from headscope.analyses.classify.optional.results import (
    Causes,
    Patching,
    PrefixMatching,
    UserPairs,
)
from headscope.analyses.classify.roles import Role, role_in, roles_of
from headscope.analyses.classify.scores import HeadResult as HeadResult  # "as": exported, too
from headscope.analyses.classify.scores import HeadRoles as HeadRoles
from headscope.core.heads import layer_numbers
from headscope.session.measured import Measured
from headscope.stats.compared import Compare, Setting
from headscope.stats.effects import head_frame

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class StackCorpus:
    """What one stack of an encoder-decoder model has read."""

    stack: str  # ``encoder``, ``decoder`` or ``cross``
    sentences: int  # Sources (of the encoder) or pairs that were measured
    skipped: int  # Left out; of cross-attention also those too short to show an order
    queries: int  # Tokens that were measured
    words_left_out: int = 0  # Words of the sentences that the tokenizer makes no piece of
    #: By direction, as ``dep->head``: the share of the trees' edges that a causal stack is asked
    #: for, as the target stands before the query; empty elsewhere
    asked_edges: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CorpusInfo:
    """What was read."""

    name: str  # Of the text or treebank, or of the pairs.
    sha256: str
    sentences: int  # Measured; pairs of source and target where ``pairs`` says so
    skipped: int  # Left out: longer than the model allows, or without a word that has a piece
    queries: int  # Tokens measured; of pairs those of the targets, unless only sources were read
    trees: bool  # Whether it has dependency trees
    language: Annotated[str | None, Setting()]  # Two-letter code, where it is known
    frequencies: Annotated[str, Setting()]  # Where the words' frequencies come from
    note: str = ""  # What a reader of any count on this corpus should know; mostly empty
    pairs: bool = False  # Whether it holds pairs of source and target
    by_stack: tuple[StackCorpus, ...] = ()  # Of the pairs; empty for sentences
    #: Words of the sentences that were measured without them: the tokenizer makes no piece of them
    words_left_out: int = 0
    #: By direction, as ``dep->head``: the share of the trees' edges that a causal stack is asked
    #: for, as the target stands before the query; empty elsewhere
    asked_edges: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SwappedControl:
    """Syntactic labels that trained attention earns on the tree of another sentence as long.

    Every one of them is a false positive.
    """

    labels: int  # Relations and directions, summed over heads
    heads: int  # Heads that have one


@dataclass(frozen=True)
class ControlResult:
    """What the same rules find with wrong trees or pairs, and with random weights."""

    swapped: SwappedControl | None = None  # None for text without trees
    seed: int | None = None  # Of the random weights; None, like all below, unless asked for
    heads: int | None = None  # Heads with random weights that were measured
    #: By role: heads with random weights that earned it. For syntactic and rare these are false
    #: positives; for others they say what the role is worth: random heads are broad, too.
    roles: dict[str, int] = field(default_factory=dict)
    false_positives: tuple[str, ...] = ()  # As ``L0H3 syntactic obj dep->head``
    #: The same counts (``heads`` and roles) by stack; empty where all heads are of one stack.
    by_stack: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def random_weights(self) -> bool:
        """Whether the control with random weights was run."""
        return self.heads is not None

    def only(self, stack: str, *, swapped: bool) -> ControlResult:
        """Return the control of one of several stacks; ``swapped``: whether it has that."""
        counts = dict(self.by_stack.get(stack, {}))
        heads = counts.pop("heads", None)
        return replace(
            self,
            swapped=self.swapped if swapped else None,
            heads=heads,
            roles=counts,
            by_stack={},
        )


@dataclass(frozen=True, repr=False)
class ClassifyResult(Measured):
    """What every attention head does, measured on one corpus.

    ``Compare`` and ``Setting`` mark what a comparison of two runs compares, and what has to be
    equal for it.
    """

    corpus: Annotated[CorpusInfo, Setting()]  # What it was measured on.
    thresholds: dict[str, Any]  # The values of :class:`headscope.Thresholds` that were used.
    #: In the order of stack (encoder, decoder, cross), layer, head.
    heads: Annotated[tuple[HeadResult, ...], Compare(where="{0.name}")]
    control: ControlResult | None = None  # None without trees, unless random weights were asked for
    #: Roles that this corpus cannot show, each with the reason; outside the encoder a role is
    #: named with its stack, as heads are: ``cross:broad``.
    untestable: dict[str, str] = field(default_factory=dict)
    #: How heads were removed, and whether those with a role matter more; None unless asked for.
    causes: Annotated[Causes | None, Compare(), Setting()] = None
    prefix: PrefixMatching | None = None  # Of the scores on repeated tokens; None unless asked for
    #: Whether relations without a label, rates by offset and mean patterns are left out, as they
    #: are in what ``--format json`` prints without ``--verbose``.
    brief: bool = False
    #: The labels of pairs that heads were scored on; None unless some were given
    pairs: Annotated[UserPairs | None, Compare(), Setting()] = None
    #: How heads were patched; None unless asked for.
    patching: Annotated[Patching | None, Setting()] = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of a user's pairs that these heads were scored on; each is a role."""
        return self.pairs.labels if self.pairs and self.pairs.stack in self.stacks else ()

    @property
    def possible_roles(self) -> tuple[Role, ...]:
        """What heads of these stacks could earn, in the order of priority."""
        return roles_of(*self.stacks, labels=self.labels)

    @property
    def layers(self) -> Sequence[int]:
        """The layers of the only stack, including those without heads."""
        if self.corpus.pairs or self.stacks == ("cross",):  # the model counts all of its stacks
            return range(max(head.layer for head in self.heads) + 1)
        return layer_numbers(self.provenance["model"])

    @property
    def stacks(self) -> tuple[str, ...]:
        """Stacks that the heads belong to, in the order of encoder, decoder, cross."""
        return tuple(dict.fromkeys(head.stack for head in self.heads))

    def only(self, stack: str) -> ClassifyResult:
        """Return the results of one stack."""
        if self.stacks == (stack,):
            return self
        corpus = self.corpus
        for stack_corpus in corpus.by_stack:
            if stack_corpus.stack == stack:
                counts = dict(vars(stack_corpus))
                del counts["stack"]
                corpus = replace(corpus, **counts)
        scored_stack = self.pairs.stack if self.pairs else "encoder"
        pairs = self.pairs if stack == scored_stack else None
        labels = pairs.labels if pairs else ()
        names = {role_in(role.key, stack) for role in roles_of(stack, labels=labels)}
        return replace(
            self,
            pairs=pairs,
            corpus=corpus,
            heads=tuple(head for head in self.heads if head.stack == stack),
            control=self.control and self.control.only(stack, swapped=stack == scored_stack),
            untestable={name: why for name, why in self.untestable.items() if name in names},
        )

    def to_frame(self) -> pandas.DataFrame:
        """One row per head, the flat numbers only (pandas).

        ``best_...`` are of the head's best relation on the held-out half of the sentences; empty
        where none of its relations was selected on the other half. Heads outside an encoder add
        columns for their stack and for cross-attention; removals and repeated tokens add theirs
        where they were measured.
        """
        with_stack = self.stacks not in ((), ("encoder",))
        return head_frame([head_row(head, with_stack=with_stack) for head in self.heads])

    def patched_frame(self) -> pandas.DataFrame:
        """One row per patched head, role and reader (pandas)."""
        import pandas as pd

        return pd.DataFrame(patched_rows(self.heads))

    def relations_frame(self) -> pandas.DataFrame:
        """One row per head, relation and direction (pandas); ``confirmed_...``: second half."""
        import pandas as pd

        return pd.DataFrame(relation_rows(self.heads))
