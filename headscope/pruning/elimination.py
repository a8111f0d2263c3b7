r"""One layer's heads eliminated by Optimal Brain Surgeon, and the best map of those that stay.

Attention writes ``z W_O + b_O`` into the residual stream; a head owns rows of that map::

    out_t = x_t W        x_t = (z at token t, 1)    W = (rows of the heads; b)

For a choice without labels two second moments are enough. With ``g_t`` the gradient of a random
direction of the model's output by ``out_t``, a change ``D`` of W moves the output by about
``sum over t of (x_t D) . g_t``; its mean square, tokens taken as independent, is ``tr(D^T A D C)``:

    A = sum of |g_t|^2 x_t x_t^T / sum of |g_t|^2        C = sum of g_t g_t^T / number of examples

This is the Gauss-Newton matrix of the distance to the model's own output, in Kronecker-factored
form (Martens & Grosse 2015, arXiv:1503.05671). Tokens that the output does not depend on, padding
among them, have weight zero.

Unlike gates, which can only turn a head up, W_O as a whole may change: the other heads write what a
removed head wrote, as far as their outputs allow. If heads with rows R go and the rows K that stay
may change, the best new map and what it costs are, with ``H = A^-1``::

    W_K + A_KK^-1 A_KR W_R            cost = tr( W_R^T (H_RR)^-1 W_R C )

the same map whatever C is. At each step the head goes whose own cost, with all that went before, is
least. The row of ones stays: it keeps the mean of what goes in the bias.

References
----------
Hassibi & Stork 1993; of blocks of rows, Kurtic et al. 2023, arXiv:2302.04089.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscope.core.widest import exact
from headscope.models.layouts.layout import AttentionSite
from headscope.models.surgery.output_maps import OutputMap

RIDGE = 1e-2  # Added to the diagonal of A, relative to its mean


@dataclass(frozen=True)
class Layer:
    """One output map, and the heads that own its rows; where layers share a map, the first one."""

    site: AttentionSite
    units: tuple[int, ...]  # Of its heads
    W: Tensor  # (n_heads * d_head + 1, d_model), float64: the whole model's; last row: b


@dataclass(frozen=True)
class Moments:
    """What passed through one layer's map, float64."""

    A: Tensor  # (n_heads * d_head + 1, same), of its inputs, tokens weighted by |g_t|^2
    C: Tensor  # (d_model, d_model), of the gradients by its outputs, a mean over examples


class MomentSums:
    """Sums over tokens that become the :class:`Moments` of one layer."""

    def __init__(self, layer: Layer, module: nn.Module) -> None:
        n_in, d_model = layer.W.shape
        self._has_bias = module.bias is not None
        self._A = torch.zeros(n_in, n_in, dtype=torch.float64)
        self._C = torch.zeros(d_model, d_model, dtype=torch.float64)
        self._weight = 0.0

    def add(self, inputs: Tensor, gradients: Sequence[Tensor]) -> None:
        """Add what entered the map in one batch, and the gradients by what left it."""
        if not gradients:
            return
        gradients = [gradient.flatten(0, -2) for gradient in gradients]  # (tokens, d_model)
        squares = [(gradient.float() ** 2).sum(-1) for gradient in gradients]
        weight = torch.stack(squares).sum(0)
        real = weight > 0
        # Without a bias nothing could be written by the row of ones.
        last_entry = 1.0 if self._has_bias else 0.0
        x = F.pad(inputs.detach().flatten(0, -2)[real], (0, 1), value=last_entry)
        x = x * weight[real].sqrt().to(x)[:, None]
        self._A += exact(x.t() @ x).cpu()
        self._C += sum(exact(gradient.t() @ gradient).cpu() for gradient in gradients)
        self._weight += float(weight.sum())

    def moments(self, scale: float) -> Moments:
        """Divide A by the tokens' weights, and multiply C by ``scale``."""
        return Moments(self._A / max(self._weight, 1e-300), self._C * scale)


@dataclass(frozen=True)
class Elimination:
    """The path of one layer from all of its heads to none."""

    order: tuple[int, ...]  # Indices of its heads in the order in which they go
    costs: tuple[float, ...]  # Squared change of the model's output with 0, 1, ... heads gone


def eliminate(layer: Layer, moments: Moments) -> Elimination:
    """Remove the heads of a layer one at a time, the cheapest first."""
    values, vectors = torch.linalg.eigh(moments.C)
    # With C = L L^T, tr(X^T Q X C) is the square of Q^(1/2) X L.
    V = (layer.W @ (vectors * values.clamp(min=0).sqrt())).float()
    H = torch.linalg.inv(_ridged(moments.A)).float()  # this only ranks; maps are solved in float64
    d_head = layer.site.d_head
    remaining = list(range(layer.site.n_heads))
    rows_of = {head: slice(head * d_head, (head + 1) * d_head) for head in remaining}
    order: list[int] = []
    costs = [0.0]
    while remaining:
        solved: dict[int, Tensor] = {}
        prices: dict[int, float] = {}
        for head in remaining:
            rows = rows_of[head]
            solved[head] = torch.linalg.solve(H[rows, rows], V[rows])
            prices[head] = float((V[rows] * solved[head]).sum())
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
    """Return the best map whose rows are zero but for those of the ``remaining`` heads, and b."""
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
    """Add to the diagonal; the row of ones, which belongs to no head, stays as it is."""
    extra = torch.full((len(A),), float(A.diagonal()[:-1].mean() * RIDGE + 1e-12), dtype=A.dtype)
    extra[-1] = 1e-9
    return A + torch.diag(extra)
