r"""``fisher-joint``: remove heads one by one, letting the gates of all others make up for each.

With the Gauss-Newton matrix G of all heads (not of one layer) the distance to the unpruned model is
about ``(1 - xi) G (1 - xi)^T``. Heads that say the same thing have large off-diagonal entries: one
of them can go if another is turned up. So at every step the surviving gates minimise::

    (1 - xi) G (1 - xi)^T + ridge * ||1 - xi_kept||^2         xi_removed = 0

and the head goes whose removal raises that minimum least. With ``A = (G + ridge I)`` restricted to
the kept heads this is the head with the smallest ``xi_h^2 / (A^-1)[h, h]``: Optimal Brain Surgeon,
with gates in place of weights.

Notes
-----
One forward pass and one backward pass per direction; the choice itself is one inverse of an
(n_units, n_units) matrix per removed head.

References
----------
Hassibi & Stork 1993, Second order derivatives for network pruning: Optimal Brain Surgeon (NIPS 5).
Kwon et al. 2022, arXiv:2204.09656 (gates, Fisher, scaling as a step of its own).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.measures.rounding import tied
from headscope.pruning.fisher import information
from headscope.pruning.method import Given, Ranking

#: Random directions per example; the matrix needs more of them than its diagonal.
DIRECTIONS = 4
#: Pull of the kept gates towards 1, in units of the mean diagonal of G.
RIDGE = 0.1


def fisher_joint(given: Given, *, ridge: float = RIDGE, directions: int = DIRECTIONS) -> Ranking:
    """Rank heads by joint elimination on the Gauss-Newton matrix of all heads.

    The value of a unit is the rise of the minimum at the step that removed it, so values need not
    rise along the order.
    """
    matrix, _ = information(given, directions)
    passes = {"forward": 1, "backward": 1 if given.labelled else directions}
    return JointRanking(matrix, ridge, passes)


class JointRanking(Ranking):
    """The order of joint elimination on ``matrix`` (n_units, n_units) with a ``ridge``."""

    def __init__(self, matrix: Tensor, ridge: float, passes: dict[str, int]) -> None:
        order, rises = eliminate(matrix, ridge)
        super().__init__(rises, order, passes)
        self._matrix, self._ridge = matrix, ridge

    def remove_evenly(self, layers: Tensor, each: int) -> tuple[int, ...]:
        """Return ``each`` units of every layer: eliminated while their layer still has room."""
        order, _ = eliminate(self._matrix, self._ridge, Room(layers.tolist(), each))
        return tuple(sorted(order))


@dataclass(frozen=True)
class Room:
    """How many units of every layer may go.

    Attributes
    ----------
    layers : sequence of int, (n_units,)
        The layer of each unit.
    each : int
        The most that a layer may lose.
    """

    layers: Sequence[int]
    each: int

    def left(self, removed: Sequence[int], kept: Sequence[int]) -> list[int]:
        """Return those of the kept units that may go when others have gone."""
        lost = Counter(self.layers[unit] for unit in removed)
        return [unit for unit in kept if lost[self.layers[unit]] < self.each]


def eliminate(matrix: Tensor, ridge: float, room: Room | None = None) -> tuple[list[int], Tensor]:
    """Remove units one by one, re-solving the kept gates at each step.

    ``matrix`` (n, n), positive semidefinite, is the quadratic form of ``1 - xi`` that is to stay
    small. Returns the order of removal, and what each unit's removal adds to the minimum.
    """
    strength = max(ridge * float(matrix.diagonal().mean()), 1e-30)
    left = matrix.double() + strength * torch.eye(len(matrix), dtype=torch.float64)
    return one_by_one(left, left.sum(dim=1), room)


def one_by_one(left: Tensor, right: Tensor, room: Room | None = None) -> tuple[list[int], Tensor]:
    """Remove units one by one from the least of ``x left x - 2 right x``, where removed x are 0.

    Parameters
    ----------
    left : Tensor, (n, n), float64
        Symmetric and positive definite.
    right : Tensor, (n,), float64
        ``left`` times the x at which nothing is lost.
    room : Room, optional
        Units beyond what their layer may lose stay, and are no part of the order.

    Returns
    -------
    order : list of int
        The unit first whose removal raises the minimum least; of equals the lower one.
    rises : Tensor, (n,), float64
        What each unit's removal adds to the minimum.
    """
    kept, order = list(range(len(left))), list[int]()
    rises = torch.zeros_like(right)
    while may_go := kept if room is None else room.left(order, kept):
        inverse = torch.linalg.inv(left[kept][:, kept])
        rise = (inverse @ right[kept]) ** 2 / inverse.diagonal()
        best = min(map(kept.index, may_go), key=tied(rise.numpy()).tolist().__getitem__)
        unit = kept.pop(best)
        order.append(unit)
        rises[unit] = rise[best]
    return order, rises
