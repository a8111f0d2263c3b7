r"""One layer's heads eliminated by Optimal Brain Surgeon, and the best map of those that stay.

The output map of a layer is one matrix W = (W_O; b_O): ``d_head`` rows for each head, and a last
row for the bias. When heads go, their rows R become zero, and all other rows K may change: the
heads that stay then write what the removed ones wrote, as far as their outputs allow. A change D of
W moves the model's output by a squared distance of about ``tr(D^T A D C)``, where A and C are the
second moments that :mod:`headscope.pruning.moments` measures. With ``H = A^-1``, the best rows that
stay, and the least cost, are::

    new W_K = W_K + A_KK^-1 A_KR W_R            cost = tr( W_R^T (H_RR)^-1 W_R C )

C weighs the cost, but does not change the best rows. The bias always stays, so that the mean of
what removed heads wrote is kept.

:func:`eliminate` removes a layer's heads one after the other, :func:`cheapest_counts` shares a
number of removed heads among layers, and :func:`refitted` makes the best map of what stays.

References
----------
Hassibi & Stork 1993; of blocks of rows, Kurtic et al. 2023, arXiv:2302.04089.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    """Remove the heads of a layer one at a time, each time the one that costs least.

    Costs include what the heads that went before have cost. ``layer`` has the map W, ``moments``
    its A and C.
    """
    # With C = L L^T and V = W L, the cost of removing rows R is tr(V_R^T (H_RR)^-1 V_R).
    # Single precision is enough: this only ranks, and maps are solved in double.
    eigenvalues, eigenvectors = torch.linalg.eigh(moments.C)
    L = eigenvectors * eigenvalues.clamp(min=0).sqrt()
    V = (layer.W @ L).float()  # [rows of W, d_model]
    H = torch.linalg.inv(_ridged(moments.A)).float()  # [rows of W, rows of W]

    d_head = layer.site.d_head
    remaining = list(range(layer.site.n_heads))
    rows_of = {head: slice(head * d_head, (head + 1) * d_head) for head in remaining}
    order: list[int] = []
    costs = [0.0]
    while remaining:
        # Price every head that is left.
        solved: dict[int, Tensor] = {}  # (H_RR)^-1 V_R by head: [d_head, d_model]
        prices: dict[int, float] = {}
        for head in remaining:
            R = rows_of[head]
            solved[head] = torch.linalg.solve(H[R, R], V[R])
            prices[head] = float((V[R] * solved[head]).sum())

        # Remove the cheapest: the others take over, and H becomes the inverse without its rows.
        cheapest = min(remaining, key=prices.__getitem__)
        R = rows_of[cheapest]
        H_R = H[:, R].clone()  # [rows of W, d_head]
        V = V - H_R @ solved[cheapest]
        H = H - H_R @ torch.linalg.solve(H[R, R], H_R.t())
        remaining.remove(cheapest)
        order.append(cheapest)
        costs.append(costs[-1] + max(prices[cheapest], 0.0))  # never below 0 by rounding
    return Elimination(tuple(order), tuple(costs))


class Split(NamedTuple):
    """A number of removed heads shared among layers."""

    cost: float  # Of all layers together
    counts: tuple[int, ...]  # Heads that go from each layer


def cheapest_counts(paths: Sequence[Elimination], count: int) -> list[int]:
    """Return how many heads go from each layer if ``count`` go at the least total cost.

    Costs (0, 1, 5) of one layer and (0, 2, 4) of another: 3 heads -> [1, 2], which costs 1 + 4.
    By dynamic programming over the layers; exact for the sum of the layers' costs.
    """
    best = {0: Split(0.0, ())}  # The cheapest split of the layers so far, by heads gone in all
    for path in paths:
        with_this_layer: dict[int, Split] = {}
        for gone_before, split in best.items():
            for gone_from_layer, cost_of_layer in enumerate(path.costs):
                gone = gone_before + gone_from_layer
                if gone > count:
                    break
                cost = split.cost + cost_of_layer
                if gone not in with_this_layer or cost < with_this_layer[gone].cost:
                    with_this_layer[gone] = Split(cost, (*split.counts, gone_from_layer))
        best = with_this_layer
    return list(best[count].counts)


def refitted(layer: Layer, A: Tensor, remaining: Collection[int]) -> OutputMap:
    """Return a layer's best map if only the ``remaining`` heads may write; the others' rows are 0.

    ``A`` is the second moment of the map's inputs, as :class:`Moments` has it.
    """
    W = layer.W
    A = _ridged(A)
    stays = torch.tensor([head in remaining for head in range(layer.site.n_heads)])
    bias_stays = torch.ones(1, dtype=torch.bool)
    K = torch.cat([stays.repeat_interleave(layer.site.d_head), bias_stays])  # [rows of W], boolean
    R = ~K
    A_KK = A[K][:, K]
    A_KR = A[K][:, R]
    new_W = torch.zeros_like(W)
    new_W[K] = W[K] + torch.linalg.solve(A_KK, A_KR @ W[R])
    stored_weight = layer.site.output_weight  # whose type and device the map gets
    return OutputMap(new_W[:-1].to(stored_weight), new_W[-1].to(stored_weight))


def _ridged(A: Tensor) -> Tensor:
    """Add RIDGE to the diagonal of A, so that it can be inverted whatever the heads put out.

    The last row belongs to the bias: it gets next to nothing, so that means are kept.
    """
    mean = float(A.diagonal()[:-1].mean())
    ridge = torch.full((len(A),), mean * RIDGE + 1e-12, dtype=A.dtype)
    ridge[-1] = 1e-9
    return A + torch.diag(ridge)
