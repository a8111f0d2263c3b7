r"""One layer's heads eliminated by Optimal Brain Surgeon, and the best map of those that stay.

Unlike gates, which can only turn a head up, the map W = (W_O; b_O) as a whole may change: the other
heads write what a removed head wrote, as far as their outputs allow. A change D of W costs
``tr(D^T A D C)``, with the second moments A and C of :mod:`headscope.pruning.moments`. If heads
with rows R go and the rows K that stay may change, the best new rows and what it costs are, with
``H = A^-1``::

    W_K + A_KK^-1 A_KR W_R            cost = tr( W_R^T (H_RR)^-1 W_R C )

the same rows whatever C is. At each step the head goes whose own cost, with all that went before,
is least. The row of ones, which multiplies b_O, stays: the bias keeps the mean of what goes.

References
----------
Hassibi & Stork 1993; of blocks of rows, Kurtic et al. 2023, arXiv:2302.04089.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.models.surgery.output_maps import OutputMap
from headscope.pruning.moments import Layer, Moments

RIDGE = 1e-2  # Added to the diagonal of A, relative to its mean


@dataclass(frozen=True)
class Elimination:
    """The path of one layer from all of its heads to none."""

    order: tuple[int, ...]  # Indices of its heads in the order in which they go
    costs: tuple[float, ...]  # Squared change of the model's output with 0, 1, ... heads gone


def eliminate(layer: Layer, moments: Moments) -> Elimination:
    """Remove the heads of a layer one at a time, the cheapest first."""
    # With C = L L^T and V = W L the cost is tr(V_R^T (H_RR)^-1 V_R). Single precision is enough:
    # this only ranks, and maps are solved in double.
    values, vectors = torch.linalg.eigh(moments.C)
    V = (layer.W @ (vectors * values.clamp(min=0).sqrt())).float()
    H = torch.linalg.inv(_ridged(moments.A)).float()
    d_head = layer.site.d_head
    remaining = list(range(layer.site.n_heads))
    rows_of = {head: slice(head * d_head, (head + 1) * d_head) for head in remaining}
    order: list[int] = []
    costs = [0.0]
    while remaining:
        # Price every head that is left.
        solved: dict[int, Tensor] = {}
        prices: dict[int, float] = {}
        for head in remaining:
            rows = rows_of[head]
            solved[head] = torch.linalg.solve(H[rows, rows], V[rows])
            prices[head] = float((V[rows] * solved[head]).sum())

        # Remove the cheapest: the others take over, and H becomes the inverse without its rows.
        cheapest = min(remaining, key=prices.__getitem__)
        rows = rows_of[cheapest]
        columns = H[:, rows].clone()
        V = V - columns @ solved[cheapest]
        H = H - columns @ torch.linalg.solve(H[rows, rows], columns.t())
        remaining.remove(cheapest)
        order.append(cheapest)
        costs.append(costs[-1] + max(prices[cheapest], 0.0))
    return Elimination(tuple(order), tuple(costs))


def cheapest_counts(paths: Sequence[Elimination], count: int) -> list[int]:
    """Return how many heads go from each layer if ``count`` go at the least total cost.

    By dynamic programming over the layers; exact for the sum of the layers' curves.
    """
    #: By the number of heads gone from the layers so far: the least cost, and how many of each.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for path in paths:
        with_this_layer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for gone_before, (cost_before, counts) in best.items():
            for gone, cost_of_layer in enumerate(path.costs):
                total = gone_before + gone
                if total > count:
                    break
                cost = cost_before + cost_of_layer
                if total not in with_this_layer or cost < with_this_layer[total][0]:
                    with_this_layer[total] = (cost, (*counts, gone))
        best = with_this_layer
    return list(best[count][1])


def refitted(layer: Layer, A: Tensor, remaining: Collection[int]) -> OutputMap:
    """Return the best map in which all heads but the ``remaining`` ones have rows of zeros."""
    remains = torch.tensor([head in remaining for head in range(layer.site.n_heads)])
    row_of_ones = torch.ones(1, dtype=torch.bool)
    rows = torch.cat([remains.repeat_interleave(layer.site.d_head), row_of_ones])
    W = layer.W
    A = _ridged(A)
    W_new = torch.zeros_like(W)
    W_new[rows] = W[rows] + torch.linalg.solve(A[rows][:, rows], A[rows][:, ~rows] @ W[~rows])
    weight = layer.site.output_weight
    return OutputMap(W_new[:-1].to(weight), W_new[-1].to(weight))


def _ridged(A: Tensor) -> Tensor:
    """Add RIDGE to the diagonal of A; the row of ones, which belongs to no head, stays as it is."""
    extra = torch.full((len(A),), float(A.diagonal()[:-1].mean() * RIDGE + 1e-12), dtype=A.dtype)
    extra[-1] = 1e-9
    return A + torch.diag(extra)
