"""How many dimensions a matrix uses: the kinds of rank, as results hold them.

``spectra.py`` computes them, of a model's weights and of random ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headscope.stats.compared import Compare


@dataclass(frozen=True)
class NumericalRank:
    """How many singular values exceed ``rtol`` times the largest."""

    value: int | None  # None where ``rtol`` is 1 or more: the stored dtype is too coarse to decide
    rtol: float  # An option; by default the epsilon of the stored dtype times the larger side


@dataclass(frozen=True)
class MatrixRank:
    """The singular values sigma of one matrix B and the ranks computed from them.

    ``Compare`` says under which name ``headscope diff`` compares a field.
    """

    #: Descending. A product of two factors has as many as its factors are wide; all further
    #: singular values of it are 0.
    singular_values: tuple[float, ...]
    #: Number of singular values above the rounding of the stored dtype
    numerical_rank: Annotated[NumericalRank, Compare("numerical", attribute="value")]
    #: ||B||_F^2 / sigma_1^2; None for a zero matrix, as the next two are
    stable_rank: Annotated[float | None, Compare("stable")]
    #: exp(entropy of sigma / sum sigma)
    effective_rank: Annotated[float | None, Compare("effective")]
    #: For "90", "95" and "99" the least number of singular values that hold this percentage of the
    #: sum (of sigma^2, or of sigma)
    dims: Annotated[dict[str, int | None], Compare("dims ")]


@dataclass(frozen=True)
class ControlStatistics:
    """Random matrices of the same shapes, averaged; a control for :class:`MatrixRank`."""

    #: Mean of sigma / ||B||_F: a random matrix has no scale of its own.
    singular_values: tuple[float, ...]
    numerical_rank: float | None  # Mean of :attr:`MatrixRank.numerical_rank`, as the next three
    stable_rank: float | None  # Mean; None where it is undefined in a draw
    effective_rank: float | None  # Mean; None where it is undefined in a draw
    dims: dict[str, float | None]  # Means
    #: Standard deviation of each statistic over the draws (``stable_rank``, ``dims90``, ...); empty
    #: where there was one draw.
    std: dict[str, float]
    draws: int  # Number of matrices


def statistics(ranks: MatrixRank | ControlStatistics) -> dict[str, float | None]:
    """Return every kind of rank by its name in tables: ``numerical_rank`` to ``dims99``."""
    numerical = ranks.numerical_rank
    return {
        "numerical_rank": numerical.value if isinstance(numerical, NumericalRank) else numerical,
        "stable_rank": ranks.stable_rank,
        "effective_rank": ranks.effective_rank,
        **{f"dims{level}": value for level, value in ranks.dims.items()},
    }


#: Distances between query and key, in positions, at which rotated products are measured.
DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class DistanceRange:
    """The least and the largest of three numbers of W_Q R(D) W_K^T over all ``DISTANCES`` D.

    R(D) rotates queries as positions do that lie D apart. In a control, means over random heads or
    layers. None where W_Q R(D) W_K^T is zero at some distance.
    """

    dims90_low: Annotated[float | None, Compare()]
    dims90_high: Annotated[float | None, Compare()]
    stable_rank_low: Annotated[float | None, Compare()]
    stable_rank_high: Annotated[float | None, Compare()]
    #: ||B(D) - B(-D)^T||_F / ||B(D)||_F: of the scores of two tokens, either way
    asymmetry_low: Annotated[float | None, Compare()]
    asymmetry_high: Annotated[float | None, Compare()]


@dataclass(frozen=True)
class LayerControl:
    """Ranks of random layers of one shape: of single heads, and of all heads of a layer as one.

    The matrices are ``qk`` (W_Q W_K^T), ``ov`` (W_V W_O), ``w_q`` and ``w_k``.
    """

    n_heads: int  # Heads of such a layer
    heads: dict[str, ControlStatistics]  # Of single heads, by matrix
    layers: dict[str, ControlStatistics]  # Of all heads of a layer as one, by matrix
    asymmetry: float | None  # Mean of ||B - B^T||_F / ||B||_F of single heads, B their ``qk``
    layer_asymmetry: float | None  # The same mean of all heads of a layer as one
    #: Mean overlap of the column spaces of W_Q of two different heads (``query``), of W_K of two
    #: different heads (``key``), and of W_Q of one head with W_K of any (``query_key``)
    overlap: dict[str, float | None]
    #: Means of the ranges over distances of single heads, and of all heads of a layer as one; None
    #: where queries and keys are not rotated
    heads_over_distances: DistanceRange | None = None
    layers_over_distances: DistanceRange | None = None
