r"""Which units of one sublayer go first, and what the map does once they are gone.

If units R go and the rows K that stay may change, the best new map and what it costs are, with
``H = A^-1`` (see :mod:`headscope.pruning.sublayers`)::

    W_K + A_KK^-1 A_KR W_R            cost = tr( W_R^T (H_RR)^-1 W_R C )

the same map whatever C is. Units go in steps of a block: at each step those whose own cost, with
all that went before, is least (Optimal Brain Surgeon, Hassibi & Stork 1993; of whole rows: Kurtic
et al. 2023, arXiv:2302.04089). The row of ones stays: it keeps the mean of what goes in the bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.pruning.sublayers import HEADS, Moments, Sublayer

GRID = 32  # Neurons go in steps of so many: wide enough for any vector unit
BLOCK = 16  # Neurons whose costs are taken as additive within a step
_ROOMY = 0.8  # Share of rows in use below which those of neurons that went are cleared away
RIDGE = 1e-2  # Added to the diagonal of A, relative to its mean


@dataclass(frozen=True)
class Elimination:
    """The path of one sublayer from all of its units to one."""

    #: Places of its units in the order in which they go; the last that stay are not in it.
    order: tuple[int, ...]
    counts: tuple[int, ...]  # Units that are left at each point of the path, descending
    costs: tuple[float, ...]  # Squared change of the model's output at each point, from 0 up

    def kept(self, count: int, n_units: int) -> tuple[int, ...]:
        """Return the places of the units that are left when ``count`` are."""
        gone = set(self.order[: n_units - count])
        return tuple(place for place in range(n_units) if place not in gone)


def eliminate(item: Sublayer, W: Tensor, found: Moments, *, ridge: float = RIDGE) -> Elimination:
    """Let the units of a sublayer go, the cheapest first.

    ``W`` (n_units * size + 1, d_model) is the map of the whole model. Of attention one head goes
    at a time, until none is left; of a feed-forward network :data:`GRID` neurons, and one grid of
    them stays.
    """
    A = ridged(found.A, ridge)
    # With C = L L^T, tr(X^T Q X C) is the square of Q^(1/2) X L.
    V = (W @ _root(found.C)).float()
    H = torch.linalg.inv(A).float()  # what follows ranks units; the maps are solved in float64
    if item.kind == HEADS:
        return _heads(H, V, item)
    return _neurons(H, V, item)


def ridged(A: Tensor, ridge: float) -> Tensor:
    """Add to the diagonal; the row of ones, which belongs to no unit, stays as it is."""
    own = A.diagonal()[:-1].mean() * ridge + 1e-12
    extra = torch.full((len(A),), float(own), dtype=A.dtype)
    extra[-1] = 1e-9
    return A + torch.diag(extra)


def refitted(W: Tensor, A: Tensor, rows: Tensor, ridge: float = RIDGE) -> Tensor:
    """Return the best map in which only ``rows`` (bool, the row of ones included) are not zero."""
    new = torch.zeros_like(W)
    lost = ~rows
    if not lost.any():
        return W.clone()
    A = ridged(A, ridge)
    change = torch.linalg.solve(A[rows][:, rows], A[rows][:, lost] @ W[lost])
    new[rows] = W[rows] + change
    return new


def rows_kept(item: Sublayer, places: Sequence[int]) -> Tensor:
    """Return which rows of W stay, (n_units * size + 1,) of bool."""
    units = torch.zeros(item.n_units, dtype=torch.bool)
    units[list(places)] = True
    return torch.cat([units.repeat_interleave(item.size), torch.ones(1, dtype=torch.bool)])


def _root(C: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(C)
    root: Tensor = vectors * values.clamp(min=0).sqrt()
    return root


def _heads(H: Tensor, V: Tensor, item: Sublayer) -> Elimination:
    left, order, counts, costs = list(range(item.n_units)), [], [item.n_units], [0.0]
    own = {place: slice(place * item.size, (place + 1) * item.size) for place in left}
    while left:
        best: tuple[float, int, Tensor] | None = None
        for place in left:
            rows = V[own[place]]
            solved = torch.linalg.solve(H[own[place], own[place]], rows)
            cost = float((rows * solved).sum())
            if best is None or cost < best[0]:
                best = cost, place, solved
        assert best is not None
        cost, place, solved = best
        columns = H[:, own[place]].clone()
        V = V - columns @ solved
        H = H - columns @ torch.linalg.solve(H[own[place], own[place]], columns.t())
        left.remove(place)
        order.append(place)
        counts.append(len(left))
        costs.append(costs[-1] + max(cost, 0.0))
    return Elimination(tuple(order), tuple(counts), tuple(costs))


def _neurons(H: Tensor, V: Tensor, item: Sublayer) -> Elimination:
    n, order, counts, costs = item.n_units, list[int](), [item.n_units], [0.0]
    places, total, left = torch.arange(n), 0.0, n
    here = torch.ones(n + 1, dtype=torch.bool)  # whose rows stand for units that are left
    least = min(GRID, n)
    # To the first multiple of the grid, then by whole grids.
    while left > least:
        target = max(least, (left - 1) // GRID * GRID)
        while left > target:
            block = min(BLOCK, left - target)
            scores = (V[:-1] ** 2).sum(-1) / H.diagonal()[:-1]
            gone = scores.where(here[:-1], torch.inf).topk(block, largest=False).indices
            Q = H[gone][:, gone]
            solved = torch.linalg.solve(Q, V[gone])
            total += max(float((V[gone] * solved).sum()), 0.0)
            columns = H[:, gone]
            V -= columns @ solved
            H -= columns @ torch.linalg.solve(Q, columns.t())
            order.extend(places[gone].tolist())
            here[gone] = False
            left -= block
        if left < _ROOMY * len(places):
            V, H, places = V[here], H[here][:, here], places[here[:-1]]
            here = here[here]
        counts.append(left)
        costs.append(total)
    return Elimination(tuple(order), tuple(counts), tuple(costs))
