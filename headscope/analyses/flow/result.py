"""What ``headscope flow`` measured, as values.

``Compare`` marks the numbers that ``headscope diff`` compares, with their names there; ``Setting``
marks what has to be equal for two results to be compared.
"""

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
    """Held-out R^2 of linear maps from z: the share of the variance of a target that they recover.

    1 is all of it, 0 as much as the mean alone, less is worse; None where it was not measured.
    """

    #: The target is the mixture of states that the head reads, all d_model dimensions.
    whole: ComparedEstimate
    #: The same target from d_head random directions of the mixture, in place of z.
    directions: ComparedEstimate
    #: The target is the state of the word that gets the largest weight, all dimensions.
    token: ComparedEstimate
    #: The target is that state in the space that W_V reads.
    value: ComparedEstimate
    #: The target is the state of a word of the sentence drawn at random, in that space.
    other: ComparedEstimate
    #: The target of ``token`` from d_head random directions of the mixture, in place of z.
    token_directions: ComparedEstimate = UNKNOWN
    #: ``value`` with the same patterns and a W_V of Gaussian entries.
    gaussian: ComparedEstimate = UNKNOWN


@dataclass(frozen=True)
class HeadFlow(Head):
    """What one head reads and passes on."""

    d_head: int  # Width of its values
    #: Spectra of W_V and of W_V W_O.
    w_v: Annotated[MatrixRank, Compare("effective rank of W_V", attribute="effective_rank")]
    ov: Annotated[MatrixRank, Compare("effective rank of W_VW_O", attribute="effective_rank")]
    recovery: Annotated[Recovery, Compare("R^2 ")]  # What z holds of what was read

    def wide(self, matrix: str = "w_v") -> float | None:
        """Return the effective rank of ``w_v`` or ``ov`` over d_head; None for a zero matrix."""
        rank = getattr(self, matrix).effective_rank
        return None if rank is None else rank / self.d_head

    def dims90(self, matrix: str = "w_v") -> float | None:
        """Return dims90 of ``w_v`` or ``ov`` over d_head; None for a zero matrix.

        dims90 is how many singular directions hold 90% of the squared singular values.
        """
        dims = getattr(self, matrix).dims["90"]
        return None if dims is None else dims / self.d_head


@dataclass(frozen=True)
class ValueControl:
    """Spectra of random matrices of one shape."""

    d_head: int  # Width of the values
    w_v: ControlStatistics  # Means over draws, or over the heads of an untrained model.
    ov: ControlStatistics


@dataclass(frozen=True)
class FlowControl:
    """The same architecture with random weights on the same sentences."""

    seed: int  # Of the weights
    recovery: Recovery  # Means over its heads
    #: The model's means minus these, sentence by sentence; the intervals include the spread of the
    #: control's heads.
    gain: Recovery


@dataclass(frozen=True)
class FlowSentences:
    """What was read."""

    name: str  # Of the corpus
    #: Sentences of the half that maps are fitted on, and of the other one.
    chosen_on: Annotated[int, Setting()]
    measured_on: Annotated[int, Setting()]
    repeated: int  # Sentences of the second half that stand in the first too, and were left out
    skipped: int  # Sentences that are too long for the model, or have no word with a piece
    note: str = ""  # What a reader should know of the corpus; mostly empty
    tokens: int | None = None  # Tokens of words that the maps were fitted on
    words_left_out: int = 0  # Words that the tokenizer makes no piece of


@dataclass(frozen=True, repr=False)
class FlowResult(Measured):
    """What heads read and pass on."""

    sentences: Annotated[FlowSentences, Setting()]  # What was read.
    #: In the order of layer, head.
    heads: Annotated[tuple[HeadFlow, ...], Compare(where="{0.name}")]
    #: ``gaussian`` and, where random weights were measured, ``fresh``: one for every shape.
    spectra: dict[str, tuple[ValueControl, ...]]
    recovery: Annotated[Recovery, Compare("R^2 ", where="mean of heads")]  # Means over heads.
    over_directions: Estimate  # ``recovery.whole`` minus ``recovery.directions``: mean over heads.
    control: FlowControl | None  # None where it was not asked for.
    #: ``recovery.value`` minus ``recovery.gaussian``, and ``recovery.token`` minus
    #: ``recovery.token_directions``: mean over heads; the intervals include the spread of heads,
    #: as the random directions are other ones for each.
    over_gaussian: Estimate = UNKNOWN
    token_over_directions: Estimate = UNKNOWN
    #: Names of fields of ``recovery`` that are not known, and why: the text is too short for them.
    not_measured: dict[str, str] = field(default_factory=dict)

    def to_frame(self) -> pandas.DataFrame:
        """One row per head (pandas)."""
        stacked = any(head.stack != "encoder" for head in self.heads)
        return head_frame(_row(head, stacked) for head in self.heads)


def _row(head: HeadFlow, stacked: bool) -> dict[str, Any]:
    """Return a head's row; with a column for its stack if ``stacked``."""
    row: dict[str, Any] = {}
    if stacked:
        row["stack"] = head.stack
    row |= {"layer": head.layer, "head": head.head}
    for matrix in ("w_v", "ov"):
        row[f"{matrix}_effective"] = head.wide(matrix)
        row[f"{matrix}_dims90"] = head.dims90(matrix)
    for name, r2 in vars(head.recovery).items():
        row |= {f"r2_{name}": r2.value, f"r2_{name}_half_width": r2.half_width}
    return row
