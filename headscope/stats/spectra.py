r"""How many dimensions the heads of one layer use: singular values and ranks of two products.

::

    qk:  W_Q W_K^T        ov:  W_V W_O

In this order: singular values and ranks of a product of factors (``factors.py``); its asymmetry,
and the overlap of column spaces; ranks of products whose factors are rotated; all of these for one
layer (:func:`layer_spectra`); means over random layers.

No product is ever formed: with A = U T, B = V S and orthonormal U and V (QR decompositions),
``A B^T = U (T S^T) V^T`` has the singular values of the small matrix ``T S^T``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from statistics import fmean, stdev

import torch
from torch import Tensor

from headscope.core.rounding import EPS
from headscope.stats.factors import Factors
from headscope.stats.planes import Planes
from headscope.stats.ranks import (
    DISTANCES,
    ControlStatistics,
    DistanceRange,
    LayerControl,
    MatrixRank,
    NumericalRank,
    statistics,
)

# --- singular values and ranks ---

LEVELS = ("90", "95", "99")  # Shares whose dimensions are counted.
#: A cumulative sum may fall short of a share that it reaches on paper, and by more than float64
#: rounding, since the weights themselves were rounded to float32 (an orthogonal map has ten equal
#: singular values but for that, and 9 of them hold 90%).
_ROUNDING = 8 * EPS
#: A product of factors counts as zero below this share of their norms: float64 rounding leaves as
#: much of columns that are orthogonal.
_ZERO = 64 * torch.finfo(torch.float64).eps


def product_singular_values(A: Tensor, B: Tensor) -> Tensor:
    """Return the singular values of ``A B^T``, descending: (..., m, r), (..., n, r)."""
    triangle_A = _triangle(A.double())
    triangle_B = _triangle(B.double())
    sigma: Tensor = torch.linalg.svdvals(triangle_A @ triangle_B.mT)
    largest = sigma[..., :1]
    is_zero = largest <= _ZERO * _product_of_norms(triangle_A, triangle_B)[..., None]
    return sigma.masked_fill(is_zero, 0.0)


def _product_of_norms(A: Tensor, B: Tensor) -> Tensor:
    """Return the product of both Frobenius norms, (..., m, r) and (..., n, r) -> (...)."""
    size: Tensor = torch.linalg.matrix_norm(A) * torch.linalg.matrix_norm(B)
    return size


def _triangle(factor: Tensor) -> Tensor:
    """Return T of factor = U T, U orthonormal; a factor that is not tall is returned as it is."""
    if factor.shape[-2] <= factor.shape[-1]:
        return factor
    triangle: Tensor = torch.linalg.qr(factor, mode="r").R
    return triangle


@dataclass(frozen=True)
class RankSettings:
    """How ranks are computed from singular values."""

    share: str = "sigma2"  # ``dims`` hold a share of the sum of squares, or (``sigma``) of the sum
    eps: float = torch.finfo(torch.float32).eps  # Of the type that the weights are stored in
    rtol: float | None = None  # For the numerical rank; None: the larger side times eps

    def ranks(self, sigma: Tensor, *shape: int) -> list[MatrixRank]:
        """Compute every kind of rank of n matrices of one ``shape`` from singular values (n, r)."""
        rtol = max(shape) * self.eps if self.rtol is None else self.rtol
        largest = sigma[:, :1].sum(-1, keepdim=True)  # [n, 1]; the sum is 0 where r is 0
        counts = (sigma > rtol * largest).sum(-1).tolist()
        scaled = sigma / largest  # squares of tiny weights would underflow
        squares = scaled**2
        stable_ranks = squares.sum(-1).tolist()
        p = scaled / scaled.sum(-1, keepdim=True)
        negative_entropies = torch.special.xlogy(p, p).sum(-1).tolist()
        dims = _dimensions(squares if self.share == "sigma2" else scaled)
        ranks = []
        for i, values in enumerate(sigma.tolist()):
            is_zero = not any(values[:1])
            ranks.append(
                MatrixRank(
                    singular_values=tuple(values),
                    numerical_rank=NumericalRank(None if rtol >= 1 else counts[i], rtol),
                    stable_rank=None if is_zero else stable_ranks[i],
                    effective_rank=None if is_zero else math.exp(-negative_entropies[i]),
                    dims=dict.fromkeys(LEVELS) if is_zero else dims[i],
                )
            )
        return ranks


def _dimensions(shares: Tensor) -> list[dict[str, int | None]]:
    """Return for each row (n, r) how many of its entries hold 90, 95 and 99% of the sum.

    A row is descending: [6, 3, 1] -> {"90": 2, "95": 3, "99": 3}.
    """
    held_by_largest = shares.cumsum(-1) / shares.sum(-1, keepdim=True)  # by the first 1 ... r
    counts_by_level = []
    for level in LEVELS:
        too_little = held_by_largest < int(level) / 100 - _ROUNDING
        counts_by_level.append(too_little.sum(-1) + 1)
    rows = torch.stack(counts_by_level, dim=-1).tolist()
    return [dict(zip(LEVELS, row, strict=True)) for row in rows]


def product_ranks(A: Tensor, B: Tensor, settings: RankSettings) -> list[MatrixRank]:
    """Measure ``A B^T`` of every head: (n_heads, m, r) and (n_heads, n, r)."""
    return settings.ranks(product_singular_values(A, B), A.shape[-2], B.shape[-2])


def matrix_ranks(factors: Factors, settings: RankSettings) -> dict[str, list[MatrixRank]]:
    """Measure the products ``qk`` and ``ov`` and the maps ``w_q`` and ``w_k``: one entry a head."""
    ranks = {name: product_ranks(A, B, settings) for name, (A, B) in factors.products.items()}
    ranks["w_q"] = map_ranks(factors.W_Q, settings)
    ranks["w_k"] = map_ranks(factors.W_K, settings)
    return ranks


def map_ranks(W: Tensor, settings: RankSettings) -> list[MatrixRank]:
    """Measure a map of every head, (n_heads, m, r)."""
    return settings.ranks(torch.linalg.svdvals(_triangle(W)), *W.shape[-2:])


# --- asymmetry and overlap ---


def asymmetry(A: Tensor, B: Tensor) -> Tensor:
    """Return ``||P - P^T||_F / ||P||_F`` of P = A B^T, in [0, 2]: (..., m, r) -> (...).

    In float64: 0 for a symmetric P, about sqrt(2) for independent random factors, 2 for an
    antisymmetric P, NaN for P = 0 (a product of factors whose columns are orthogonal, say).
    """
    # [A, B] = U [T_A, T_B] with an orthonormal U: in its basis P is the small T_A T_B^T.
    triangle_A, triangle_B = _common_triangle(A, B)
    P = triangle_A @ triangle_B.mT
    return _gap_ratio(P, P.mT, _product_of_norms(triangle_A, triangle_B))


def _common_triangle(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Return T_A and T_B of A = U T_A and B = U T_B, with the same orthonormal U."""
    r = A.shape[-1]
    triangle = _triangle(torch.cat([A, B], dim=-1).double())
    return triangle[..., :r], triangle[..., r:]


