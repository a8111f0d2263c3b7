"""Every rank of one layer: each head alone, and all heads concatenated."""

from __future__ import annotations

from headscope.measures.rank.dimensions import Reading, asymmetry, head_overlaps, matrix_ranks
from headscope.measures.rank.factors import Factors
from headscope.measures.statistics import finite
from headscope.results.rank import HeadRank, LayerRank, Overlap


def measure_layer(
    layer: int, factors: Factors, reading: Reading, *, folded: bool | None = None
) -> tuple[list[HeadRank], LayerRank]:
    """Measure each head alone (counted without gaps), and the sum of all heads' products.

    ``layer`` and ``folded`` (whether a LayerNorm was folded in) are for the results.
    """
    ranks = matrix_ranks(factors, reading)
    heads = [
        HeadRank(
            layer=layer,
            head=head,
            asymmetry=finite(float(value)),
            qk=ranks["qk"][head],
            ov=ranks["ov"][head],
            w_q=ranks["w_q"][head],
            w_k=ranks["w_k"][head],
        )
        for head, value in enumerate(asymmetry(factors.W_Q, factors.W_K))
    ]
    together = factors.concatenated()
    concatenated = matrix_ranks(together, reading)
    overlaps = head_overlaps(factors, reading).items()
    whole = LayerRank(
        layer=layer,
        heads=tuple(range(factors.n_heads)),
        asymmetry=finite(float(asymmetry(together.W_Q, together.W_K)[0])),
        overlap=Overlap(**{name: tuple(map(tuple, table.tolist())) for name, table in overlaps}),
        folded=folded,
        qk=concatenated["qk"][0],
        ov=concatenated["ov"][0],
        w_q=concatenated["w_q"][0],
        w_k=concatenated["w_k"][0],
    )
    return heads, whole
