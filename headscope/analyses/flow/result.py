"""What ``headscope flow`` measured, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from headscope.core.heads import Head
from headscope.session.measured import Measured
from headscope.stats.compared import Compare, ComparedEstimate, Setting
from headscope.stats.effects import head_frame
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.ranks import ControlStatistics, MatrixRank

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Recovery:
    """Held-out R^2 of linear maps from z: the share of a target's variance that they recover.

    1 is all of it, 0 as much as the mean alone, less is worse; None where it was not measured.
    """

    whole: ComparedEstimate  # Of the mixture of states that the head reads, all d_model dimensions
    directions: ComparedEstimate  # The same from d_head random directions instead of W_V
    token: ComparedEstimate  # Of the state of the word that gets the largest weight, all dimensions
    value: ComparedEstimate  # The same in the space that W_V reads
    other: ComparedEstimate  # The same of a word of the sentence drawn at random
    #: As ``token``, from d_head random directions instead of W_V.
    token_directions: ComparedEstimate = UNKNOWN
    #: As ``value``, of the same patterns with a W_V of Gaussian entries.
    gaussian: ComparedEstimate = UNKNOWN


@dataclass(frozen=True)
class HeadGraph:
    """What one head's attention looks like as a directed graph of words and special tokens."""

    #: Share of the attention between different nodes that a tenth of them receive, mean over
    #: sentences.
    top_share: Annotated[Estimate, Compare("share of the largest hubs")]
    #: The node that receives most in most sentences of the half that it was chosen on.
    hub: Annotated[str, Compare()]
    hub_share: Estimate  # Share of the other half's sentences in which it receives most
    hub_chance: float | None  # The same if the hub were drawn at random among a sentence's nodes


@dataclass(frozen=True)
class HeadTrees:
    """Unlabelled attachment of one head's largest trees; the gold root is given."""

    direction: str  # ``dep->head`` or ``head->dep``: the better one on the half that is chosen on
    #: By direction, on the other half: of all words but the root; and without punctuation.
    uas: Annotated[dict[str, Estimate], Compare("UAS ")]
    uas_no_punct: dict[str, Estimate]


@dataclass(frozen=True)
class HeadFlow(Head):
    """What one head reads and passes on."""

    d_head: int  # Width of its values
    #: Spectra of W_V and of W_V W_O.
    w_v: Annotated[MatrixRank, Compare("effective rank of W_V", part="effective_rank")]
    ov: Annotated[MatrixRank, Compare("effective rank of W_V W_O", part="effective_rank")]
    recovery: Annotated[Recovery, Compare("R^2 ")]  # What z holds of what was read
    graph: Annotated[HeadGraph, Compare()]  # Its hubs
    trees: Annotated[HeadTrees | None, Compare()]  # None without gold trees

    def wide(self, matrix: str = "w_v") -> float | None:
        """Return the effective rank of ``w_v`` or ``ov`` over d_head; None for a zero matrix."""
        rank = getattr(self, matrix).effective_rank
        return None if rank is None else rank / self.d_head

    def dims90(self, matrix: str = "w_v") -> float | None:
        """Return dims90 of ``w_v`` or ``ov`` over d_head; None for a zero matrix."""
        dims = getattr(self, matrix).dims["90"]
        return None if dims is None else dims / self.d_head


@dataclass(frozen=True)
class ValueControl:
    """Spectra of random matrices of one shape."""

    d_head: int  # Width of the values
    w_v: ControlStatistics  # Means over draws, or over the heads of an untrained model.
    ov: ControlStatistics


@dataclass(frozen=True)
class Hub:
    """A word or special token that receives more than its share."""

    name: str  # The word in lower case, or the special token
    #: What one occurrence receives from all other words, mean over heads and occurrences.
    received: float
    even: float  # The same where attention is spread evenly
    ratio: Annotated[Estimate, Compare("beside even attention")]  # received / even
    occurrences: int  # In the sentences that it was measured on


@dataclass(frozen=True)
class Graph:
    """The graph of all heads together."""

    top_share: Estimate  # Mean of the heads' shares
    even_top_share: float | None  # The same where attention is spread evenly
    #: Chosen on one half, measured on the other; most attended to first.
    hubs: Annotated[tuple[Hub, ...], Compare(where="hub {0.name}")]


@dataclass(frozen=True)
class ChosenTrees:
    """Heads that were chosen on one half of the sentences, and their trees on the other half."""

    #: (str, str): Name and direction of each; their attention is added up.
    heads: tuple[tuple[str, str], ...]
    #: Attachment of all words but the root; and without punctuation.
    uas: Annotated[Estimate, Compare("UAS")]
    uas_no_punct: Estimate
    over_baseline: Estimate  # ``uas`` minus the strongest baseline's on the same sentences
    #: The same head's attachment to the tree of another sentence of as many words.
    swapped: Estimate


