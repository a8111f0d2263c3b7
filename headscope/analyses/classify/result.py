"""The labels that ``headscope classify`` gives, and the scores that they are given for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

from headscope.analyses.classify.optional_results import (
    Causes,
    HeadCause,
    HeadPatch,
    PatchEffect,
    Patching,
    PrefixMatching,
    PrefixScore,
    UserPairs,
)
from headscope.core.heads import Head, layer_numbers
from headscope.core.roles import Role, role_in, roles_of
from headscope.session.measured import Measured
from headscope.stats.compared import Compare, Setting
from headscope.stats.effects import columns, estimated_columns, head_frame
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    import pandas


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
    baseline: float  # What it must beat
    p_adjusted: float  # Benjamini-Hochberg adjusted p-value against the baseline
    against: str = ""  # Which baseline that is


@dataclass(frozen=True)
class PositionalScore:
    """How often a head looks at one fixed relative position."""

    #: The largest of ``rates``, unknown without a trial; Wilson interval.
    score: Annotated[Estimate, Compare("positional score")]
    offset: int | None  # Where it is reached; -1 is the token before
    rates: dict[str, float | None]  # By offset: share of queries with their largest weight there
    mass: dict[str, float | None]  # By offset: mean weight there
    chance: float | None  # The rate of a head that picks at random
    p_adjusted: float  # Against chance, Benjamini-Hochberg adjusted over heads and offsets


@dataclass(frozen=True)
class Confirmation:
    """A selected relation on the half of the corpus that it was not selected on."""

    accuracy: Estimate  # As in :class:`SyntacticScore`.
    accuracy_mean: float
    baselines: dict[str, float]  # Offset and kernel as chosen on the other half
    strongest: str  # The baseline with the highest accuracy
    #: Of the worst of the paired tests against offset, first, last and uniform; Benjamini-Hochberg
    #: over what was selected.
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
    baseline_offset: int  # That offset
    #: Accuracies of ``offset`` (as before), ``first`` and ``last`` (always that word), ``uniform``
    #: (evenly spread attention) and ``kernel`` (the head's mean attention by distance).
    baselines: dict[str, float]
    trials: int  # Pairs of the relation in the corpus
    uniform: float  # As in ``baselines``
    selected: bool  # Whether it exceeds every baseline on the first half of the corpus
    confirmed: Confirmation | None  # What the other half says; None unless selected
    labelled: bool  # Whether the other half confirms it


@dataclass(frozen=True)
class RareScore:
    """How often a head looks at the rarest word of the sentence."""

    #: Share of the queries (words) whose largest weight is on the rarest word; interval over
    #: sentences.
    rate: Annotated[Estimate, Compare("rare-word rate")]
    two_rarest: float | None  # On one of the two rarest
    chance: float | None  # The rate of a head that picks at random
    queries: int
    uniform: float | None  # The rate of evenly spread attention
    p_adjusted: float  # Over sentences too, Benjamini-Hochberg adjusted
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
    diagonal_uniform: float | None  # That share for keys drawn at random
    pairs: int  # The unit that counts as sampled


@dataclass(frozen=True)
class SharpnessScore:
    """How much of its weight a cross-attention head puts on one content key."""

    #: Mean largest weight on a content key, unknown without a query; interval over pairs.
    confidence: Estimate
    uniform: float | None  # Of evenly spread attention: the mean of 1 / (tokens of the source)
    p_adjusted: float  # Of the confidence against that, Benjamini-Hochberg adjusted over heads


@dataclass(frozen=True)
class HeadResult(Head):
    """Everything measured about one head; a rate is None where nothing could be counted."""

    primary: str  # The first of its roles in the order of PRIMARY; ``none`` if it has no role
    roles: tuple[str, ...]  # All of its roles, as in :data:`headscope.core.roles.ROLES`
    labels: tuple[Label, ...]  # One for each role, and one for each relation of a syntactic head
    #: Its fixed offsets, labelled or not; None of cross-attention.
    positional: Annotated[PositionalScore | None, Compare()] = None
    #: Every relation and direction, labelled or not; empty without trees, and outside encoders.
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
    #: What its removal does to the model's output; None unless it was asked for.
    cause: Annotated[HeadCause | None, Compare("loss when removed, ")] = None
    #: Whether it finds earlier copies of a token and their neighbours; None unless asked for.
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
        asked = [(score, score.confirmed) for score in self.syntactic if score.confirmed]
        return max(asked, key=lambda row: (row[0].labelled, row[1].gain), default=None)


@dataclass(frozen=True)
class StackCorpus:
    """What one stack of an encoder-decoder model has read."""

    stack: str  # ``encoder``, ``decoder`` or ``cross``
    sentences: int  # Sources (of the encoder) or pairs that were measured
    skipped: int  # Left out; of cross-attention also those too short to show an order
    queries: int  # Tokens that were measured
    words_left_out: int = 0  # Words of the sentences that the tokenizer makes no piece of


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
    heads: int | None = None
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
        of_stack = self.swapped if swapped else None
        heads = counts.pop("heads", None)
        return replace(self, swapped=of_stack, heads=heads, roles=counts, by_stack={})


@dataclass(frozen=True, repr=False)
class ClassifyResult(Measured):
    """What every attention head does, measured on one corpus."""

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
        known = next((vars(item) for item in self.corpus.by_stack if item.stack == stack), {})
        scored = self.pairs.stack if self.pairs else "encoder"
        pairs = self.pairs if stack == scored else None
        labels = pairs.labels if pairs else ()
        names = {role_in(role.key, stack) for role in roles_of(stack, labels=labels)}
        return replace(
            self,
            pairs=pairs,
            corpus=replace(self.corpus, **{k: v for k, v in known.items() if k != "stack"}),
            heads=tuple(head for head in self.heads if head.stack == stack),
            control=self.control and self.control.only(stack, swapped=stack == scored),
            untestable={name: why for name, why in self.untestable.items() if name in names},
        )

    def to_frame(self) -> pandas.DataFrame:
        """One row per head, the flat numbers only (pandas).

        ``best_...`` are of the head's best relation on the held-out half of the sentences; empty
        where none of its relations was selected on the other half. Heads outside an encoder add
        columns for their stack and for cross-attention; removals and repeated tokens add theirs
        where they were measured.
        """
        stacked = self.stacks not in ((), ("encoder",))
        rows = []
        for head in self.heads:
            row = _flat(head, stacked)
            if head.cause is not None:
                for name in ("zero", "mean", "noise", "beyond_noise"):
                    loss = vars(getattr(head.cause, name)).items()
                    row |= {f"{name}_{'loss' if part == 'value' else part}": x for part, x in loss}
                row["zero_estimate"] = head.cause.zero_estimate
                row["mean_estimate"] = head.cause.mean_estimate
            for name, match in vars(head.prefix).items() if head.prefix else ():
                row |= {f"{name}_score": match.score, f"{name}_control": match.control}
                row |= {f"{name}_gain": match.gain.value}
                row |= {f"{name}_low": match.gain.low, f"{name}_high": match.gain.high}
            for role, weight in head.registered.items():
                row |= estimated_columns(role, weight)
            rows.append(row)
        return head_frame(rows)

    def patched_frame(self) -> pandas.DataFrame:
        """One row per patched head, role and reader (pandas)."""
        import pandas as pd

        rows = []
        for head in self.heads:
            for patch in head.patched:
                role = {"head": head.name, **columns(patch, "role", "detail", "pairs", "follows")}
                names = [field.name for field in fields(PatchEffect)]
                rows += [role | columns(effect, *names) for effect in patch.effects]
        return pd.DataFrame(rows)

    def relations_frame(self) -> pandas.DataFrame:
        """One row per head, relation and direction (pandas); ``confirmed_...``: second half."""
        import pandas as pd

        names = ("accuracy", "low", "high", "strongest", "baseline", "p_adjusted", "trials")
        rows = []
        for head in self.heads:
            for score in head.syntactic:
                row: dict[str, Any] = {"layer": head.layer, "head": head.head, **vars(score)}
                del row["baselines"], row["uniform"], row["confirmed"]
                row["accuracy"] = score.accuracy.value
                row |= {"low": score.accuracy.low, "high": score.accuracy.high, **score.baselines}
                held_out: tuple[Any, ...] = (None,) * len(names)
                if (c := score.confirmed) is not None:
                    rate = (c.accuracy.value, c.accuracy.low, c.accuracy.high)
                    held_out = *rate, c.strongest, c.baselines[c.strongest], c.p_adjusted, c.trials
                row |= {f"confirmed_{x}": y for x, y in zip(names, held_out, strict=True)}
                rows.append(row)
        return pd.DataFrame(rows)


def _flat(head: HeadResult, stacked: bool) -> dict[str, Any]:
    best, confirmed = head.best_relation or (None, None)
    means = ("confidence", "entropy", "special_mass", "punctuation_mass")
    row = {
        **({"stack": head.stack} if stacked else {}),
        "layer": head.layer,
        "head": head.head,
        "primary": head.primary,
        "roles": " ".join(head.roles),
        "positional_score": head.positional.score.value if head.positional else None,
        "positional_offset": head.positional.offset if head.positional else None,
        "best_relation": f"{best.relation} {best.direction}" if best else None,
        "best_accuracy": confirmed.accuracy.value if confirmed else None,
        "best_baseline": confirmed.baselines[confirmed.strongest] if confirmed else None,
        "best_labelled": best.labelled if best else None,
        "rare_rate": head.rare.rate.value if head.rare else None,
        **{f"rare_{x}": getattr(head.rare, x, None) for x in ("chance", "uniform")},
        **{x: getattr(head, x) for x in (*means, "self_rate", "duplicate_rate")},
    }
    if stacked:
        order = head.alignment
        row |= estimated_columns("alignment", order.score if order else None)
        row |= estimated_columns("alignment_swapped", order.swapped if order else None)
        row["diagonal"] = order.diagonal if order else None
        row["diagonal_uniform"] = order.diagonal_uniform if order else None
        row["confidence_uniform"] = head.sharpness.uniform if head.sharpness else None
    return row


@dataclass(frozen=True)
class HeadRoles(Head):
    """The roles of one head on the corpus that ``classify`` read."""

    primary: str  # As in :class:`HeadResult`.
    roles: tuple[str, ...]
