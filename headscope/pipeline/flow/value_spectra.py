"""Spectra of W_V and of W_V W_O, and those of matrices that hold nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from headscope.measures.rank.dimensions import Reading, product_ranks
from headscope.measures.rank.factors import Factors, layer_factors, random_factors
from headscope.measures.rank.gaussian import average
from headscope.models.layouts import AttentionSite
from headscope.results.flow import ValueControl
from headscope.results.rank import MatrixRank

__all__ = ["gaussian_controls", "head_spectra", "untrained"]

#: By matrix, ``w_v`` and ``ov``: one entry a head.
Spectra = Mapping[str, Sequence[MatrixRank]]


def head_spectra(sites: Iterable[AttentionSite]) -> list[Spectra]:
    """Measure every head of every layer; layers that share all weights are measured once."""
    known: dict[object, Spectra] = {}
    found = []
    for site in sites:
        if site.projections not in known:
            known[site.projections] = _spectra(layer_factors(site.weights()))
        found.append(known[site.projections])
    return found


def _spectra(factors: Factors) -> Spectra:
    """Read W_V, and W_V W_O, of every head of a layer."""
    if not factors.n_heads:
        return {"w_v": [], "ov": []}
    d_v = factors.W_V.shape[-1]
    eye = torch.eye(d_v, dtype=torch.float64).expand(factors.n_heads, d_v, d_v)
    # The singular values of W_V are those of W_V I^T.
    return {
        "w_v": product_ranks(factors.W_V, eye, Reading()),
        "ov": product_ranks(factors.W_V, factors.W_O_T, Reading()),
    }


def gaussian_controls(
    sites: Iterable[AttentionSite], seeds: Sequence[int]
) -> tuple[ValueControl, ...]:
    """Average factors of i.i.d. Gaussian entries, for every shape that layers have."""
    shapes: dict[tuple[int, ...], Factors] = {}
    for site in sites:
        if site.n_heads:
            factors = layer_factors(site.weights())
            shapes.setdefault((*factors.W_V.shape[1:], factors.W_O_T.shape[1]), factors.first(1))
    return tuple(
        _averaged([_spectra(random_factors(like, seed)) for seed in seeds], like.W_V.shape[-1])
        for like in shapes.values()
    )


def untrained(sites: Sequence[AttentionSite]) -> tuple[ValueControl, ...]:
    """Average the heads of an untrained model, for every width of its values."""
    by_width: dict[int, list[Spectra]] = {}
    for site, spectra in zip(sites, head_spectra(sites), strict=True):
        if site.n_heads:
            by_width.setdefault(site.weights().W_V.shape[-1], []).append(spectra)
    return tuple(_averaged(spectra, width) for width, spectra in by_width.items())


def _averaged(draws: Sequence[Spectra], width: int) -> ValueControl:
    joined = {name: [one for draw in draws for one in draw[name]] for name in ("w_v", "ov")}
    return ValueControl(width, average(joined["w_v"]), average(joined["ov"]))
