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
    """The singular values of one matrix and the ranks computed from them."""

    #: Descending; as many as the factors' width allows, the rest of the matrix's are 0.
    singular_values: tuple[float, ...]
    #: Singular values above the rounding of the stored dtype.
    numerical_rank: Annotated[NumericalRank, Compare("numerical", attribute="value")]
    #: ||B||_F^2 / sigma_1^2; None for a zero matrix, like all below.
    stable_rank: Annotated[float | None, Compare("stable")]
    #: exp(entropy of sigma / sum sigma).
    effective_rank: Annotated[float | None, Compare("effective")]
    #: Least k whose k largest hold 90, 95, 99% of the sum (of sigma^2, or of sigma).
    dims: Annotated[dict[str, int | None], Compare("dims ")]


@dataclass(frozen=True)
class ControlStatistics:
    """The same numbers of random matrices of the same shapes, averaged."""

    #: Mean of sigma / ||B||_F: a random matrix has no scale of its own.
    singular_values: tuple[float, ...]
    numerical_rank: float | None  # Means of the fields of :class:`MatrixRank` with these names.
    stable_rank: float | None
    effective_rank: float | None
    dims: dict[str, float | None]
    #: Standard deviation of each statistic over the draws (``stable_rank``, ``dims90``, ...); empty
    #: where there was one draw.
    std: dict[str, float]
    draws: int  # Matrices averaged


def statistics(ranks: MatrixRank | ControlStatistics) -> dict[str, float | None]:
    """Return every kind of rank by its name in tables: ``numerical_rank`` to ``dims99``."""
    numerical = ranks.numerical_rank
    return {
        "numerical_rank": numerical.value if isinstance(numerical, NumericalRank) else numerical,
        "stable_rank": ranks.stable_rank,
        "effective_rank": ranks.effective_rank,
        **{f"dims{level}": value for level, value in ranks.dims.items()},
    }


@dataclass(frozen=True)
class LayerControl:
    """Ranks of random layers of one shape: of single heads, and of all heads of a layer as one."""

    n_heads: int  # Heads of such a layer
    heads: dict[str, ControlStatistics]  # By matrix: ``qk``, ``ov``, ``w_q``, ``w_k``
    layers: dict[str, ControlStatistics]
    asymmetry: float | None  # Means of ||B - B^T||_F / ||B||_F of heads, of layers.
    layer_asymmetry: float | None
    #: Mean overlap of the ``query`` and of the ``key`` spaces of two different heads, and of the
    #: ``query`` space of one head with the ``key`` space of any
    overlap: dict[str, float | None]
