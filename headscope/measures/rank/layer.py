"""Every rank of one layer: each head alone, and all heads concatenated."""

from __future__ import annotations

import math

from torch import Tensor

from headscope.measures.rank.dimensions import Reading, asymmetry, matrix_ranks, subspace_overlap
from headscope.measures.rank.factors import Factors
from headscope.results import HeadRank, LayerRank, Overlap


def measure_layer(
    layer: int, factors: Factors, reading: Reading, *, folded: bool | None = None
) -> tuple[list[HeadRank], LayerRank]:
    """Measure one layer.

    Parameters
    ----------
    layer : int
        Its index, for the results.
    factors : Factors
    reading : Reading
    folded : bool, optional
        Whether a LayerNorm was folded in, for the result.
    """
    ranks = matrix_ranks(factors, reading)
    heads = [
        HeadRank(
            layer=layer,
            head=head,
            asymmetry=_finite(value),
            qk=ranks["qk"][head],
            ov=ranks["ov"][head],
            w_q=ranks["w_q"][head],
            w_k=ranks["w_k"][head],
        )
        for head, value in enumerate(asymmetry(factors.W_Q, factors.W_K))
    ]
    together = factors.concatenated()
    concatenated = matrix_ranks(together, reading)
    whole = LayerRank(
        layer=layer,
        heads=tuple(range(factors.n_heads)),
        asymmetry=_finite(asymmetry(together.W_Q, together.W_K)[0]),
        overlap=Overlap(
            query=_overlap(factors.W_Q, factors.W_Q, reading),
            key=_overlap(factors.W_K, factors.W_K, reading),
            query_key=_overlap(factors.W_Q, factors.W_K, reading),
        ),
        folded=folded,
        qk=concatenated["qk"][0],
        ov=concatenated["ov"][0],
        w_q=concatenated["w_q"][0],
        w_k=concatenated["w_k"][0],
    )
    return heads, whole


def _finite(value: Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _overlap(left: Tensor, right: Tensor, reading: Reading) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, subspace_overlap(left, right, rtol=reading.rounding).tolist()))
