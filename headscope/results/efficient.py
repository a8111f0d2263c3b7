"""What ``headscope spectrum --efficient`` measured, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headscope.results.compared import Compare
from headscope.results.heads import Head
from headscope.results.rank import MeanSem

__all__ = ["CheapHead", "CheapPoint", "EfficientResult"]


@dataclass(frozen=True)
class CheapPoint:
    """One cheap form at one size: its cost and, with all heads in it, what it does to the model."""

    form: str  # Such as ``window``; :data:`headscope.measures.spectrum.efficient.FORMS` lists all
    size: int  # k of the projections, w of the windows
    cost: float  # Fraction of the n^2 scores that are computed
    error: Annotated[float, Compare()]  # Relative error of z, mean over heads, sequences and draws
    #: Share of attention that the kept keys had, mean over heads and sequences; None for forms that
    #: keep no keys as they are.
    mass: float | None
    #: Cosine of a sequence's embedding with the unmodified model's, all heads in this form.
    fidelity: Annotated[MeanSem, Compare()]
    token_fidelity: MeanSem  # The same of each token's state, averaged
    #: Half of the 95% interval; the spreads over sequences and over draws both enter it. None for a
    #: single sequence.
    error_half_width: float | None = None
    fidelity_half_width: float | None = None
    draws: int = 1  # How often what is random in this form was drawn; 1 where nothing is
    #: Standard deviation between draws; None where nothing is drawn.
    error_draw_std: float | None = None
    fidelity_draw_std: float | None = None


@dataclass(frozen=True)
class CheapHead(Head):
    """One head in one cheap form at one size, alone."""

    form: str  # As in :class:`CheapPoint`.
    size: int
    error: MeanSem  # Relative error of z, over sequences
    #: Mean share of attention that the kept keys had; None for forms that keep no keys.
    mass: float | None
    #: Half of the 95% interval of the error; None for a single sequence.
    half_width: float | None = None


@dataclass(frozen=True)
class EfficientResult:
    """What could replace full attention."""

    sequences: int  # Sequences that were measured
    block: int  # Tokens of a block, random key blocks of each query block, and tokens that all see.
    random_blocks: int
    global_tokens: int
    controls: tuple[str, ...]  # Forms that are there to compare with
    #: Each form at each size, in all heads at once.
    points: Annotated[tuple[CheapPoint, ...], Compare(where="{0.form} of size {0.size}")]
    heads: tuple[CheapHead, ...]  # Each form at each size, in one head
    draws: int = 1  # How often random projections, blocks and keys were drawn
    #: Forms that this model's scores rule out: it adds a bias, or masks keys.
    left_out: tuple[str, ...] = ()
