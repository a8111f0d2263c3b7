r"""Which heads of one layer go first, and the best output map once they are gone.

If heads with rows R go and the rows K that stay may change, the best new map and what it costs are,
with ``H = A^-1`` (see :mod:`headscope.pruning.sublayers`)::

    W_K + A_KK^-1 A_KR W_R            cost = tr( W_R^T (H_RR)^-1 W_R C )

the same map whatever C is. At each step the head goes whose own cost, with all that went before, is
least (Optimal Brain Surgeon, Hassibi & Stork 1993; of blocks of rows: Kurtic et al. 2023,
arXiv:2302.04089). The row of ones stays: it keeps the mean of what goes in the bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.pruning.sublayers import Moments, Sublayer

RIDGE = 1e-2  # Added to the diagonal of A, relative to its mean


@dataclass(frozen=True)
class Elimination:
    """The path of one layer from all of its heads to none."""

    #: Indices of its units in the order in which they go; those that always stay are not in it.
    order: tuple[int, ...]
    counts: tuple[int, ...]  # Units that are left at each point of the path, descending
    costs: tuple[float, ...]  # Squared change of the model's output at each point, from 0 up

    def kept(self, count: int, n_units: int) -> tuple[int, ...]:
        """Return the indices of the units that are left when ``count`` are."""
        gone = set(self.order[: n_units - count])
        return tuple(place for place in range(n_units) if place not in gone)


def eliminate(item: Sublayer, W: Tensor, found: Moments, *, ridge: float = RIDGE) -> Elimination:
    """Let the heads of a layer go one at a time, the cheapest first.

    ``W`` (n_units * size + 1, d_model) is the map of the whole model.
    """
    A = ridged(found.A, ridge)
    # With C = L L^T, tr(X^T Q X C) is the square of Q^(1/2) X L.
    V = (W @ _root(found.C)).float()
    H = torch.linalg.inv(A).float()  # what follows ranks units; the maps are solved in float64
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
