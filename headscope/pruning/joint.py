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

import torch
from torch import Tensor

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
    order, rises = eliminate(matrix, ridge)
    return Ranking(rises, order, {"forward": 1, "backward": 1 if given.labelled else directions})


def eliminate(matrix: Tensor, ridge: float) -> tuple[list[int], Tensor]:
    """Remove units one by one, re-solving the kept gates at each step.

    ``matrix`` (n, n), positive semidefinite, is the quadratic form of ``1 - xi`` that is to stay
    small. Returns the order of removal, and what each unit's removal adds to the minimum.
    """
    strength = max(ridge * float(matrix.diagonal().mean()), 1e-30)
    left = matrix.double() + strength * torch.eye(len(matrix), dtype=torch.float64)
    return one_by_one(left, left.sum(dim=1))


def one_by_one(left: Tensor, right: Tensor) -> tuple[list[int], Tensor]:
    """Remove units one by one from the least of ``x left x - 2 right x``, where removed x are 0.

    Parameters
    ----------
    left : Tensor, (n, n), float64
        Symmetric and positive definite.
    right : Tensor, (n,), float64
        ``left`` times the x at which nothing is lost.

    Returns
    -------
    order : list of int
        The unit first whose removal raises the minimum least.
    rises : Tensor, (n,), float64
        What each unit's removal adds to the minimum.
    """
    kept, order = list(range(len(left))), list[int]()
    rises = torch.zeros_like(right)
    while kept:
        inverse = torch.linalg.inv(left[kept][:, kept])
        rise = (inverse @ right[kept]) ** 2 / inverse.diagonal()
        best = int(rise.argmin())
        unit = kept.pop(best)
        order.append(unit)
        rises[unit] = rise[best]
    return order, rises