@dataclass(frozen=True)
class Trees:
    """How well gold trees can be read from attention."""

    best: Annotated[ChosenTrees, Compare(where="best head")]  # The best single head
    combination: Annotated[ChosenTrees, Compare(where="heads added up")]  # Several heads added up
    #: ``previous`` (right-branching chain), ``next`` (left-branching), ``offset`` (the best
    #: distance), ``root`` (every word hangs on the root), ``random``; the root is given to all.
    baselines: dict[str, Estimate]
    baselines_no_punct: dict[str, Estimate]
    offset: str  # The distance that was chosen
    strongest: str  # The baseline with most words attached rightly


@dataclass(frozen=True)
class FlowControl:
    """The same architecture with random weights on the same sentences."""

    seed: int  # Of the weights
    recovery: Recovery  # Means over its heads
    #: The model's means minus these, sentence by sentence; the intervals include the spread of the
    #: control's heads.
    gain: Recovery
    top_share: Estimate  # As in :class:`Graph`
    #: Attachment of its best head and of its best combination; None without trees.
    best_uas: Estimate | None
    combination_uas: Estimate | None


@dataclass(frozen=True)
class FlowSentences:
    """What was read."""

    name: str  # Of the corpus
    #: Sentences of the half that maps are fitted and heads are chosen on, and of the other one.
    chosen_on: Annotated[int, Setting()]
    measured_on: Annotated[int, Setting()]
    repeated: int  # Sentences of the second half that stand in the first too, and were left out
    skipped: int  # Sentences that are too long for the model, or have no word with a piece
    note: str = ""  # What a reader should know of the corpus; mostly empty
    tokens: int | None = None  # Tokens of words that the maps were fitted on
    words_left_out: int = 0  # Words that the tokenizer makes no piece of


@dataclass(frozen=True, repr=False)
class FlowResult(Measured):
    """What heads read and pass on, where it goes, and whether it follows gold trees."""

    sentences: Annotated[FlowSentences, Setting()]  # What was read.
    #: In the order of layer, head.
    heads: Annotated[tuple[HeadFlow, ...], Compare(where="{0.name}")]
    #: ``gaussian`` and, where random weights were measured, ``fresh``: one for every shape.
    spectra: dict[str, tuple[ValueControl, ...]]
    recovery: Annotated[Recovery, Compare("R^2 ", where="mean of heads")]  # Means over heads.
    over_directions: Estimate  # ``recovery.whole`` minus ``recovery.directions``: mean over heads.
    graph: Annotated[Graph, Compare()]  # Hubs of all heads together.
    trees: Annotated[Trees | None, Compare()]  # None without gold trees.
    control: FlowControl | None  # None where it was not asked for.
    #: ``recovery.value`` minus ``recovery.gaussian``, and ``recovery.token`` minus
    #: ``recovery.token_directions``: mean over heads; the intervals include the spread of heads,
    #: as the random directions are other ones for each.
    over_gaussian: Estimate = UNKNOWN
    token_over_directions: Estimate = UNKNOWN
    #: By number of ``recovery``: why it is not known, where the text is too short for it.
    not_measured: dict[str, str] = field(default_factory=dict)

    def to_frame(self) -> pandas.DataFrame:
        """One row per head (pandas)."""
        stacked = any(head.stack != "encoder" for head in self.heads)
        return head_frame(_row(head, stacked) for head in self.heads)

    def hubs_frame(self) -> pandas.DataFrame:
        """One row per hub (pandas)."""
        import pandas as pd

        columns = ["name", "received", "even", "ratio_value", "ratio_half_width", "occurrences"]
        rows = [
            (h.name, h.received, h.even, h.ratio.value, h.ratio.half_width, h.occurrences)
            for h in self.graph.hubs
        ]
        return pd.DataFrame(rows, columns=columns)


def _row(head: HeadFlow, stacked: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"stack": head.stack} if stacked else {}
    row |= {"layer": head.layer, "head": head.head}
    for matrix in ("w_v", "ov"):
        row[f"{matrix}_effective"] = head.wide(matrix)
        row[f"{matrix}_dims90"] = head.dims90(matrix)
    for name, r2 in vars(head.recovery).items():
        row |= {f"r2_{name}": r2.value, f"r2_{name}_half_width": r2.half_width}
    graph = head.graph
    row |= {"top_share": graph.top_share.value, "top_half_width": graph.top_share.half_width}
    row |= {"hub": graph.hub, "hub_share": graph.hub_share.value, "hub_chance": graph.hub_chance}
    if head.trees is not None:
        row["direction"] = head.trees.direction
        for direction, short in (("dep->head", "to_head"), ("head->dep", "to_dependent")):
            uas = head.trees.uas[direction]
            row |= {f"uas_{short}": uas.value, f"uas_{short}_half_width": uas.half_width}
            row[f"uas_{short}_no_punct"] = head.trees.uas_no_punct[direction].value
    return row
