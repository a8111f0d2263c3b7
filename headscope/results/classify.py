"""What ``headscope classify`` measured, as values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from headscope.results.causes import Causes, HeadCause, flat_cause
from headscope.results.compared import Compare, Setting
from headscope.results.heads import Head
from headscope.results.measured import Measured
from headscope.results.prefix_matching import PrefixMatching, PrefixScore, flat_prefix
from headscope.results.role_scores import (
    AlignmentScore,
    Confirmation,
    Label,
    PositionalScore,
    RareScore,
    SharpnessScore,
    SyntacticScore,
)
from headscope.results.roles import ROLES, role_in, roles_of
from headscope.results.serialise import to_dict
from headscope.results.value_norms import ValueNorms

if TYPE_CHECKING:
    import pandas

__all__ = [
    "ClassifyResult",
    "ControlResult",
    "CorpusInfo",
    "HeadResult",
    "StackCorpus",
    "SwappedControl",
]


@dataclass(frozen=True)
class HeadResult(Head):
    """Everything measured about one head; a rate is None where nothing could be counted."""

    #: The first of its roles in the order positional, syntactic, rare, monotonic, anti_monotonic,
    #: sharp, special, punctuation, broad, self, duplicate; ``none`` if it has no role.
    primary: str
    roles: tuple[str, ...]  # All of its roles, as in :data:`headscope.results.roles.ROLES`
    labels: tuple[Label, ...]  # One for each role, and one for each relation of a syntactic head
    #: Its fixed offsets, labelled or not; None of cross-attention.
    positional: Annotated[PositionalScore | None, Compare()]
    #: Every relation and direction, labelled or not; empty without trees, and outside encoders.
    syntactic: Annotated[tuple[SyntacticScore, ...], Compare("{0.relation} {0.direction}, ")]
    #: Its attention to rare words, labelled or not; None outside encoders.
    rare: Annotated[RareScore | None, Compare()]
    confidence: float | None  # Mean largest weight on a content key
    entropy: float | None  # Mean row entropy, nats
    #: ``relative_entropy``, ``long_entropy``: Mean of row entropy / ln n, n the keys that the row
    #: may see: over all rows, and over those of sequences of 20 tokens or more (under a causal
    #: mask: that see as many).
    relative_entropy: float | None
    #: Mean mass on special tokens, on the first and the last of them, on punctuation.
    special_mass: float | None
    first_special_mass: float | None
    last_special_mass: float | None
    punctuation_mass: float | None
    #: Share of rows that look at themselves; of repeated tokens that look at another copy.
    self_rate: float | None
    duplicate_rate: float | None
    long_entropy: float | None = None
    #: How it follows the order of the source; only of cross-attention.
    alignment: Annotated[AlignmentScore | None, Compare()] = None
    #: How much weight it puts on one key; only of cross-attention.
    sharpness: SharpnessScore | None = None
    #: What its removal does to the model's output; None unless it was asked for.
    cause: Annotated[HeadCause | None, Compare("loss when removed, ")] = None
    #: Whether it finds earlier copies of a token and their neighbours; None unless asked for.
    prefix: Annotated[PrefixScore | None, Compare("repeated tokens, ")] = None

    @property
    def best_relation(self) -> tuple[SyntacticScore, Confirmation] | None:
        """The selected relation with the largest gain on the held-out half, labelled ones first.

        None where no relation of the head was selected: then the held-out half was not asked.
        """
        asked = [(score, score.confirmed) for score in self.syntactic if score.confirmed]
        return max(asked, key=lambda row: (row[0].labelled, row[1].gain), default=None)


@dataclass(frozen=True)
class StackCorpus:
    """What one stack of an encoder-decoder model has read."""

    stack: str  # ``encoder``, ``decoder`` or ``cross``
    #: Sources (of the encoder) or pairs that were measured, and that were left out; of
    #: cross-attention those that are too short to show an order, too.
    sentences: int
    skipped: int
    queries: int  # Tokens that were measured


@dataclass(frozen=True)
class CorpusInfo:
    """What was read."""

    name: str  # Of the text or treebank, or of the pairs.
    sha256: str
    #: Measured, and left out because they are longer than the model allows or have an empty word;
    #: pairs of source and target where ``pairs`` says so.
    sentences: int
    skipped: int
    #: Tokens that were measured; of pairs those of the targets, unless only sources were read.
    queries: int
    trees: bool  # Whether it has dependency trees
    language: Annotated[str | None, Setting()]  # Two-letter code, where it is known
    frequencies: Annotated[str, Setting()]  # Where the words' frequencies come from
    note: str = ""  # What a reader of any count on this corpus should know; mostly empty
    pairs: bool = False  # Whether it holds pairs of source and target
    #: What each stack has read of the pairs; empty for sentences.
    by_stack: tuple[StackCorpus, ...] = ()


@dataclass(frozen=True)
class SwappedControl:
    """Syntactic labels with trained attention and the tree of another sentence as long.

    Every one of them is a false positive.
    """

    labels: int  # Relations and directions, summed over heads
    heads: int  # Heads that have one


@dataclass(frozen=True)
class ControlResult:
    """What the same rules find where there is nothing to find."""

    swapped: SwappedControl | None = None  # None for text without trees
    #: Of the same architecture with random weights; None unless it was asked for, like all that
    #: follows.
    seed: int | None = None
    heads: int | None = None
    #: Heads with random weights that earned such a label. For syntactic and rare these are false
    #: positives; for others they say what the role is worth: random heads are broad, too.
    positional: int | None = None
    syntactic: int | None = None
    rare: int | None = None
    special: int | None = None
    punctuation: int | None = None
    broad: int | None = None
    self: int | None = None
    duplicate: int | None = None
    #: Each syntactic and rare label, as ``L0H3 syntactic obj dep->head``.
    false_positives: tuple[str, ...] = ()
    monotonic: int | None = None  # The same of cross-attention heads.
    anti_monotonic: int | None = None
    sharp: int | None = None
    #: The same counts (``heads`` and roles) by stack; empty where all heads are of one stack.
    by_stack: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def random_weights(this) -> bool:  # noqa: N805  (a field is called self)
        """Whether the control with random weights was run."""
        return this.heads is not None

    def only(this, stack: str) -> ControlResult:  # noqa: N805
        """Return what was found in one of several stacks."""
        counts = this.by_stack.get(stack, {})
        swapped = this.swapped if stack == "encoder" else None
        names = ("heads", *(role.key for role in ROLES))
        counted: dict[str, Any] = {name: counts.get(name) for name in names}
        return replace(this, swapped=swapped, by_stack={}, **counted)


@dataclass(frozen=True)
class ClassifyResult(Measured):
    """What every attention head does, measured on one corpus."""

    corpus: Annotated[CorpusInfo, Setting()]  # What it was measured on.
    thresholds: dict[str, Any]  # The values of :class:`headscope.Thresholds` that were used.
    #: In the order of stack (encoder, decoder, cross), layer, head.
    heads: Annotated[tuple[HeadResult, ...], Compare(where="{0.name}")]
    #: None for text without trees, unless random weights were asked for.
    control: ControlResult | None = None
    #: Roles that this corpus cannot show, each with the reason; outside the encoder a role is
    #: named with its stack, as heads are: ``cross:broad``.
    untestable: dict[str, str] = field(default_factory=dict)
    #: How heads were removed, and whether those with a role matter more; None unless asked for.
    causes: Annotated[Causes | None, Compare(), Setting()] = None
    #: What the scores of repeated tokens were measured on; None unless asked for.
    prefix: PrefixMatching | None = None
    #: Which labels of the pattern are left by norms. None where the heads above were labelled by
    #: the pattern itself.
    norms: ValueNorms | None = None

    @property
    def stacks(self) -> tuple[str, ...]:
        """Stacks that the heads belong to, in the order of encoder, decoder, cross."""
        return tuple(dict.fromkeys(head.stack for head in self.heads))

    def only(self, stack: str) -> ClassifyResult:
        """Return what was found about one stack."""
        if self.stacks == (stack,):
            return self
        known = next((vars(item) for item in self.corpus.by_stack if item.stack == stack), {})
        names = {role_in(role.key, stack) for role in roles_of(stack)}
        return replace(
            self,
            corpus=replace(self.corpus, **{k: v for k, v in known.items() if k != "stack"}),
            heads=tuple(head for head in self.heads if head.stack == stack),
            control=self.control and self.control.only(stack),
            untestable={name: why for name, why in self.untestable.items() if name in names},
        )

    def to_frame(self) -> pandas.DataFrame:
        """One row per head, the flat numbers only (pandas).

        ``best_...`` are of the head's best relation on the held-out half of the sentences; empty
        where none of its relations was selected on the other half.
        Heads outside an encoder add a column that says where they are.
        """
        import pandas as pd

        stacked = self.stacks not in ((), ("encoder",))
        return pd.DataFrame(
            {**_flat(head, stacked), **self._flat_asked(head)} for head in self.heads
        )

    def _flat_asked(self, head: HeadResult) -> dict[str, Any]:
        """What not every run measures, in flat columns: none where it was not asked for."""
        causes = {} if self.causes is None else flat_cause(head.cause)
        return causes | ({} if self.prefix is None else flat_prefix(head.prefix))

    def relations_frame(self) -> pandas.DataFrame:
        """One row per head, relation and direction (pandas)."""
        import pandas as pd

        return pd.DataFrame(
            {"layer": head.layer, "head": head.head, **_flat_score(score)}
            for head in self.heads
            for score in head.syntactic
        )


def _flat_score(score: SyntacticScore) -> dict[str, Any]:
    """One relation and direction in flat columns; ``confirmed_...`` are of the second half."""
    row: dict[str, Any] = to_dict(score)
    confirmed = row.pop("confirmed") or {}
    low, high = row.pop("interval")
    del row["baselines"], row["uniform"]
    row |= {"low": low, "high": high, **score.baselines}
    confirmed_low, confirmed_high = confirmed.get("interval") or (None, None)
    strongest = confirmed.get("strongest")
    return row | {
        "confirmed_accuracy": confirmed.get("accuracy"),
        "confirmed_low": confirmed_low,
        "confirmed_high": confirmed_high,
        "confirmed_strongest": strongest,
        "confirmed_baseline": confirmed["baselines"][strongest] if strongest else None,
        "confirmed_p_adjusted": confirmed.get("p_adjusted"),
        "confirmed_trials": confirmed.get("trials"),
    }


def _flat(head: HeadResult, stacked: bool) -> dict[str, Any]:
    best, confirmed = head.best_relation or (None, None)
    means = ("confidence", "entropy", "special_mass", "punctuation_mass")
    return {
        **({"stack": head.stack} if stacked else {}),
        "layer": head.layer,
        "head": head.head,
        "primary": head.primary,
        "roles": " ".join(head.roles),
        **{f"positional_{x}": getattr(head.positional, x, None) for x in ("score", "offset")},
        "best_relation": f"{best.relation} {best.direction}" if best else None,
        "best_accuracy": confirmed.accuracy if confirmed else None,
        "best_baseline": confirmed.baselines[confirmed.strongest] if confirmed else None,
        "best_labelled": best.labelled if best else None,
        **{f"rare_{x}": getattr(head.rare, x, None) for x in ("rate", "chance", "uniform")},
        **{x: getattr(head, x) for x in (*means, "self_rate", "duplicate_rate")},
        **(_flat_order(head) if stacked else {}),
    }


def _flat_order(head: HeadResult) -> dict[str, Any]:
    """What only cross-attention has, in flat columns."""
    order, sharp = head.alignment, head.sharpness
    low, high = order.interval if order else (None, None)
    swapped_low, swapped_high = (order and order.swapped_interval) or (None, None)
    return {
        "alignment": order.score if order else None,
        "alignment_low": low,
        "alignment_high": high,
        "alignment_swapped": order.swapped if order else None,
        "alignment_swapped_low": swapped_low,
        "alignment_swapped_high": swapped_high,
        "diagonal": order.diagonal if order else None,
        "diagonal_uniform": order.diagonal_uniform if order else None,
        "confidence_uniform": sharp.uniform if sharp else None,
    }
