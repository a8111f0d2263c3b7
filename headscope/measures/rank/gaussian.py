"""The same ranks of matrices that hold nothing: what a claim of "low rank" has to beat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import torch

from headscope.measures.rank.dimensions import (
    LEVELS,
    Reading,
    asymmetry,
    head_overlaps,
    matrix_ranks,
)
from headscope.measures.rank.factors import Factors
from headscope.results.rank import ControlStatistics, LayerControl, MatrixRank


def layer_control(draws: Sequence[Factors], reading: Reading) -> LayerControl:
    """Average the ranks of random layers, at least one, all of the same shapes."""
    heads: dict[str, list[MatrixRank]] = {}
    layers: dict[str, list[MatrixRank]] = {}
    for draw in draws:
        for table, factors in ((heads, draw), (layers, draw.concatenated())):
            for name, found in matrix_ranks(factors, reading).items():
                table.setdefault(name, []).extend(found)
    return LayerControl(
        n_heads=draws[0].n_heads,
        heads={name: average(found) for name, found in heads.items()},
        layers={name: average(found) for name, found in layers.items()},
        asymmetry=_mean_asymmetry(draws),
        layer_asymmetry=_mean_asymmetry([draw.concatenated() for draw in draws]),
        overlap=_mean_overlap(draws, reading),
    )


def average(found: Sequence[MatrixRank]) -> ControlStatistics:
    """Average ranks over draws; what does not exist in one of them is None."""
    spectra = torch.tensor([item.singular_values for item in found], dtype=torch.float64)
    sizes = spectra.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    columns: dict[str, list[float | None]] = {
        "numerical_rank": [item.numerical_rank.value for item in found],
        "stable_rank": [item.stable_rank for item in found],
        "effective_rank": [item.effective_rank for item in found],
        **{f"dims{level}": [item.dims[level] for item in found] for level in LEVELS},
    }
    means = {name: _mean(values) for name, values in columns.items()}
    std = {
        name: stdev([float(v) for v in values if v is not None])
        for name, values in columns.items()
        if means[name] is not None and len(values) > 1
    }
    dims = {level: means.pop(f"dims{level}") for level in LEVELS}
    sigma = tuple((spectra / sizes).mean(0).tolist())
    return ControlStatistics(singular_values=sigma, dims=dims, std=std, draws=len(found), **means)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None and math.isfinite(value)]
    return fmean(known) if known and len(known) == len(values) else None


def _mean_asymmetry(draws: Sequence[Factors]) -> float | None:
    return _mean([float(a) for draw in draws for a in asymmetry(draw.W_Q, draw.W_K)])


def _mean_overlap(draws: Sequence[Factors], reading: Reading) -> dict[str, float | None]:
    """Mean over pairs of different heads (query with key: over all pairs)."""
    values: dict[str, list[float]] = {}
    for draw in draws:
        for name, overlap in head_overlaps(draw, reading).items():
            other = ~torch.eye(draw.n_heads, dtype=torch.bool) | (name == "query_key")
            values.setdefault(name, []).extend(overlap[other].tolist())
    return {name: _mean(found) for name, found in values.items()}