def _gap_ratio(P: Tensor, Q: Tensor, size: Tensor) -> Tensor:
    """Return ``||P - Q||_F / ||P||_F``; NaN where P is zero beside the ``size`` of its factors."""
    norm = torch.linalg.matrix_norm(P)
    ratio: Tensor = torch.linalg.matrix_norm(P - Q) / norm
    return ratio.masked_fill(norm <= _ZERO * size, torch.nan)


def column_basis(factor: Tensor, rtol: float = 2 * EPS) -> tuple[Tensor, Tensor]:
    """Return orthonormal bases of column spaces, and the ranks: (n_heads, m, r) and (n_heads,).

    Columns of a basis beyond the factor's rank are zero. By default directions that rounding to
    float32 adds do not count: independent roundings of a tall matrix have a norm of about 0.3 eps
    of the matrix's own.
    """
    u, sigma, _ = torch.linalg.svd(factor.double(), full_matrices=False)
    tolerance = max(rtol, max(factor.shape[-2:]) * torch.finfo(torch.float64).eps)
    in_range = sigma > tolerance * sigma[..., :1]
    return u * in_range[..., None, :], in_range.sum(-1).double()


def subspace_overlap(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean squared cosine of the principal angles between each two column spaces.

    ``||U_g^T V_h||_F^2 / min(rank)`` with U, V orthonormal bases: 1 if one space holds the other, 0
    if they are orthogonal, r / m on average for random r-dimensional spaces of m dimensions.

    ``first`` and ``second`` are bases and ranks that :func:`column_basis` returned, of n_heads
    heads each; returns (n_heads of the first, n_heads of the second).
    """
    U, rank_U = first
    V, rank_V = second
    n_heads, m, r = U.shape
    flat_U = U.transpose(0, 1).reshape(m, n_heads * r)  # the bases of all heads side by side
    flat_V = V.transpose(0, 1).reshape(m, n_heads * r)
    cosines = flat_U.T @ flat_V  # of each two directions
    squares = cosines.square().view(n_heads, r, n_heads, r).sum(dim=(1, 3))  # [heads, heads]
    smaller_rank = torch.minimum(rank_U[:, None], rank_V[None, :])
    return squares / smaller_rank.clamp(min=1)


# --- at every distance ---


def over_distances(
    A: Tensor, B: Tensor, planes: Planes, settings: RankSettings
) -> list[DistanceRange]:
    """Measure ``P(D) = A R(D) B^T`` of every head at all distances D: (n_heads, m, r), twice.

    R(D) turns the planes. The asymmetry compares P(D) with P(-D)^T: the score of two tokens with
    that of the same two the other way round.
    """
    triangle_A = _triangle(A.double())
    triangle_B = _triangle(B.double())
    common_A, common_B = _common_triangle(A, B)
    size = _product_of_norms(common_A, common_B)
    ranks_by_distance: list[list[MatrixRank]] = []
    asymmetry_by_distance: list[list[float]] = []
    for distance in DISTANCES:
        turned = planes.turned(triangle_A, distance)
        ranks_by_distance.append(product_ranks(turned, triangle_B, settings))
        forwards = planes.turned(common_A, distance) @ common_B.mT
        backwards = planes.turned(common_A, -distance) @ common_B.mT
        asymmetry_by_distance.append(_gap_ratio(forwards, backwards.mT, size).tolist())
    heads = zip(
        zip(*ranks_by_distance, strict=True),  # of each head, one entry a distance
        zip(*asymmetry_by_distance, strict=True),
        strict=True,
    )
    return [_distance_range(ranks, asymmetries) for ranks, asymmetries in heads]


def _distance_range(
    ranks: Sequence[MatrixRank], asymmetries: Sequence[float | None]
) -> DistanceRange:
    """Return the range of one head's numbers, given at every distance."""
    dims90 = [rank.dims["90"] for rank in ranks]
    stable_ranks = [rank.stable_rank for rank in ranks]
    return DistanceRange(
        dims90_low=_extreme(min, dims90),
        dims90_high=_extreme(max, dims90),
        stable_rank_low=_extreme(min, stable_ranks),
        stable_rank_high=_extreme(max, stable_ranks),
        asymmetry_low=_extreme(min, asymmetries),
        asymmetry_high=_extreme(max, asymmetries),
    )


def _extreme(
    choose: Callable[[Iterable[float]], float], values: Sequence[float | None]
) -> float | None:
    """Return the least or the largest value (``min`` or ``max``); None where one is unknown."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return choose(known) if known and len(known) == len(values) else None


# --- one layer ---


@dataclass(frozen=True)
class LayerSpectra:
    """The spectra of one layer: of each head alone, and of all heads side by side as one."""

    heads: dict[str, list[MatrixRank]]  # By matrix (``qk``, ``ov``, ``w_q``, ``w_k``), a head each
    layer: dict[str, list[MatrixRank]]  # By matrix, one entry
    asymmetry: list[float]  # Of ``qk`` of each head; NaN for a zero product
    layer_asymmetry: list[float]  # Of ``qk`` of the layer, one entry
    #: (n_heads, n_heads): overlap of the heads' column spaces of W_Q (``query``), of W_K (``key``),
    #: and of W_Q of one with W_K of another (``query_key``)
    overlap: dict[str, Tensor]
    #: Of ``qk`` over distances, of each head and of the layer (one entry); empty where q and k do
    #: not turn.
    heads_over_distances: list[DistanceRange] = field(default_factory=list)
    layer_over_distances: list[DistanceRange] = field(default_factory=list)


def layer_spectra(factors: Factors, settings: RankSettings) -> LayerSpectra:
    """Compute the spectra of one layer, in float64."""
    joined = factors.merged().concatenated()  # heads that share their keys summed, the rest beside
    layer = matrix_ranks(joined, settings)
    if factors.key_of_head is not None:
        layer["w_q"] = map_ranks(factors.concatenated().W_Q, settings)
    heads_over_distances: list[DistanceRange] = []
    layer_over_distances: list[DistanceRange] = []
    if factors.planes is not None and joined.planes is not None:
        heads_over_distances = over_distances(factors.W_Q, factors.W_K, factors.planes, settings)
        layer_over_distances = over_distances(joined.W_Q, joined.W_K, joined.planes, settings)
    query = column_basis(factors.W_Q, 2 * settings.eps)
    key = column_basis(factors.W_K, 2 * settings.eps)
    return LayerSpectra(
        heads=matrix_ranks(factors, settings),
        layer=layer,
        asymmetry=asymmetry(factors.W_Q, factors.W_K).tolist(),
        layer_asymmetry=asymmetry(joined.W_Q, joined.W_K).tolist(),
        heads_over_distances=heads_over_distances,
        layer_over_distances=layer_over_distances,
        overlap={
            "query": subspace_overlap(query, query),
            "key": subspace_overlap(key, key),
            "query_key": subspace_overlap(query, key),
        },
    )


#: A function that makes the factors of a layer; it is called when these are needed, so that few
#: are in memory at a time
MakeFactors = Callable[[], Factors]
ReadLayers = Callable[[Iterable[MakeFactors]], Iterator[LayerSpectra]]


@contextmanager
def layer_reader(settings: RankSettings) -> Iterator[ReadLayers]:
    """Yield a function that measures layers in the background, one per thread of torch's.

    Torch decomposes one matrix at a time, and several threads gain little inside one.
    """

    def measure(make_factors: MakeFactors) -> LayerSpectra:
        return layer_spectra(make_factors(), settings)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # A thread takes over the setting of one thread only once it has asked torch for it.
    pool = ThreadPoolExecutor(threads, initializer=torch.get_num_threads)
    try:
        yield partial(pool.map, measure)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


# --- random layers ---


def layer_control(draws: Sequence[LayerSpectra]) -> LayerControl:
    """Average the ranks of random layers, at least one, all of the same shapes."""
    overlaps: dict[str, list[float]] = {}
    for draw in draws:
        for name, overlap in draw.overlap.items():
            # A head's query space is its own; its query and its key space are two.
            if name != "query_key":
                same_head = torch.eye(len(overlap), dtype=torch.bool)
                overlap = overlap[~same_head]
            overlaps.setdefault(name, []).extend(overlap.flatten().tolist())
    return LayerControl(
        n_heads=len(draws[0].asymmetry),
        heads=_averages([draw.heads for draw in draws]),
        layers=_averages([draw.layer for draw in draws]),
        asymmetry=_mean(list(chain.from_iterable(draw.asymmetry for draw in draws))),
        layer_asymmetry=_mean(list(chain.from_iterable(draw.layer_asymmetry for draw in draws))),
        overlap={name: _mean(values) for name, values in overlaps.items()},
        heads_over_distances=_mean_range([draw.heads_over_distances for draw in draws]),
        layers_over_distances=_mean_range([draw.layer_over_distances for draw in draws]),
    )


def _mean_range(draws: Sequence[Sequence[DistanceRange]]) -> DistanceRange | None:
    """Average each end of the ranges over draws and heads; None where nothing turns."""
    ranges = [vars(head_range) for draw in draws for head_range in draw]
    if not ranges:
        return None
    return DistanceRange(**{name: _mean([ends[name] for ends in ranges]) for name in ranges[0]})


def _averages(draws: Sequence[dict[str, list[MatrixRank]]]) -> dict[str, ControlStatistics]:
    """Average the ranks of each matrix over draws and over the heads of each draw."""
    averages = {}
    for name in draws[0]:
        ranks = list(chain.from_iterable(draw[name] for draw in draws))
        averages[name] = average(ranks)
    return averages


def average(ranks: Sequence[MatrixRank]) -> ControlStatistics:
    """Average ranks over draws; a statistic that is undefined in any draw is None."""
    # Singular values, as shares of each matrix's norm.
    spectra = torch.tensor([rank.singular_values for rank in ranks], dtype=torch.float64)
    norms = spectra.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    mean_spectrum = (spectra / norms).mean(0)

    # Each kind of rank: "numerical_rank", ..., "dims99".
    rows = [statistics(rank) for rank in ranks]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    means = {name: _mean(values) for name, values in columns.items()}
    std = {
        name: stdev([float(value) for value in values if value is not None])
        for name, values in columns.items()
        if means[name] is not None and len(values) > 1
    }
    return ControlStatistics(
        singular_values=tuple(mean_spectrum.tolist()),
        numerical_rank=means["numerical_rank"],
        stable_rank=means["stable_rank"],
        effective_rank=means["effective_rank"],
        dims={level: means[f"dims{level}"] for level in LEVELS},
        std=std,
        draws=len(ranks),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None where there is no value, or one is unknown."""
    known = [float(value) for value in values if value is not None and math.isfinite(value)]
    return fmean(known) if known and len(known) == len(values) else None
