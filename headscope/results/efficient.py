"""What ``headscope spectrum --efficient`` measured, as values."""

from __future__ import annotations

from dataclasses import dataclass

from headscope.results.heads import Head
from headscope.results.rank import MeanSem

__all__ = ["CheapHead", "CheapPoint", "EfficientResult"]


@dataclass(frozen=True)
class CheapPoint:
    """One cheap form at one size: its cost and, with all heads in it, what it does to the model.

    Attributes
    ----------
    form : str
        Such as ``window``; :data:`headscope.measures.spectrum.efficient.FORMS` lists all.
    size : int
        k of the projections, w of the windows.
    cost : float
        Fraction of the n^2 scores that are computed.
    error : float
        Relative error of z, mean over heads, sequences and draws.
    mass : float or None
        Share of attention that the kept keys had, mean over heads and sequences; None for forms
        that keep no keys as they are.
    fidelity : MeanSem
        Cosine of a sequence's embedding with the unmodified model's, all heads in this form.
    token_fidelity : MeanSem
        The same of each token's state, averaged.
    error_half_width, fidelity_half_width : float or None
        Half of the 95% interval; the spreads over sequences and over draws both enter it. None for
        a single sequence.
    draws : int
        How often what is random in this form was drawn; 1 where nothing is.
    error_draw_std, fidelity_draw_std : float or None
        Standard deviation between draws; None where nothing is drawn.
    """

    form: str
    size: int
    cost: float
    error: float
    mass: float | None
    fidelity: MeanSem
    token_fidelity: MeanSem
    error_half_width: float | None = None
    fidelity_half_width: float | None = None
    draws: int = 1
    error_draw_std: float | None = None
    fidelity_draw_std: float | None = None


@dataclass(frozen=True)
class CheapHead(Head):
    """One head in one cheap form at one size, alone.

    Attributes
    ----------
    form, size : str, int
        As in :class:`CheapPoint`.
    error : MeanSem
        Relative error of z, over sequences.
    mass : float or None
        Mean share of attention that the kept keys had; None for forms that keep no keys.
    half_width : float or None
        Half of the 95% interval of the error; None for a single sequence.
    """

    form: str
    size: int
    error: MeanSem
    mass: float | None
    half_width: float | None = None


@dataclass(frozen=True)
class EfficientResult:
    """What could replace full attention.

    Attributes
    ----------
    sequences : int
        Sequences that were measured.
    block, random_blocks, global_tokens : int
        Tokens of a block, random key blocks of each query block, and tokens that all see.
    controls : tuple of str
        Forms that are there to compare with.
    points : tuple of CheapPoint
        Each form at each size, in all heads at once.
    heads : tuple of CheapHead
        Each form at each size, in one head.
    draws : int
        How often random projections, blocks and keys were drawn.
    left_out : tuple of str
        Forms that this model's scores rule out: it adds a bias, or masks keys.
    """

    sequences: int
    block: int
    random_blocks: int
    global_tokens: int
    controls: tuple[str, ...]
    points: tuple[CheapPoint, ...]
    heads: tuple[CheapHead, ...]
    draws: int = 1
    left_out: tuple[str, ...] = ()
