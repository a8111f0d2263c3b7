"""What ``headscope spectrum`` measured, as values; :class:`SpectrumResult`, at the end, holds all.

``Compare()`` and ``Setting()`` in a field's type say how two results are compared: by this number
and its name, or only where this setting is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

from headscope.core.heads import Head
from headscope.session.measured import Measured
from headscope.stats.compared import Compare, ComparedEstimate, Setting
from headscope.stats.effects import columns, head_frame
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class SpectrumHead(Head):
    """One head's spectrum."""

    #: Share of the sum of sigma, the singular values, that the k largest hold. Its interval, like
    #: the next one, is Student's t over sequences.
    share_at_k: ComparedEstimate
    #: The same share of the sum of sigma^2.
    share_sq_at_k: Annotated[Estimate, Compare("share of squares at k")]
    curve: tuple[float, ...]  # (length,): shares of the 1, 2, ..., n largest, mean over sequences
    curve_sq: tuple[float, ...]  # The same shares of sigma^2
    curve_sem: tuple[float, ...] | None  # Standard error of ``curve``; None for one sequence
    offset: int  # The relative position, from -5 to 5, that gets most attention on average
    offset_mass: float  # The share of attention that it gets
    #: Primary role by ``headscope classify``, where there was a classification.
    role: str | None = None


@dataclass(frozen=True)
class SpectrumControl:
    """The same numbers of a pattern whose spectrum is known."""

    share_at_k: float  # This and the next three have the meaning they have in SpectrumHead
    share_sq_at_k: float
    curve: tuple[float, ...]
    curve_sq: tuple[float, ...]
    #: Standard deviation of ``share_at_k`` between draws; None where nothing is drawn.
    std: float | None = None
    draws: int = 1  # Patterns that were drawn; 1 for a closed form


@dataclass(frozen=True)
class RandomDraw:
    """One initialisation of the architecture: every head's share, on its part of the windows."""

    seed: int  # Of the weights
    sequences: int  # Windows that it was measured on
    share_at_k: float  # Mean over heads
    above: int  # Heads whose ``share_at_k`` lies above the threshold of low rank


@dataclass(frozen=True)
class RandomWeights:
    """The same architecture with random weights, on the same windows.

    The windows are dealt out to several initialisations in turn, so that it is known how far
    initialisations differ.
    """

    draws: tuple[RandomDraw, ...]  # One for each initialisation
    heads: int  # Heads of the architecture
    share_at_k: Estimate  # Mean over heads; Student's t over initialisations.
    share_sq_at_k: Estimate
    curve: tuple[float, ...]  # (length,): Mean over heads and initialisations.
    curve_sq: tuple[float, ...]


@dataclass(frozen=True)
class Sampling:
    """Which windows of the text were measured, and how sure the means are."""

    mode: str  # ``adaptive`` (random order, until precise enough) or ``fixed``
    windows: int  # Windows that the text has
    requested: int | None  # Sequences asked for in the fixed mode
    precision: float | None  # Half-width asked for in the adaptive mode
    reached: bool | None  # Whether all half-widths are below it; None in the fixed mode
    half_width: float | None  # The widest half-width of all heads


@dataclass(frozen=True)
class Verdict:
    """For which heads "self-attention is low rank" holds."""

    threshold: Annotated[float, Setting("low rank above")]
    random: float  # The share at k of random logits
    #: Names of heads whose 95% interval of the share at k lies above ``threshold``.
    low_rank: tuple[str, ...]
    #: Names of heads whose interval lies at or below ``random``.
    not_low_rank: tuple[str, ...]
    between: tuple[str, ...]  # Names of all other heads


@dataclass(frozen=True)
class Roles:
    """What is taken from a classification of the heads (``headscope classify``)."""

    corpus: str  # The text that heads were classified on
    positional: dict[str, int | None]  # By name of a positional head: the offset it attends to


@dataclass(frozen=True)
class CheapPoint:
    """One cheap form at one size: its cost and, with all heads in it, what it does to the model."""

    form: str  # Such as ``window``; :data:`headscope.analyses.spectrum.forms.FORMS` lists all
    size: int  # k of the projections, w of the windows
    cost: float  # Fraction of the n^2 scores that are computed
    #: Relative error of the output z of a head that is in this form alone: mean over heads,
    #: sequences and draws. The interval is over sequences and draws.
    error: ComparedEstimate
    #: Share of attention on the keys that the form keeps, mean over heads and sequences; None for
    #: forms that mix keys instead of keeping some.
    mass: float | None
    #: Cosine of a sequence's embedding with the unmodified model's, all heads in this form.
    fidelity: ComparedEstimate


@dataclass(frozen=True)
class CheapHead(Head):
    """One head in one cheap form at one size, alone."""

    form: str  # This and the next three have the meaning they have in CheapPoint, for one head
    size: int
    error: Estimate
    mass: float | None


@dataclass(frozen=True)
class EfficientResult:
    """What could replace full attention."""

    sequences: int  # Sequences that were measured
    controls: tuple[str, ...]  # Forms that are controls: random keys, uniform attention
    #: Each form at each size, in all heads at once.
    points: Annotated[tuple[CheapPoint, ...], Compare(where="{0.form} of size {0.size}")]
    heads: tuple[CheapHead, ...]  # Each form at each size, in one head
    draws: int  # How often random projections, blocks and keys were drawn
    #: Forms that this model's scores rule out: it adds a bias, or masks keys.
    left_out: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class SpectrumResult(Measured):
    """The spectra of every head's softmax matrix, and what they allow."""

    length: Annotated[int, Setting()]  # Tokens of every sequence.
    sequences: Annotated[int, Setting()]  # Sequences that were measured.
    k: Annotated[int, Setting()]  # How many of the largest singular values are summed.
    sampling: Sampling  # How the windows were chosen.
    verdict: Annotated[Verdict, Setting()]  # Which heads are of low rank.
    #: In the order of layer, head.
    heads: Annotated[tuple[SpectrumHead, ...], Compare(where="{0.name}")]
    #: ``uniform``, ``identity``, ``previous-token``, ``random-logits``; of a model that looks back
    #: only over visible keys.
    controls: dict[str, SpectrumControl]
    roles: Roles | None = None  # None where there was no classification.
    efficient: Annotated[EfficientResult | None, Compare()] = None  # None unless it was asked for.
    #: The control of every claim about learning; None unless it was asked for.
    random_weights: RandomWeights | None = None

    def over_random_weights(self) -> Estimate | None:
        """Return the mean share at k of all heads, minus that of random weights.

        The half-width of a mean of heads is at most the mean of their half-widths, whatever heads
        have in common; that is what is taken.
        """
        random = self.random_weights
        if random is None or not self.heads:
            return None
        gap = self.mean_share - (random.share_at_k.value or 0.0)
        half_widths: list[float] = []
        for head in self.heads:
            if head.share_at_k.half_width is None:
                return Estimate(gap)
            half_widths.append(head.share_at_k.half_width)
        random_half_width = random.share_at_k.half_width
        if random_half_width is None:
            return Estimate(gap)
        mean_half_width = sum(half_widths) / len(half_widths)
        return Estimate.around(gap, math.hypot(mean_half_width, random_half_width))

    @property
    def mean_share(self) -> float:
        """Mean of the heads' shares at k; there has to be a head."""
        return fmean(head.share_at_k.value or 0.0 for head in self.heads)

    def to_frame(self) -> pandas.DataFrame:
        """One row per head, without the curves (pandas)."""
        verdicts = dict.fromkeys(self.verdict.low_rank, "low rank")
        verdicts |= dict.fromkeys(self.verdict.not_low_rank, "not low rank")
        names = ["layer", "head", "share_at_k", "share_sq_at_k", "offset", "offset_mass", "role"]
        if any(head.stack != "encoder" for head in self.heads):
            names.insert(0, "stack")
        rows = []
        for head in self.heads:
            verdict = verdicts.get(head.name, "between")
            rows.append(columns(head, *names) | {"verdict": verdict})
        return head_frame(rows)

    def efficient_frame(self) -> pandas.DataFrame:
        """One row per head, cheap form and size, where they were measured (pandas)."""
        import pandas as pd

        names = ("layer", "head", "form", "size", "error", "mass")
        heads = self.efficient.heads if self.efficient is not None else ()
        return pd.DataFrame(columns(head, *names) for head in heads)
